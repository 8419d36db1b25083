"""The code of a Markdown page: its blocks in order, and what a comment before a block says about running it.

<!-- test: skip REASON -->                    the next block is not run
<!-- test: skip securesgd COMMAND: REASON --> of the next block, the commands that begin so are not run
<!-- test: steps=700 -> steps=2 -->           the next block is run with this change of its text
<!-- test: printed -->                        the commands before the next block print its lines, with other numbers
<!-- test: setup                              Python that is run before the next block, and that readers do not see
CODE
-->
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["python", "commands", "output", "printed", "text"]
PROGRAMS = ("securesgd", "torchrun", "srun", "curl", "make", "python", "python3", "pip", "source", "git", "cd", "$")
_BLOCK = re.compile(r"^<!-- test: (?P<note>.*?)-->$|^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass
class Block:
    """A fenced block of a page; `skipped` maps beginnings of commands, or "" for the whole block, to the reason."""

    page: str
    line: int
    kind: Kind
    text: str
    skipped: dict[str, str]
    language: str = ""

    def reason(self, command: str = "") -> str | None:
        """Return why the block, or one of its commands, is not run; None if it is."""
        return next((why for start, why in self.skipped.items() if command.startswith(start)), None)

    def commands(self) -> list[list[str]]:
        """Return the commands of a block as words, without `> FILE`; where lines begin with `$`, others are output."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        every = (shlex.split(line, comments=True) for line in lines)
        return [words[: words.index(">")] if ">" in words else words for words in every if words]


def same_words(shown: str, printed: str) -> list[str]:
    """Return the lines of `shown` that are not in `printed`; numbers may differ, and a line may end in an ellipsis."""
    actual = _words(printed)
    return [line for line in shown.splitlines() if _words(line.strip().removesuffix("…")) not in actual]


def _words(text: str) -> str:
    """Return a text without the frames of tables, every number as #, blanks as one."""
    text = re.sub(r"[─-╿]", " ", text)
    return " ".join(re.sub(r"[\d∞]+(?:[.,×]\d+)*(?:e[+-]?\d+)?", "#", text).split())


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page, hidden ones too. A plain block right after Python is the output of it."""
    content = path.read_text(encoding="utf-8")
    found: list[Block] = []
    changes: list[tuple[str, str]] = []
    skipped: dict[str, str] = {}
    end, is_printed = 0, False
    for match in _BLOCK.finditer(content):
        line = content.count("\n", 0, match.start("text") if match["note"] is None else match.start()) + 1
        if match["note"] is not None:
            note = match["note"].strip()
            if note.startswith("setup\n"):
                found.append(Block(path.name, line + 1, "python", note.removeprefix("setup\n") + "\n", {}))
            elif note == "printed":
                is_printed = True
            elif note.startswith("skip"):
                start, colon, why = note.removeprefix("skip").strip().partition(": ")
                names_command = bool(colon) and start.startswith(PROGRAMS)
                skipped |= {start: why} if names_command else {"": note.removeprefix("skip").strip()}
            else:
                old, arrow, new = note.partition(" -> ")
                assert arrow, f"{path.name}:{line}: not a comment that tests know: {note}"
                changes.append((old, new))
            continue
        text = match["text"]
        for old, new in changes:
            assert old in text, f"{path.name}:{line}: the block does not have {old!r}"
            text = text.replace(old, new)
        kind: Kind = "printed" if is_printed else "text"
        if is_printed:
            pass
        elif match["language"] == "python":
            kind = "python"
        elif match["language"] in ("sh", "bash", "shell", "console") or text.split(maxsplit=1)[:1] in _FIRST_WORDS:
            kind = "commands"
        elif found and found[-1].kind == "python" and not content[end : match.start()].strip():
            kind = "output"
        found.append(Block(path.name, line, kind, text, skipped, match["language"]))
        changes, skipped, end, is_printed = [], {}, match.end(), False
    return found


_FIRST_WORDS = [[name] for name in PROGRAMS]
