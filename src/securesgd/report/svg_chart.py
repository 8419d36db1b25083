"""A line chart as SVG inside the page: its colours are the page's variables, so it follows dark mode and print.

The text is a function of the lines alone: the same records give the same characters whatever is installed, so a check
of the page compares its charts, too.
"""

__all__ = ["COLOURS", "Chart", "Line", "staircase"]

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

COLOURS = 8
"""The page has so many colours for lines, --c0 to --c7."""
_WIDTH, _HEIGHT = 440, 264
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 12, 44
_GRID = 2  # positions per unit of the drawing: corners closer than that are one

Corner = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through corners from left to right, in the units of the axes."""

    label: str
    corners: Sequence[Corner]
    colour: int = 0
    dash: str = ""
    """A class of the page: "" (solid), dashed, dotted, dash-dot."""
    marked: bool = False
    """Whether each corner has a point."""

    @property
    def swatch(self) -> Markup:
        """The line as a legend shows it."""
        shape = Markup('<path d="M1 5H27"/>') + (Markup('<circle cx="14" cy="5" r="3"/>') if self.marked else "")
        return Markup('<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><g class="{}">{}</g></svg>').format(
            self._classes, shape
        )

    @property
    def _classes(self) -> str:
        return f"line c{self.colour % COLOURS} {self.dash}".strip()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over two axes that begin at 0, or at `y_start`; what is to the right of `x_end` is not drawn."""

    title: str
    lines: Sequence[Line]
    x_label: str
    y_label: str
    x_end: float
    y_end: float = 1.0
    y_start: float = 0.0
    y_ticks: Sequence[tuple[float, str]] = ()
    """Places and texts; round numbers if not given."""
    level: tuple[float, str] | None = None
    """A height that is marked over the whole width, and what it is called."""
    points: Sequence[tuple[float, float, str]] = ()
    """Single points with a text beside them."""

    @property
    def description(self) -> str:
        """What somebody who does not see the chart should know."""
        ends = "; ".join(
            f"{line.label}: from {line.corners[0][1]:.3g} to {line.corners[-1][1]:.3g}" for line in self.lines
        )
        return f"{self.title}: {self.y_label} against {self.x_label}. {ends}."

    @property
    def svg(self) -> Markup:
        """The chart as an element of the page."""
        parts = [*self._axes(), *(self._line(line) for line in self.lines)]
        for x, y, text in self.points:
            left = self._x(x) > _WIDTH * 0.6
            place = (self._x(x) - 8 if left else self._x(x) + 8, self._y(y) + 4)
            parts.append(Markup('<circle class="point" cx="{}" cy="{}" r="4"/>').format(self._x(x), self._y(y)))
            parts.append(_text(place, text, "end" if left else "start"))
        return Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
            _WIDTH, _HEIGHT, self.description, Markup("").join(parts)
        )

    def _x(self, value: float) -> float:
        return _position(_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.x_end)

    def _y(self, value: float) -> float:
        share = (value - self.y_start) / (self.y_end - self.y_start)
        return _position(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share)

    def _axes(self) -> Iterable[Markup]:
        right, low = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        for height, text in self.y_ticks or [(tick, f"{tick:g}") for tick in _round_numbers(self.y_end)]:
            y = self._y(height)
            yield Markup('<path class="grid" d="M{} {}H{}"/>').format(_LEFT, y, right)
            yield _text((_LEFT - 7, y + 4), text, "end")
        for tick in _round_numbers(self.x_end):
            x = self._x(tick)
            yield Markup('<path class="grid" d="M{} {}V{}"/>').format(x, _TOP, low)
            yield _text((x, low + 17), f"{tick:g}", "middle")
        yield Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(_LEFT, _TOP, low, right)
        yield _text(((_LEFT + right) / 2, _HEIGHT - 6), self.x_label, "middle")
        middle = (_TOP + low) / 2
        yield Markup('<text x="12" y="{}" text-anchor="middle" transform="rotate(-90 12 {})">{}</text>').format(
            middle, middle, self.y_label
        )
        if self.level is not None:
            y = self._y(self.level[0])
            yield Markup('<path class="level" d="M{} {}H{}"/>').format(_LEFT, y, right)
            yield _text((_LEFT + 6, y - 5), self.level[1], "start")

    def _line(self, line: Line) -> Markup:
        corners = _thinned([(self._x(x), self._y(y)) for x, y in _cut(line.corners, self.x_end)])
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in corners)
        points = corners if line.marked else []
        circles = Markup("").join(Markup('<circle cx="{:g}" cy="{:g}" r="3.5"/>').format(*place) for place in points)
        return Markup('<g class="{}"><title>{}</title><path d="{}"/>{}</g>').format(
            line._classes, line.label, path, circles
        )


def staircase(radii: Sequence[float], count: int) -> list[Corner]:
    """Return the share of `count` examples that have at least each radius, down from all of `radii` at 0 to none."""
    corners, left = [(0.0, len(radii) / count)], len(radii)
    for radius in sorted(radii):
        left -= 1
        corners += [(float(radius), corners[-1][1]), (float(radius), left / count)]
    return corners


def _cut(corners: Sequence[Corner], end: float) -> list[Corner]:
    """Return the corners up to `end`; a line that goes on ends there, at the height it comes from."""
    kept = [corner for corner in corners if corner[0] <= end]
    return kept if len(kept) == len(corners) else [*kept, (end, kept[-1][1])]


def _thinned(corners: Sequence[Corner]) -> list[Corner]:
    """Return the first and the last corner of each position on the horizontal axis."""
    kept: list[Corner] = []
    for corner in corners:
        if len(kept) > 1 and kept[-1][0] == kept[-2][0] == corner[0]:
            kept[-1] = corner
        elif not kept or kept[-1] != corner:
            kept.append(corner)
    return kept


def _position(value: float) -> float:
    return math.floor(value * _GRID + 0.5) / _GRID


def _round_numbers(end: float, most: int = 6) -> list[float]:
    """Return up to `most` + 1 round numbers from 0 to `end`."""
    power = 10.0 ** math.floor(math.log10(end / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor * most >= end * (1 - 1e-9))
    return [float(f"{step * k:.12g}") for k in range(int(end / step * (1 + 1e-9)) + 1)]


def _text(place: Corner, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:g}" y="{:g}" text-anchor="{}">{}</text>').format(*place, anchor, escape(text))
