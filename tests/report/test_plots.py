"""The picture of r shows where the noise is."""

import numpy as np
import pytest
from matplotlib.image import imread

from securesgd.report.plots import _rule_styles, redistribution_figure


def drawn(r, shape, tmp_path):
    path = tmp_path / "r.png"
    redistribution_figure(tuple(np.ravel(r) / np.sum(r)), shape, "title", path)
    return imread(path)[..., :3]


def test_the_noisier_half_is_the_brighter_half(tmp_path):
    r = np.ones((1, 8, 8))
    r[:, :, :4] = 9  # three times the standard deviation
    image = drawn(r, (1, 8, 8), tmp_path)
    height, width = image.shape[:2]
    left, right = image[height // 2, width // 5], image[height // 2, width // 2]
    assert left[1] > right[1] + 0.3  # viridis: high values are green to yellow


@pytest.mark.parametrize("shape", [(1, 8, 8), (32, 6, 6), (3, 5, 7), (40,)], ids=str)
@pytest.mark.parametrize("kind", ["uniform", "random", "one unit gets nearly everything"])
def test_any_layer_can_be_drawn(shape, kind, tmp_path):
    r = np.ones(shape) if kind == "uniform" else np.random.default_rng(0).exponential(size=shape) + 1e-9
    if kind.startswith("one"):
        r.flat[0] = 1e12
    image = drawn(r, shape, tmp_path)
    assert image.std() > 0.01  # not empty


def test_every_rule_of_the_rows_has_a_line_and_says_what_it_proves():
    """Also one that is in no table here: a column is never left undrawn."""
    styles = _rule_styles(["mine", "package.module:rule", "as-published", "tight"])
    assert list(styles) == ["tight", "as-published", "mine", "package.module:rule"]
    assert styles["tight"]["label"] == "tight"
    assert styles["as-published"]["label"] == "as-published (without guarantee)"
    assert styles["mine"]["label"] == "mine (from outside, not rechecked, without guarantee)"
    assert len({style["color"] for style in styles.values()}) == 4
    assert all(styles[rule]["linestyle"] == ":" for rule in ("mine", "package.module:rule", "as-published"))
