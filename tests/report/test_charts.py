"""Charts are drawn from the rows and say so in their text."""

import re
from importlib.resources import files

import numpy as np
import pytest

from securesgd.models.redistribution import Redistribution, prior, uniform
from securesgd.report.charts import attack_charts, certified_charts, noise_picture
from securesgd.report.robustness import side_by_side
from securesgd.report.svg_chart import COLOURS, Chart, Line, _round_numbers, staircase


def test_a_staircase_counts_those_with_at_least_the_radius():
    corners = staircase([0.3, 0.1, 0.1], 4)
    assert corners[0] == (0.0, 0.75)
    for radius, share in ((0.05, 0.75), (0.1, 0.75), (0.2, 0.25), (0.3, 0.25)):
        assert next(y for x, y in corners if x >= radius) == pytest.approx(share)
    assert corners[-1] == (0.3, 0.0)
    assert staircase([], 4) == [(0.0, 0.0)]


def chart(corners, **changes):
    settings = {"title": "t", "x_label": "x", "y_label": "y", "x_end": 1.0} | changes
    return Chart(lines=[Line(label="<b>&", corners=corners)], **settings)


def path(drawn):
    (d,) = re.findall(r'</title><path d="M(.*?)"', drawn.svg)
    return [tuple(map(float, corner.split())) for corner in d.split("L")]


def test_a_line_starts_and_ends_where_its_numbers_are():
    start, end = path(chart([(0.0, 0.0), (1.0, 1.0)]))
    assert start == (48, 220)  # the corner of the axes
    assert end == (426, 12)
    assert path(chart([(0.0, 0.5), (2.0, 0.5), (2.0, 0.0)]))[-1] == (426, 116)  # cut where the axis ends
    assert path(chart([(0.0, 10.0), (1.0, 10.0)], y_start=5.0, y_end=15.0)) == [(48, 116), (426, 116)]


def test_many_corners_are_drawn_as_few_and_none_moves():
    radii = np.random.default_rng(0).uniform(0, 1, 20_000)
    drawn = path(chart(staircase(radii, 20_000)))
    assert len(drawn) < 2_000
    for x, y in drawn:
        radius, share = (x - 48) / 378, (220 - y) / 208
        assert abs((radii >= radius).mean() - share) < 0.01


def test_names_in_a_chart_are_text_and_it_can_be_read_aloud():
    drawn = str(chart([(0.0, 0.25), (1.0, 0.75)]).svg)
    assert "<b>" not in drawn
    assert 'role="img" aria-label="t: y against x. &lt;b&gt;&amp;: from 0.25 to 0.75."' in drawn


@pytest.mark.parametrize("end", [1e-9, 0.07, 0.99, 1.0, 6.0, 7.3, 4000.0, 1e12])
def test_ticks_are_few_round_and_on_the_axis(end):
    ticks = _round_numbers(end)
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] <= end
    assert all(len(f"{tick:g}") <= 7 for tick in ticks)


def test_the_page_has_every_colour_and_dash_of_a_line():
    style = (files("securesgd.report") / "page.html.j2").read_text()
    assert style.count("--c0: #") == 2  # light and dark
    for number in range(COLOURS):
        assert f".c{number} {{ --c: var(--c{number}); }}" in style
    assert all(f".{dash} path" in style for dash in ("dashed", "dotted", "dash-dot"))


def certificate(radius, family="smoothing", **changes):
    rules = ("tight", "interval", "linear") if family == "interval" else ("tight", "analytic", "as-published")
    radii = {f"radius_{rule}": radius for rule in rules}
    return {"norm": "linf", "family": family, "label": 1, "prediction": 1, "abstained": False} | radii | changes


def test_both_families_are_in_one_chart_if_both_are_there():
    votes = [certificate(0.1), certificate(0.2, prediction=2), certificate(0.3, abstained=True)]
    assert list(certified_charts(votes)) == ["linf"]
    assert [line.label for line in certified_charts(votes)["linf"].lines][2] == "as-published (without guarantee)"
    charts = certified_charts([*votes, certificate(0.05, "interval"), certificate(0.15, "interval")])
    assert list(charts) == ["linf", "interval", "both"]
    by_votes, by_intervals = charts["both"].lines
    assert (by_votes.corners[0][1], by_votes.corners[-1][0]) == (1 / 3, 0.1)
    assert (by_intervals.corners[0][1], by_intervals.corners[-1][0]) == (1.0, 0.15)
    assert by_votes.colour != by_intervals.colour
    other = certified_charts([*votes, certificate(1.0, "interval", norm="box")])
    assert "both" not in other  # a box is no radius


def test_families_side_by_side_are_compared_at_the_radii_that_both_have():
    def table(key, radii, shares, sure):
        return {
            "key": key, "norm": "linf", "about": "the network", "examples": "9", "sure": sure, "radii": radii,
            "rows": [{"rule": "tight", "shares": shares, "mean": 0.1}, {"rule": "other", "shares": [], "mean": 0.0}],
        }  # fmt: skip

    votes = table("linf", ["0.01", "0.05"], ["a", "b"], "0.999")
    both = side_by_side([votes, table("interval", ["0.05", "0.1"], ["c", "d"], "certain")])
    assert both["radii"] == ["0.05"]
    assert [(row["family"], row["shares"], row["sure"]) for row in both["rows"]] == [
        ("smoothing", ["b"], "0.999"), ("intervals", ["c"], "certain")
    ]  # fmt: skip
    assert side_by_side([votes]) is None


def test_attacks_are_drawn_against_their_budgets():
    def row(attack, budget, share):
        return {"attack": attack, "protocol": "sound", "norm": "linf", "budget": budget,
                "clean": {"share": 0.9}, "attacked": {"share": share}}  # fmt: skip

    rows = [row("fgsm", "0.05", 0.7), row("fgsm", "0.1", 0.5), row("madry", "0.05", 0.6)]
    (drawn,) = attack_charts(rows)
    assert [line.corners for line in drawn.lines] == [[(0, 0.9), (0.05, 0.7), (0.1, 0.5)], [(0, 0.9), (0.05, 0.6)]]
    assert attack_charts(rows[:1]) == []


def test_noise_is_a_map_of_pixels_or_a_line():
    picture = noise_picture(prior((2, 6, 5)))
    assert [(tile["width"], tile["height"]) for tile in picture["tiles"]] == [(5, 6)]
    assert picture["tiles"][0]["uri"].startswith("data:image/png;base64,")
    assert float(picture["low"]) < 1 < float(picture["high"])
    assert (noise_picture(uniform((1, 3, 3)))["low"], noise_picture(uniform((1, 3, 3)))["high"]) == ("0.5", "2")
    r = Redistribution(way="w", shape=(4,), per="unit", r=(0.01, 0.01, 0.01, 0.97), details={})
    line = noise_picture(r)["chart"].lines[0]
    assert [round(10**height, 3) for _, height in line.corners] == [1, 1, 1, round(97**0.5, 3)]
