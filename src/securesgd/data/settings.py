"""How the user's own data is read: the table [data] of a configuration."""

__all__ = ["FILE_SETTINGS", "FOLDER_SETTINGS", "TABLE_SETTINGS", "DataSettings", "format_size"]

import re
from collections.abc import Collection
from dataclasses import dataclass, fields

from securesgd.errors import InvalidInputError
from securesgd.validate import validate_types

TABLE_SETTINGS = ("target", "schema", "test", "test_share", "on_disk")
FOLDER_SETTINGS = ("test_share", "resize", "skip_bad", "on_disk")
FILE_SETTINGS = ("on_disk",)
_MOST_SIDE = 4096
"""Pixels of a side after resizing."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How a table or a folder of images is read; the defaults read every other source, too.

    Raises: InvalidInputError for a value of another kind or outside its range.
    """

    target: str | None = None
    """Of a table: the column of the class."""
    schema: str | None = None
    """Of a table: path of its schema; None: NAME.schema.toml or schema.toml beside it."""
    test: str | None = None
    """Of a table: another file with the test rows."""
    test_share: float = 0.2
    """Of a table without `test`, or a folder without train/ and test/: how much is set apart for testing."""
    resize: str | None = None
    """Of a folder: width and height in pixels, like "64x64"."""
    skip_bad: bool = False
    """Of a folder: leave out files that cannot be used."""
    on_disk: bool = False
    """Of a table, folder or .npz file: read training inputs as they are sampled, also if memory would hold them."""

    def __post_init__(self) -> None:
        validate_types(self)
        for name in ("target", "schema", "test"):
            if getattr(self, name) == "":
                raise InvalidInputError(f"{name} is ''; valid: a name, or leave it out")
        if not 0 < self.test_share < 1:
            raise InvalidInputError(f"test_share is {self.test_share!r}; valid: a share with 0 < test_share < 1")
        if self.test is not None and "test_share" in self.changed:
            raise InvalidInputError(
                f"test_share is {self.test_share!r} and test is {self.test!r}; valid: one of them, since with a file "
                "of test rows none are set apart"
            )
        _ = self.size

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height of `resize`, None if images keep their size."""
        if self.resize is None:
            return None
        match = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", self.resize, re.ASCII)
        if match is None or max(int(side) for side in match.groups()) > _MOST_SIDE:
            raise InvalidInputError(
                f"resize is {self.resize!r}; valid: WIDTHxHEIGHT in pixels, each from 1 to {_MOST_SIDE}, like 64x64"
            )
        return int(match[1]), int(match[2])

    @property
    def changed(self) -> tuple[str, ...]:
        """The settings that are not at their default."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) != field.default)

    def require_only(self, valid: Collection[str], source: str) -> None:
        """Raise InvalidInputError if a setting was changed that is not in `valid`; `source` says what is read."""
        for name in self.changed:
            if name not in valid:
                ways = dict.fromkeys(TABLE_SETTINGS, "a table") | dict.fromkeys(FOLDER_SETTINGS, "a folder")
                ways["test_share"] = "a table without test, or a folder without train/ and test/"
                ways["on_disk"] = "a table, a folder of images or an uncompressed .npz file"
                raise InvalidInputError(f"{name} is {getattr(self, name)!r} but {source}; {name} is for {ways[name]}")


def format_size(size: tuple[int, int]) -> str:
    """Return a width and height as text."""
    return f"{size[0]}×{size[1]}"
