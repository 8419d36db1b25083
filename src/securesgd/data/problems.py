"""What is wrong with a source of data: all of it is found first, then said in one line."""

__all__ = ["MOST_SHOWN", "Problem", "join_some", "refuse_problems"]

from collections.abc import Sequence
from dataclasses import dataclass

from securesgd.errors import InvalidInputError, printable

MOST_SHOWN = 10
"""Problems, names or cells in one message; how many more there are is said."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One reason why a source cannot be used as it is.

    file       relative to the source; empty if the problem is not one file's
    problem    what is wrong, and what would be valid
    skippable  whether leaving the file out is a way to go on
    """

    file: str
    problem: str
    skippable: bool = False

    def __str__(self) -> str:
        return f"{self.file} {self.problem}" if self.file else self.problem


def join_some(items: Sequence[str], separator: str = ", ") -> str:
    """Return the first items in one text, with the number of the others."""
    more = f"{separator}and {len(items) - MOST_SHOWN:,} more" if len(items) > MOST_SHOWN else ""
    return separator.join(items[:MOST_SHOWN]) + more


def refuse_problems(source: str, problems: Sequence[Problem]) -> None:
    """Raise InvalidInputError with all problems in one line, the first ten in full; return if there are none."""
    if not problems:
        return
    numbered = [str(p) if len(problems) == 1 else f"({i}) {p}" for i, p in enumerate(problems, 1)]
    count = "" if len(problems) == 1 else f"{len(problems):,} problems: "
    skippable = sum(p.skippable for p in problems)
    skip = f"; skip_bad (--skip-bad) leaves out {skippable:,} files that cannot be used" if skippable else ""
    see = "; see all with `securesgd data check`" if len(problems) > MOST_SHOWN else ""
    raise InvalidInputError(printable(f"{source}: {count}{join_some(numbered, ' ')}{skip}{see}"))
