"""Figures 2–5 show all that is in the rows: no line is cut off, none is missing."""

from matplotlib.figure import Figure

from securesgd.reproduce.attack_plots import attacks_figure, budget_panels, certified_panels
from securesgd.reproduce.plots import STYLES, accuracy_figure, line_styles, ways_figure


def rows(method, share, protocol, way="uniform", robust_epsilon=1.0, attacks=("fgsm", "madry")):
    columns = {}
    for name in ("clean", "attacked", "certified_clean", "certified_attacked", "published_attacked"):
        columns |= {name: share, f"{name}_lower": share - 0.05, f"{name}_upper": share + 0.05}
    return [
        {
            "dataset": "digits", "network": "digits-cnn", "method": method, "way": way, "epsilon": epsilon, "seed": 0,
            "robust_epsilon": robust_epsilon, "examples": 10, "guaranteed": 1, "protocol": protocol,
            "attack": attack, "budget": budget, **columns,
        }
        for attack in attacks
        for epsilon, budget in ((1.0, 0.01), (2.0, 0.1))
    ]  # fmt: skip


def drawn(monkeypatch, draw, table, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    draw(table, tmp_path / "figure.png")
    return figures[0].axes


def test_lines_drawn_last_are_not_cut_off(monkeypatch, tmp_path):
    """Panels share their scale: it must be that of the highest line, wherever that is."""
    table = rows("pixeldp", 0.2, "as-published") + rows("pixeldp", 0.3, "sound")
    table += rows("hgm-pixeldp", 0.9, "sound", "learned", 8.0)
    panels = drawn(monkeypatch, certified_panels, table, tmp_path)
    assert [len(axes.lines) for axes in panels] == [1, 1, 2, 2]
    for axes in panels:
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] >= 0.95
    assert max(panels[-1].lines[-1].get_ydata()) == 0.9


def test_every_budget_has_its_tick(monkeypatch, tmp_path):
    table = rows("dpsgd", 0.2, "as-published", None, None) + rows("secure-sgd", 0.6, "sound")
    panels = drawn(monkeypatch, budget_panels, table, tmp_path)
    assert [label.get_text() for label in panels[-1].get_xticklabels()] == ["1", "2"]
    assert list(panels[-1].lines[0].get_xdata()) == [1.0, 2.0]


def test_a_new_method_or_attack_is_drawn(monkeypatch, tmp_path):
    """Without a row in any table of names and styles."""
    attacks = ("mine.attacks:shift", "fgsm")
    table = [row for method in ("dpsgd", "mine", "other") for row in rows(method, 0.5, "sound", None, None, attacks)]
    panels = drawn(monkeypatch, budget_panels, table, tmp_path)
    assert [axes.get_title() for axes in panels[2:]] == ["FGSM, sound", "mine.attacks:shift, sound"]
    assert [len(axes.lines) for axes in panels] == [0, 0, 3, 3]
    panels = drawn(monkeypatch, attacks_figure, table, tmp_path)
    assert [len(axes.lines) for axes in panels] == [6, 6]  # a solid and a dashed one for each method
    assert [text.get_text() for text in panels[-1].get_legend().get_texts()] == ["dpsgd", "mine", "other", "certified"]
    table = [row | {"test_images": 10, "test_accuracy": 0.5} for row in table]
    (axes,) = drawn(monkeypatch, accuracy_figure, table, tmp_path)
    assert [line.get_label() for line in axes.lines] == ["dpsgd", "mine", "other"]


def test_no_line_joins_two_data_sets(monkeypatch, tmp_path):
    row = {"method": "adlm", "seed": 0, "test_images": 10, "test_accuracy": 0.5}
    table = [row | {"dataset": name, "epsilon": epsilon} for name, epsilon in (("mnist", 0.3), ("cifar10", 2.5))]
    (axes,) = drawn(monkeypatch, accuracy_figure, table, tmp_path)
    assert sorted(line.get_label() for line in axes.lines) == ["adlm, cifar10", "adlm, mnist"]
    assert axes.get_title() == "cifar10 and mnist, 10 test images, 1 seed"


def test_a_new_way_is_drawn(monkeypatch, tmp_path):
    table = [{"way": way, "seed": 0, "examples": 5, "draws": 9, "certified_at_0.1": 0.5} for way in ("mine", "prior")]
    (axes,) = drawn(monkeypatch, ways_figure, table, tmp_path)
    assert [line.get_label() for line in axes.lines] == ["prior", "mine"]


def test_no_two_lines_look_the_same_while_there_are_styles():
    styles = line_styles(["mine", "secure-sgd", "dpsgd", "other"])
    assert len(set(styles.values())) == 4
    assert styles["dpsgd"] == STYLES["dpsgd"]
    assert len(line_styles(map(str, range(20)))) == 20
