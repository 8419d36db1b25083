"""From the body of a request to the input of the model: an image, a list of numbers, or a row of a table.

Everything that is wrong with a body is an InvalidInputError in words; nothing of it is trusted.
"""

__all__ = ["IMAGE_TYPES", "JSON_TYPE", "InputReader", "ReadInput"]

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from securesgd.certificates.column_radii import table_schema
from securesgd.data.image_files import read_header, read_pixels
from securesgd.errors import InvalidInputError, printable
from securesgd.runtime.storage import parse_json

IMAGE_TYPES = ("image/png", "image/jpeg")
JSON_TYPE = "application/json"
_CHANNELS = {1: "L", 3: "RGB"}
_MOST_SHOWN = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadInput:
    """One input of the model, in the shape it was trained on."""

    values: Tensor
    size: tuple[int, int] | None = None
    """Width and height of the image before it was made the size of the model's inputs; None if it was no image."""


class InputReader:
    """Reads inputs as a run was trained to see them; `record` is the content of its model.json.

    kind    `table` if the run was trained on one, `image` if its inputs have 1 or 3 channels of pixels in [0, 1],
            else `numbers`
    schema  the public facts of the table; None for other kinds
    """

    def __init__(self, record: Mapping[str, Any], input_range: tuple[float, float] | None) -> None:
        self.shape = tuple(int(size) for size in record["input_shape"])
        self.input_range, self.schema = input_range, table_schema(dict(record))
        image = len(self.shape) == 3 and self.shape[0] in _CHANNELS and input_range == (0.0, 1.0)
        self.kind = "table" if self.schema is not None else "image" if image else "numbers"

    def read(self, body: bytes, content_type: str, *, invert: bool = False) -> ReadInput:
        """Return the input in a body of one of `IMAGE_TYPES` or of `JSON_TYPE`.

        Guarantee: values are finite, in the input range, and of the shape of the model's inputs.
        `invert` makes dark pixels bright and bright ones dark, for models of bright strokes on a dark ground.
        Raises: InvalidInputError for anything else.
        """
        if content_type in IMAGE_TYPES:
            read = self._image(body)
        elif content_type == JSON_TYPE:
            read = ReadInput(values=self._json(body))
        else:
            raise InvalidInputError(
                f"the body is of type {printable(content_type[:80])!r}; valid: {', '.join((*IMAGE_TYPES, JSON_TYPE))}"
            )
        if invert and self.kind != "image":
            raise InvalidInputError("invert is true; valid: false, since the model's inputs are no images")
        return ReadInput(values=1 - read.values, size=read.size) if invert else read

    def _image(self, body: bytes) -> ReadInput:
        if self.kind != "image":
            valid = '{"row": {column: value}}' if self.kind == "table" else '{"pixels": [...]}'
            raise InvalidInputError(f"the body is an image; valid for this model: JSON {valid}")
        channels, height, width = self.shape
        try:
            size = read_header(body).size
            pixels = read_pixels(body, _CHANNELS[channels], (width, height))
        except InvalidInputError as error:
            raise InvalidInputError(f"the image {error}") from None
        values = torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / 255)
        return ReadInput(values=values, size=size)

    def _json(self, body: bytes) -> Tensor:
        try:
            content = parse_json(body)
        except ValueError as error:
            raise InvalidInputError(f"the body is not valid JSON: {_shortened(error)}") from None
        match content:
            case {"row": dict() as row, **others} if not others and self.schema is not None:
                return self._row(row)
            case {"pixels": list() as pixels, **others} if not others and self.schema is None:
                return self._numbers(pixels)
        key = '"pixels": nested lists of numbers' if self.schema is None else '"row": {column: value}'
        raise InvalidInputError(f"the body is another JSON value than valid for this model: {{{key}}} and nothing else")

    def _numbers(self, pixels: list[Any]) -> Tensor:
        valid = f"valid: lists of numbers of shape {list(self.shape)}"
        if not _has_shape(pixels, self.shape):
            raise InvalidInputError(f"pixels are of another shape, or not numbers; {valid}")
        values = torch.tensor(pixels, dtype=torch.float64).reshape(self.shape)
        single = values.float()
        if not bool(torch.isfinite(single).all()):
            raise InvalidInputError(f"pixels hold a number beyond single precision; {valid}")
        if self.input_range is not None:
            low, high = self.input_range
            if not bool(((values >= low) & (values <= high)).all()):
                raise InvalidInputError(
                    f"pixels are {float(values.min())!r} to {float(values.max())!r}; valid: {low:g} to {high:g}"
                )
        # A radius is about the numbers that were given, not about ones that were rounded.
        return single if bool((single == values).all()) else values

    def _row(self, row: dict[str, Any]) -> Tensor:
        assert self.schema is not None
        cells = {}
        for name, value in row.items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise InvalidInputError(
                    f"column {printable(name[:80])!r} holds a {type(value).__name__}; valid: a number or a text"
                )
            cells[name] = [value if isinstance(value, str) else repr(value)]
        if self.schema.target in cells:
            raise InvalidInputError(f"{self.schema.target!r} is what the model predicts; valid: a row without it")
        try:
            return torch.from_numpy(self.schema.encode(cells)[0])
        except InvalidInputError as error:
            raise InvalidInputError(_shortened(error)) from None


def _has_shape(values: Any, shape: tuple[int, ...]) -> bool:
    """Return whether nested lists have a shape and numbers at their ends; looks no further than the shape."""
    level = [values]
    for size in shape:
        if not all(isinstance(item, list) and len(item) == size for item in level):
            return False
        level = [inner for item in level for inner in item]
    return all(type(item) in (int, float) for item in level) and len(level) == math.prod(shape)


def _shortened(error: Exception) -> str:
    """Return the message of an error as one line that is no longer than a person reads."""
    text = printable(str(error))
    return text if len(text) <= 2 * _MOST_SHOWN else f"{text[:_MOST_SHOWN]} … {text[-_MOST_SHOWN:]}"
