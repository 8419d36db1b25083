"""Figures 2–5 show all that is in the rows: no line is cut off, none is missing."""

from matplotlib.figure import Figure

from securesgd.reproduce.attack_plots import budget_panels, certified_panels


def rows(method, share, protocol, way="uniform", robust_epsilon=1.0):
    columns = {}
    for name in ("attacked", "certified_attacked", "published_attacked"):
        columns |= {name: share, f"{name}_lower": share - 0.05, f"{name}_upper": share + 0.05}
    return [
        {
            "dataset": "digits", "network": "digits-cnn", "method": method, "way": way, "epsilon": epsilon, "seed": 0,
            "robust_epsilon": robust_epsilon, "examples": 10, "guaranteed": 1, "protocol": protocol,
            "attack": attack, "budget": budget, **columns,
        }
        for attack in ("fgsm", "madry")
        for epsilon, budget in ((1.0, 0.01), (2.0, 0.1))
    ]  # fmt: skip


def drawn(monkeypatch, draw, table, tmp_path, **settings):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    draw(table, tmp_path / "figure.png", **settings)
    return figures[0].axes


def test_lines_drawn_last_are_not_cut_off(monkeypatch, tmp_path):
    """Panels share their scale: it must be that of the highest line, wherever that is."""
    table = rows("pixeldp", 0.2, "as-published") + rows("pixeldp", 0.3, "sound")
    table += rows("hgm-pixeldp", 0.9, "sound", "learned", 8.0)
    panels = drawn(monkeypatch, certified_panels, table, tmp_path, robust_epsilon=8.0, stated={})
    assert [len(axes.lines) for axes in panels] == [1, 1, 2, 2]
    for axes in panels:
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] >= 0.95
    assert max(panels[-1].lines[-1].get_ydata()) == 0.9


def test_every_budget_has_its_tick(monkeypatch, tmp_path):
    table = rows("dpsgd", 0.2, "as-published", None, None) + rows("secure-sgd", 0.6, "sound")
    panels = drawn(monkeypatch, budget_panels, table, tmp_path, stated={}, stated_rise=0.1)
    assert [label.get_text() for label in panels[-1].get_xticklabels()] == ["1", "2"]
    assert list(panels[-1].lines[0].get_xdata()) == [1.0, 2.0]
