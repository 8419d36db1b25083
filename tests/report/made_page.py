"""A report as its text, and what is looked for in it."""

from securesgd.report.page import report


def made(folders, tmp_path):
    missing = report(folders, tmp_path / "report.html").missing
    return (tmp_path / "report.html").read_text(encoding="utf-8"), missing


RECHECKED, DOUBTED = "Rechecked: replaying the ledger", "Do not believe this figure."
