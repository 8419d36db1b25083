"""The gallery: images before and after an attack, with the model's predictions of both."""

__all__ = ["chosen_rows", "draw_gallery", "gallery_figure"]

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from securesgd.report.plots import plain_text, write_picture
from securesgd.runtime.run_folder import ATTACK_PICTURE, ATTACKS
from securesgd.runtime.tables import read_rows

if TYPE_CHECKING:
    from torch import Tensor

    from securesgd.attacks.evaluate import Evaluation

Row = Mapping[str, Any]
_BROKEN, _UNBROKEN = "#B2182B", "#1B7837"


def draw_gallery(
    folder: Path,
    evaluation: "Evaluation",
    inputs: "Tensor",
    *,
    dataset: str,
    class_names: Sequence[str] | None = None,
) -> Path | None:
    """Draw the strongest attack that `evaluation` measured into the run folder, and return the path of the picture.

    `inputs` are the clean test examples. Returns None, and draws nothing, if no cell was measured by this call or the
    inputs are not images [channels, height, width].
    """
    if not evaluation.images or inputs.dim() != 4:
        return None
    cells = evaluation.cells
    strongest = min(evaluation.images, key=lambda name: cells[name]["summary"]["accuracy"]["share"])
    indices, images = evaluation.images[strongest]
    position = {int(index): place for place, index in enumerate(indices)}
    rows = [row for row in read_rows(folder / ATTACKS) if row["cell"] == strongest]
    chosen = chosen_rows([row for row in rows if int(row["index"]) in position])
    if not chosen:
        return None
    settings = cells[strongest]["attack"]
    gallery_figure(
        chosen,
        inputs[[int(row["index"]) for row in chosen]].cpu().numpy(),
        images[[position[int(row["index"])] for row in chosen]].numpy(),
        folder / ATTACK_PICTURE,
        title=f"{dataset}: {settings['attack']} ({settings['protocol']}), {settings['norm']} budget "
        f"{settings['budget']:g}",
        class_names=class_names,
    )
    return folder / ATTACK_PICTURE


def chosen_rows(rows: Sequence[Row], count: int = 8) -> list[Row]:
    """Return up to `count` rows to show: right without attack, half of them broken if there are as many, then unbroken.

    The order is that of the table, so the same rows give the same picture. Images that were wrong without attack are
    left out: they were not attacked.
    """
    right = [row for row in rows if int(row["clean_prediction"]) == int(row["label"])]
    broken = [row for row in right if int(row["prediction"]) != int(row["label"])]
    unbroken = [row for row in right if int(row["prediction"]) == int(row["label"])]
    shown = max(count // 2, count - len(unbroken))
    chosen = broken[:shown]
    return chosen + unbroken[: count - len(chosen)]


def gallery_figure(
    rows: Sequence[Row],
    clean: np.ndarray,
    attacked: np.ndarray,
    path: Path,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
) -> None:
    """Draw a column per row of attacks.csv: the clean image, the change, the attacked image, and both predictions.

    `clean` and `attacked` are images [n, channels, height, width] in the order of the rows, pixels in [0, 1]. The scale
    of the changes is the same for all, blue for darker and red for lighter, white for no change.
    """
    count = len(rows)
    figure = Figure(figsize=(1.45 * max(count, 3) + 0.6, 5.4), layout="constrained")
    grid = figure.subplots(3, count, squeeze=False)
    change = np.asarray(attacked, dtype=np.float64) - np.asarray(clean, dtype=np.float64)
    scale = max(float(np.abs(change).max()), 1e-9)
    for column, row in enumerate(rows):
        broken = int(row["prediction"]) != int(row["label"])
        pictures = (_image(clean[column]), change[column].mean(axis=0), _image(attacked[column]))
        for place, picture in enumerate(pictures):
            axes = grid[place, column]
            look = {"cmap": "RdBu_r", "vmin": -scale, "vmax": scale} if place == 1 else _gray(picture)
            axes.imshow(picture, interpolation="nearest", **look)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_color("0.7")
        grid[0, column].set_title(_prediction_text(row, "clean_", class_names), fontsize=8)
        grid[1, column].set_title(f"size {float(row['size']):.3g}", fontsize=8, color="0.3")
        grid[2, column].set_title(
            _prediction_text(row, "", class_names), fontsize=8, color=_BROKEN if broken else _UNBROKEN
        )
    for place, name in enumerate(("clean", f"change, ±{scale:.2g}", "attacked")):
        grid[place, 0].set_ylabel(name, fontsize=9)
    figure.suptitle(plain_text(title), fontsize=10)
    write_picture(figure, path)


def _prediction_text(row: Row, prefix: str, class_names: Sequence[str] | None) -> str:
    """Return the prediction and its proven radius, if there are certificates."""
    number = int(row[f"{prefix}prediction"])
    name = str(number) if class_names is None else plain_text(str(class_names[number]))
    radius = row.get(f"{prefix}radius")
    if radius is None or radius == "":
        return name
    return f"{name}\nno radius proven" if float(radius) == 0 else f"{name}\nradius {float(radius):.2g}"


def _image(pixels: np.ndarray) -> np.ndarray:
    """Return an image as matplotlib takes it: grey if it has one channel, else the first three as colours."""
    values = np.clip(np.asarray(pixels, dtype=np.float64), 0, 1)
    return values[0] if len(values) < 3 else values[:3].transpose(1, 2, 0)


def _gray(picture: np.ndarray) -> dict[str, Any]:
    return {"cmap": "gray", "vmin": 0, "vmax": 1} if picture.ndim == 2 else {}
