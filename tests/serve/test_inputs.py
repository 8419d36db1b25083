"""Bodies of requests as inputs: shapes and kinds that the served runs of the other tests do not have."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from securesgd.data.columns import Column
from securesgd.data.schema import Schema
from securesgd.errors import InvalidInputError
from securesgd.serve.inputs import InputReader

JSON = "application/json"


def test_numbers_without_a_range_are_taken_as_they_are():
    reader = InputReader({"input_shape": [2, 2]}, None)
    assert reader.kind == "numbers"
    assert torch.equal(
        reader.read(b'{"pixels": [[-1e3, 2], [3, 0.25]]}', JSON).values, torch.tensor([[-1e3, 2], [3, 0.25]])
    )
    with pytest.raises(InvalidInputError, match="no images"):
        reader.read(b'{"pixels": [[1, 2], [3, 4]]}', JSON, invert=True)
    with pytest.raises(InvalidInputError, match="JSON"):
        reader.read(b"x", "image/png")


def test_a_colour_image_is_read_by_channels_and_a_grey_one_is_made_colour():
    reader = InputReader({"input_shape": [3, 4, 6]}, (0.0, 1.0))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    read = reader.read(file.getvalue(), "image/png")
    assert read.size == (6, 4)
    assert torch.equal(read.values, torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / 255))
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0]).save(file, "PNG")
    grey = reader.read(file.getvalue(), "image/png").values
    assert torch.equal(grey[0], read.values[0])
    assert torch.equal(grey[0], grey[2])


def test_a_row_is_encoded_as_training_did_whatever_the_order_of_its_columns():
    columns = (Column(name="age", minimum=0, maximum=100), Column(name="sex", categories=("f", "m")), Column(name="id"))
    schema = Schema(target="y", classes=("a", "b"), columns=columns)
    record = {"input_shape": [3], "preprocessing": {"kind": "table", "schema": schema.json()}}
    reader = InputReader(record, (0.0, 1.0))
    assert reader.kind == "table"
    for body in (b'{"row": {"age": 25, "sex": "m"}}', b'{"row": {"sex": "m", "id": 7, "age": "25.0"}}'):
        assert reader.read(body, JSON).values.tolist() == [0.25, 0.0, 1.0]
    for row in ('{"age": 25}', '{"age": 25, "sex": "x"}', '{"age": true, "sex": "f"}', '{"age": "1_0", "sex": "f"}',
                '{"age": 1, "sex": "f", "more": 1}', '{"age": 1, "sex": "f", "y": "a"}'):  # fmt: skip
        with pytest.raises(InvalidInputError):
            reader.read(f'{{"row": {row}}}'.encode(), JSON)
