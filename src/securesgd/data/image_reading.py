"""How a folder of images was read: the record that a trained model keeps."""

__all__ = ["ImageReading"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from securesgd.data.arrays import class_names
from securesgd.data.image_files import ImageHeader
from securesgd.data.settings import DataSettings, format_size
from securesgd.errors import InvalidInputError

_MOST_CLASSES = 10_000


@dataclass(frozen=True, kw_only=True)
class ImageReading:
    """How the images of a folder were read, so that another one is read the same way.

    classes in their order, mode "L" or "RGB", width and height; `resize` says whether images of other sizes get that
    size, `skip_bad` whether files that cannot be used are left out.
    """

    classes: tuple[str, ...]
    mode: str
    size: tuple[int, int]
    resize: bool
    skip_bad: bool

    def require_fit(self, header: ImageHeader) -> None:
        """Return if an image can be read this way. Raises: InvalidInputError, without the file's name."""
        if not self.resize and header.size != self.size:
            sizes = format_size(header.size), format_size(self.size)
            raise InvalidInputError(f"has {sizes[0]} pixels; the run was trained on {sizes[1]}, without resize")
        if self.mode == "L" and not header.grey:
            raise InvalidInputError("is in colour; the run was trained on grey images")

    def json(self) -> dict[str, Any]:
        """Return the reading as JSON that `from_json` reads back."""
        return {
            "kind": "images",
            "classes": list(self.classes),
            "mode": self.mode,
            "size": list(self.size),
            "resize": self.resize,
            "skip_bad": self.skip_bad,
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "ImageReading":
        """Return the reading that `json` wrote. Raises: InvalidInputError if it is another record."""
        match record:
            case {
                "classes": [*classes],
                "mode": "L" | "RGB" as mode,
                "size": [int() as width, int() as height],
                "resize": bool() as resize,
                "skip_bad": bool() as skip_bad,
            } if all(isinstance(name, str) for name in classes) and len(classes) <= _MOST_CLASSES:
                size = DataSettings(resize=f"{width}x{height}").size or (0, 0)
                names = class_names(classes)
                return ImageReading(classes=names, mode=mode, size=size, resize=resize, skip_bad=skip_bad)
        raise InvalidInputError(
            "the preprocessing of the images is damaged; needed: classes, mode L or RGB, size, resize and skip_bad"
        )
