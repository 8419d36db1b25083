"""How every figure becomes a picture: as bytes for a page, or as a file that is whole or not there."""

__all__ = ["picture_bytes", "plain_text", "write_picture"]

import io
from pathlib import Path

from matplotlib.figure import Figure

from securesgd.errors import printable
from securesgd.storage import write_whole


def picture_bytes(figure: Figure) -> bytes:
    """Return the figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, dpi=160, format="png")
    return content.getvalue()


def write_picture(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG file, whole or not at all. Raises: OSError with the name of the file."""
    write_whole(path, picture_bytes(figure))


def plain_text(text: str) -> str:
    """Return a text from outside (a path, the name of a class) as it can stand in a figure.

    Dollar signs are no formula there, and characters without a glyph (control characters, bytes that are no text) are
    shown as their escapes.
    """
    return printable(text).replace("$", r"\$")
