"""The full privacy statement for people: rows of a table, and lists of what is released, not covered and assumed.

Bounds are rounded up. Without a guarantee every row says so, and what the protected releases alone would give stands
beside it.
"""

__all__ = [
    "UNIT",
    "assumptions",
    "basis_rows",
    "figure_rows",
    "not_covered",
    "released",
    "statement_in_words",
    "statement_rows",
]

import math
from typing import TYPE_CHECKING

from securesgd.privacy.events import GaussianRelease, RepeatAndSelect, SampledGaussianSteps, UnprotectedRelease
from securesgd.theory.rounding import round_up

if TYPE_CHECKING:
    from securesgd.privacy.full_statement import FullStatement

UNIT = "one training example"
_ADJACENT = {
    "zero-out": "one example is replaced by one that contributes nothing; how many there are is public",
    "add-or-remove-one": "one example is added or removed; how many there are is not public",
}

Row = tuple[str, str, str]


def statement_rows(full: "FullStatement") -> list[Row]:
    """Return the statement as rows of label, value and explanation; plain text, bounds rounded up."""
    return [*figure_rows(full), *basis_rows(full)]


def figure_rows(full: "FullStatement") -> list[Row]:
    """Return the rows of `statement_rows` about what is claimed, and what it means."""
    return [*_claim_rows(full), *_meaning_rows(full)]


def basis_rows(full: "FullStatement") -> list[Row]:
    """Return the rows of `statement_rows` about what the figures rest on."""
    return [*_mechanism_rows(full), *_origin_rows(full)]


def statement_in_words(full: "FullStatement") -> str:
    """Return the statement as a few sentences."""
    claim, members = full.statement, full.claimed_membership
    words = [claim.in_words, f"The unit of privacy is {UNIT}."]
    if not claim.guaranteed:
        return " ".join(words)
    if members is not None:
        rates = " and ".join(
            f"{_percent(true)} of members at {_percent(false)} false positives"
            for false, true in members.true_positive_rates
        )
        words.append(f"No membership attack finds more than {rates}; mu = {_bound(members.mu)}.")
    people = [
        f"{_bound(group.epsilon)} with {group.examples}" for group in full.claimed_groups if group.epsilon is not None
    ]
    if people:
        words.append(f"For a person with several examples epsilon is {', '.join(people)}.")
    words += [f"Not available: {reason}." for reason in full.not_available]
    return " ".join(words)


def _claim_rows(full: "FullStatement") -> list[Row]:
    claim = full.statement
    state = {True: "finished", False: "not finished: what is reserved counts in full", None: "not known"}[full.finished]
    guarantee = "yes" if claim.guaranteed else f"no: {'; '.join(claim.reasons)}"
    rows = [
        ("guaranteed", guarantee, "whether the figures below are proven for what was released"),
        ("epsilon", _claimed(full, _bound(claim.accounted_epsilon)), "by at most e^epsilon, and delta, may any outcome "
         "become more likely by one unit"),
        ("delta", f"{claim.delta!r}", "what epsilon may fail by; should be far below 1/n"),
        ("unit of privacy", UNIT, "a person with several examples is protected less: see below"),
        ("adjacency", f"{claim.adjacency}: {_ADJACENT[claim.adjacency]}", "which data sets are to be told apart"),
        ("training examples", _count(full.dataset_size), "n, if public or a stated population"),
        ("budget", "no limit" if full.target_epsilon is None else f"epsilon {full.target_epsilon:g}",
         "what the ledger would have refused to exceed"),
        ("run", state, "steps are paid for before they are taken"),
    ]  # fmt: skip
    return rows + [("caution", caution, "weakens a true statement") for caution in claim.cautions]


def _meaning_rows(full: "FullStatement") -> list[Row]:
    rows: list[Row] = []
    if full.membership is not None:
        members = full.membership
        limits = f"up to {members.slack:.3g} of probability; regret {round_up(members.regret, digits=2):.2g}"
        meaning = f"an attack does no better than telling N(0, 1) from N(mu, 1), {limits}"
        rows.append(("mu of Gaussian DP", _claimed(full, _bound(members.mu)), meaning))
        for false, true in members.true_positive_rates:
            text = _claimed(full, _percent(true), none="100 %")
            rows.append((f"found at {_percent(false)} false positives", text, "the most members that any attack finds"))
    for group in full.groups:
        if group.epsilon is not None:
            text = _claimed(full, _bound(group.epsilon))
            rows.append((f"epsilon of {group.examples} examples", text, "for a person who has so many; the same delta"))
    return rows + [("not available", reason, "why a figure is missing") for reason in full.not_available]


