import matplotlib.image
import numpy as np
import pytest

from securesgd.report.gallery import chosen_rows, gallery_figure


def row(index, clean=3, attacked=3, radius=0.05):
    return {
        "index": index, "label": 3, "clean_prediction": clean, "prediction": attacked,
        "clean_radius": radius, "radius": radius, "size": 0.1,
    }  # fmt: skip


def test_fallen_and_standing_images_are_shown_and_wrong_ones_are_not():
    rows = [row(0, clean=5, attacked=5), *(row(i) for i in range(1, 11)), *(row(i, attacked=8) for i in range(11, 21))]
    assert [r["index"] for r in chosen_rows(rows, 6)] == [11, 12, 13, 1, 2, 3]
    assert [r["index"] for r in chosen_rows(rows[:4] + rows[-1:], 6)] == [20, 1, 2, 3]
    assert [r["index"] for r in chosen_rows(rows[-5:], 4)] == [16, 17, 18, 19]
    assert chosen_rows(rows[:1]) == []


@pytest.mark.parametrize(("channels", "radius"), [(1, 0.05), (3, ""), (1, 0.0)])
def test_the_picture_shows_clean_change_and_attacked(tmp_path, channels, radius):
    clean = np.full((4, channels, 8, 8), 0.5)
    attacked = clean.copy()
    attacked[:, :, 2:4, 2:4] += 0.2
    rows = [row(i, attacked=3 + i % 2, radius=radius) for i in range(4)]
    gallery_figure(rows, clean, attacked, tmp_path / "some" / "a.png", title="t", class_names=list("abcdefghij"))
    drawn = matplotlib.image.imread(tmp_path / "some" / "a.png")[..., :3]
    reddest = (drawn[..., 0] - drawn[..., 2]).max()
    assert reddest > 0.3  # the change, lighter than before
    assert drawn.shape[1] > drawn.shape[0] * 0.5
    gallery_figure(rows, clean, clean, tmp_path / "b.png", title="t")
    assert matplotlib.image.imread(tmp_path / "b.png").shape[2] == 4
