"""The tables of docs/results.md that are made from rows: leaderboard, costs of the presets, and the paper's claims."""

import json
from collections.abc import Callable
from pathlib import Path

from securesgd.reproduce.leaderboard import SOURCES, leaderboard_lines
from securesgd.runtime.tables import read_rows

ROOT = Path(__file__).parents[2]
_PAGE = ROOT / "docs" / "results.md"


def page() -> str:
    """Return the text of docs/results.md with its tables made anew. Raises: ValueError if a mark is missing."""
    text = _PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: made by make docs -->\n", f"<!-- end of {name} -->"
        before, after = text.index(begin) + len(begin), text.index(end)
        text = f"{text[:before]}\n{table()}\n{text[after:]}"
    return text


def leaderboard() -> str:
    """Return the presets against published numbers, from results/leaderboard/rows.csv if it is there."""
    rows = ROOT / "results" / "leaderboard" / "rows.csv"
    head = ("", "best published", "ours", "noise", "ε, δ", "from")
    sources = "; ".join(f"{name}: {what}" for name, what in SOURCES.values())
    return f"{_table(head, leaderboard_lines(read_rows(rows) if rows.exists() else []))}\n{sources}.\n"


def claims() -> str:
    """Return what rows say about the paper's claims, from results/claims.csv."""
    lines = []
    for row in read_rows(ROOT / "results" / "claims.csv"):
        line = [str(row["claim"]), _points(row["paper_gain"])]
        if row["protocol"] is None:
            lines.append([*line, "", "not measured", "", str(row["verdict"])])
            continue
        how = f"{row['protocol']}, r {str(row['way']).replace('-', ' ')}"
        interval = "" if row["lower"] is None else f" ({_points(row['lower'])} to {_points(row['upper'])})"
        p_value = "–" if row["p_value"] is None else f"{row['p_value']:.2g}"
        count = f"{row['examples']:.0f}, {row['seeds']:.0f}"
        lines.append(
            [*line, how, _points(row["gain"]) + interval, f"{count}, {p_value}", f"{row['verdict']}: {row['reason']}"]
        )
    head = ("the paper says", "gain", "protocol", "ours (95 % interval over seeds)", "n, seeds, p", "verdict")
    return _table(head, lines)


def costs() -> str:
    """Return what each preset costs, from results/presets/costs.jsonl: minutes of one core, memory in MB."""
    path = ROOT / "results" / "presets" / "costs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    shown: dict[str, dict[str, str]] = {}
    for row in rows:
        name = row["method"] + (f", {row['norm'].replace('linf', 'l_inf')}" if row["norm"] else "")
        shown.setdefault(name, {})[row["dataset"]] = f"{row['cpu_minutes']:.1f}, {row['peak_memory_mb']:,.0f}"
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    return _table(("preset", *datasets), [[name, *(of.get(d, "") for d in datasets)] for name, of in shown.items()])


TABLES: dict[str, Callable[[], str]] = {"leaderboard": leaderboard, "costs": costs, "claims": claims}


def _points(share: object) -> str:
    """Return a difference of accuracies in points."""
    return f"{100 * float(str(share)):+.1f}".replace("-", "−")


def _table(head: tuple[str, ...], lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *lines))