def _mechanism_rows(full: "FullStatement") -> list[Row]:
    noise = full.statement.noise
    rows = [(*_release(event), "charged in the ledger") for event in full.releases]
    rows.append(("charged steps", f"{full.charged_steps:,}", "T: all DP-SGD steps that are paid for"))
    rows.append(("sampling", "Poisson", "every example enters every step by a fresh coin of rate q"))
    if noise is None:
        return [*rows, ("noise", "not recorded", "clipping norm, generator and rounding are not in the ledger")]
    key = "a fixed seed: no guarantee" if noise.seeded else "secret randomness of the operating system"
    return [
        *rows,
        ("clipping norm", f"{noise.clipping_norm:g}", "the most that one example's gradient counts, in l2"),
        ("proven bound", f"{noise.bound!r}", "the same after floating point and rounding; noise is a multiple of it"),
        ("generator", f"{noise.generator}, key from {key}", "where the noise comes from"),
        ("noise", f"exact rounded Gaussian on a grid of {noise.grid:g}", "floating point adds 0 to epsilon and delta"),
    ]


def _origin_rows(full: "FullStatement") -> list[Row]:
    claim = full.statement
    runs = "0 in the ledger"
    if full.tuning_runs:
        runs = f"a secret number, {full.tuning_runs:g} on average; all are in epsilon"
    return [
        *(("released", text, "covered by epsilon") for text in released(full)),
        *(("not covered", text, "no epsilon is about it") for text in not_covered(full)),
        *(("assumed", text, "without it the statement is void") for text in assumptions(full)),
        ("tuning runs", runs, "training runs that settings were chosen by, as far as they are paid for"),
        ("accountant", f"{claim.accountant.upper()} of {claim.accountant_version}", "what computed epsilon"),
        *((f"version of {name}", version or "not recorded", "") for name, version in full.versions.items()),
    ]


def released(full: "FullStatement") -> tuple[str, ...]:
    """Return what epsilon covers."""
    kinds = GaussianRelease | RepeatAndSelect
    labels = dict.fromkeys(event.label for event in full.releases if isinstance(event, kinds))
    steps = ["the weights after every step, and so the trained model and all checkpoints"] if full.charged_steps else []
    after = ["whatever is computed from these without the training data"] if full.releases else []
    return (*labels, *steps, *after)


def not_covered(full: "FullStatement") -> tuple[str, ...]:
    """Return what no epsilon is about."""
    unprotected = [f"{x.label}: {x.reason}" for x in full.releases if isinstance(x, UnprotectedRelease)]
    return (
        *unprotected,
        "test and held-out examples: metrics.jsonl, certificates, attacks and the report are about them",
        "the choice of settings by people who looked at these data, or at other runs on them",
        "secret.json, which holds the key while the run trains",
        "the time and memory that training takes",
    )


def assumptions(full: "FullStatement") -> tuple[str, ...]:
    """Return what the statement rests on beyond the theorem."""
    size = "n is public" if full.statement.adjacency == "zero-out" else "the sampling rates do not depend on n"
    return (
        size,
        "the ledger has every release from the training data, and the folder is the only use of them",
        "no person has several training examples, but for the figures that say how many",
        "the generator's output cannot be told from randomness, and nobody else has its key",
    )


def _release(event: object) -> tuple[str, str]:
    match event:
        case SampledGaussianSteps():
            text = f"{event.steps:,} × rate {event.sampling_rate:.6g}, noise multiplier {event.noise_multiplier:.6g}"
            return "DP-SGD steps", text
        case GaussianRelease():
            return "release", f"{event.label}, once, noise multiplier {event.noise_multiplier:.6g}"
        case UnprotectedRelease():
            return "release", f"{event.label}, without protection"
        case RepeatAndSelect():
            trial = "; ".join(": ".join(_release(part)) for part in event.trial)
            return "release", f"{event.label}, {event.mean:g} on average, shape {event.shape:g}, each with {trial}"
        case _:  # a kind of event that this statement has no words for
            return "release", type(event).__name__


def _claimed(full: "FullStatement", text: str, none: str = "infinity") -> str:
    """Return a figure of the protected releases as it may be claimed."""
    claim = full.statement
    if claim.guaranteed:
        return text
    if claim.accounted_epsilon == 0 or text == none:
        return none
    return f"{none} ({text} {'with a secret key' if claim.guaranteed_but_for_seed else 'for the other releases'})"


def _bound(value: float) -> str:
    return "infinity" if math.isinf(value) else f"{round_up(value, decimals=4):.4f}"


def _percent(share: float) -> str:
    return f"{round_up(100 * share, digits=3):.3g} %"


def _count(size: int | None) -> str:
    return "not public" if size is None else f"{size:,}"
