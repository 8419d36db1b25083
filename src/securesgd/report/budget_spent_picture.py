"""Epsilon over the steps of a run, as its ledger has it."""

__all__ = ["budget_spent_figure"]

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from securesgd.report.picture import picture_bytes, plain_text


def budget_spent_figure(ledger: Sequence[dict[str, Any]]) -> bytes | None:
    """Return a picture of what was paid after each block of steps; None if there is nothing to draw."""
    steps, spent, releases, done = [0], [0.0], [], 0
    for line in ledger:
        event, epsilon = line.get("event"), line.get("epsilon")
        if event is None or not isinstance(epsilon, int | float):
            continue
        done += int(event.get("steps", 0))
        steps.append(done)
        spent.append(float(epsilon))
        if "steps" not in event:
            releases.append((done, float(epsilon), str(event.get("label", event["kind"]))))
    if len(steps) < 2:
        return None
    figure = Figure(figsize=(6, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.step(steps, spent, where="pre", color="#0072B2", linewidth=1.8)
    for step, epsilon, label in releases:
        axes.annotate(plain_text(label), (step, epsilon), fontsize=8, xytext=(8, -4), textcoords="offset points")
        axes.plot([step], [epsilon], "o", color="#D55E00")
    wanted = ledger[0].get("target_epsilon")
    if wanted is not None:
        axes.axhline(float(wanted), color="0.5", linestyle="--", linewidth=1)
        axes.annotate("budget", (0, float(wanted)), fontsize=8, xytext=(2, -10), textcoords="offset points")
    axes.set(xlabel="steps", ylabel="ε paid", ylim=(0, None), xlim=(0, None))
    axes.grid(True, color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    return picture_bytes(figure)
