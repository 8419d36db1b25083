"""Writes kymatio_scattering.json: what kymatio 0.3.0 makes of given images. Run it with kymatio installed:

python -m tests.models.record_kymatio
"""

import json
from pathlib import Path

import torch
from torch import Tensor

RECORD = Path(__file__).with_name("kymatio_scattering.json")
SHAPES = [(1, 28, 28), (3, 32, 32), (1, 29, 30)]
PLACES = [(0, 0), (2, 5), (-1, -2)]


def image(shape: tuple[int, int, int]) -> Tensor:
    """Return an image by a formula: waves of growing frequency, different in every colour."""
    colours, rows, columns = (torch.arange(size, dtype=torch.float64) for size in shape)
    c, u, v = torch.meshgrid(colours, rows, columns, indexing="ij")
    return 0.5 + 0.3 * torch.sin(0.05 * u**2 + 0.3 * v + c) + 0.2 * torch.cos(0.9 * u - 0.02 * v**2 * (c + 1))


def main() -> None:
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D  # its other ways in need scipy < 1.17

    record = {}
    for shape in SHAPES:
        coefficients = ScatteringTorch2D(2, shape[1:])(image(shape).float()[None]).flatten(1, 2)[0]
        chosen = torch.stack([coefficients[:, u, v] for u, v in PLACES])
        record["x".join(map(str, shape))] = {
            "shape": list(coefficients.shape),
            "values": [[round(value, 7) for value in row] for row in chosen.tolist()],
        }
    RECORD.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
