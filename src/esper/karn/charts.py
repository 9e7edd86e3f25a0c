"""Charts as inline SVG: lines, points with error bars, and bars, each a string to put into a page.

Nothing is needed to show them but a browser. Colours are those of Okabe and Ito, which people who see few colours can tell apart, and
series differ in dashes and markers too; in the dark they are lighter. Numbers that are not finite leave a gap. `STYLE` goes into the
page once; text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from esper.leyline.errors import ConfigError

WIDTH, HEIGHT = 640, 360
"""Of a chart, in the units of its view box; a page scales it."""
LEFT, RIGHT, BOTTOM = 64, 20, 52
"""Room for the labels of the axes, and beside the last tick."""
LETTER = 6.6
"""Width of a letter at the size of legends and labels, roughly: what is laid out by it has room to spare."""
TICKS = 6
"""Ticks that an axis has, about."""
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07000", "#3a9bd0", "#555555")
DARK = ("#5ab4f0", "#ff8c42", "#2fc79a", "#eba0cb", "#f0c24a", "#a5d8f7", "#c0c0c0")
"""One colour a series, by day and by night; after the last one the first comes again, with other dashes."""
DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""Of lines: one for each series in turn, so that colour is not all that tells them apart."""


def _variables(colours: Sequence[str], ink: str, faint: str, grid: str) -> str:
    series = "".join(f"--series-{number}:{colour};" for number, colour in enumerate(colours))
    return f":root{{{series}--ink:{ink};--faint:{faint};--grid:{grid};}}"


STYLE = (
    f"{_variables(LIGHT, '#1b1b1b', '#5c5c5c', '#dcdcdc')}\n"
    f"@media (prefers-color-scheme:dark){{{_variables(DARK, '#ececec', '#a8a8a8', '#3a3a3a')}}}\n"
    "svg.chart{max-width:100%;height:auto;font:12px system-ui,sans-serif}\n"
    "svg.chart text{fill:var(--faint)} svg.chart .title{fill:var(--ink);font-weight:600;font-size:14px}\n"
    "svg.chart .grid{stroke:var(--grid)} svg.chart .axis{stroke:var(--faint)}\n"
    + "\n".join(f"svg.chart .s{n}{{stroke:var(--series-{n});fill:var(--series-{n})}}" for n in range(len(LIGHT)))
    + "\nsvg.chart .line{fill:none;stroke-width:2} svg.chart .band{stroke:none;opacity:.18} svg.chart .whisker{fill:none;stroke-width:1.5}"
    + "\nsvg.chart .bar{stroke:none} svg.chart .over{stroke:var(--ink);fill:none;stroke-width:1.5}"
)
"""What charts look like, for the head of a page: by day and by night."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values that belong together: one line, one kind of point, or one bar of every group."""

    name: str
    x: Sequence[float]
    """Of bars, not read: their groups are named."""
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """Ends of an interval around each y: a band of a line, a whisker of a point or bar."""
    labels: Sequence[str] | None = None
    """A word beside each point."""

    def __post_init__(self) -> None:
        for what in ("x", "low", "high", "labels"):
            values = getattr(self, what)
            if values is not None and len(values) != len(self.y):
                raise ConfigError(f"series {self.name!r} has {len(self.y)} values of y and {len(values)} of {what}; expected as many")
        if (self.low is None) != (self.high is None):
            raise ConfigError(f"series {self.name!r} has one end of an interval; expected low and high, or neither")

    def interval(self, place: int) -> tuple[float, float] | None:
        """The interval around a value, where it has one that can be shown."""
        if self.low is None or self.high is None:
            return None
        low, high = float(self.low[place]), float(self.high[place])
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None


@dataclass(frozen=True, slots=True)
class _Axis:
    """From values to places on the page."""

    ticks: tuple[float, ...]
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, value = (math.log10(each) for each in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


# The charts


def lines(series: Sequence[Series], *, title: str, x_label: str, y_label: str, log_x: bool = False) -> str:
    """A line through the values of each series, in their order, with a band where there is an interval. A gap where a value is none."""

    def draw(x: _Axis, y: _Axis) -> Iterator[str]:
        for number, each in enumerate(series):
            for run in _runs(each, log_x):
                if banded := [(place, ends) for place in run if (ends := each.interval(place)) is not None]:
                    corners = [(place, high) for place, (_, high) in banded] + [(place, low) for place, (low, _) in reversed(banded)]
                    drawn = " ".join(f"{_n(x.at(each.x[place]))},{_n(y.at(value))}" for place, value in corners)
                    yield f'<polygon class="band {_colour(number)}" points="{drawn}"/>'
                drawn = " ".join(f"{_n(x.at(each.x[place]))},{_n(y.at(each.y[place]))}" for place in run)
                yield f'<polyline class="line {_colour(number)}"{_dashes(number)} points="{drawn}"/>'
                for place in run:
                    # A marker where a value stands alone, which a line would not show; else room for the pointer alone.
                    yield _point(each, place, x, y, number, "" if len(run) == 1 else ' opacity="0"')

    return _plane(series, draw, title=title, x_label=x_label, y_label=y_label, log_x=log_x, kind="line")


def points(series: Sequence[Series], *, title: str, x_label: str, y_label: str, log_x: bool = False) -> str:
    """A point for each value, with a whisker where there is an interval and a word where there is a label."""

    def draw(x: _Axis, y: _Axis) -> Iterator[str]:
        for number, each in enumerate(series):
            for place in (place for run in _runs(each, log_x) for place in run):
                across = x.at(each.x[place])
                if (ends := each.interval(place)) is not None:
                    yield _whisker(across, y.at(ends[0]), y.at(ends[1]), f"whisker {_colour(number)}")
                yield _point(each, place, x, y, number)
                if each.labels is not None and each.labels[place]:
                    beside, anchor = (across + 8, "start") if across < WIDTH * 0.75 else (across - 8, "end")
                    where = f'x="{_n(beside)}" y="{_n(y.at(each.y[place]) - 6)}" text-anchor="{anchor}"'
                    yield f"<text {where}>{escape(each.labels[place])}</text>"

    return _plane(series, draw, title=title, x_label=x_label, y_label=y_label, log_x=log_x, kind="point")


def bars(names: Sequence[str], series: Sequence[Series], *, title: str, y_label: str) -> str:
    """A group of bars for each name, one bar for each series, from 0 up or down."""
    for each in series:
        if len(each.y) != len(names):
            raise ConfigError(f"series {each.name!r} has {len(each.y)} values for {len(names)} names; expected as many")
    top, legend = _head(title, series, "bar")
    tallest = [value for each in series for place in range(len(names)) for value in (each.y[place], *(each.interval(place) or ()))]
    shown = [value for value in tallest if math.isfinite(value)]
    if not shown:
        return _svg(title, [legend, _nothing(top)])
    longest = max(len(name) for name in names) * LETTER
    across = (WIDTH - LEFT - RIGHT) / len(names)
    turned = longest > across - 4
    bottom = BOTTOM - 14 + (min(longest, 130) * 0.6 if turned else 0)
    y = _axis([0.0, *shown], HEIGHT - bottom, top)
    drawn = [legend, *_y_grid(y, y_label)]
    width = min(0.8 * across / len(series), 60)
    for group, name in enumerate(names):
        middle = LEFT + (group + 0.5) * across
        for number, each in enumerate(series):
            value, left = each.y[group], middle + (number - len(series) / 2) * width
            if not math.isfinite(value):
                continue
            above, below = sorted((y.at(value), y.at(0.0)))
            about = f"<title>{escape(f'{each.name}, {name}: {value:.4g}')}</title>"
            size = f'x="{_n(left + 1)}" y="{_n(above)}" width="{_n(width - 2)}" height="{_n(below - above)}"'
            drawn.append(f'<rect class="bar {_colour(number)}" {size}>{about}</rect>')
            if (ends := each.interval(group)) is not None:
                drawn.append(_whisker(left + width / 2, y.at(ends[0]), y.at(ends[1]), "over"))
        below = HEIGHT - bottom + 16
        turn = f' transform="rotate(-35 {_n(middle)} {_n(below)})"' if turned else ""
        anchor = "end" if turned else "middle"
        drawn.append(f'<text x="{_n(middle)}" y="{_n(below)}" text-anchor="{anchor}"{turn}>{escape(_short(name, 24))}</text>')
    drawn.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_n(y.at(0.0))}" y2="{_n(y.at(0.0))}"/>')
    return _svg(title, drawn)


# What they share


def _plane(
    series: Sequence[Series],
    draw: Callable[[_Axis, _Axis], Iterator[str]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool,
    kind: Literal["line", "point"],
) -> str:
    """Title, legend and axes around what `draw` makes of the axes."""
    top, legend = _head(title, series, kind)
    shown = [(each, place) for each in series for run in _runs(each, log_x) for place in run]
    if not shown:
        return _svg(title, [legend, _nothing(top)])
    x = _axis([each.x[place] for each, place in shown], LEFT, WIDTH - RIGHT, log=log_x)
    y = _axis([value for each, place in shown for value in (each.y[place], *(each.interval(place) or ()))], HEIGHT - BOTTOM, top)
    drawn = [legend, *_y_grid(y, y_label)]
    for tick, text in zip(x.ticks, _texts(x), strict=True):
        at = _n(x.at(tick))
        drawn.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_n(top)}" y2="{HEIGHT - BOTTOM}"/>')
        drawn.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
    drawn.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    drawn.append(f'<text x="{_n((LEFT + WIDTH - RIGHT) / 2)}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    return _svg(title, [*drawn, *draw(x, y)])


def _runs(each: Series, log_x: bool) -> Iterator[list[int]]:
    """Places of values that follow one another without a gap."""
    run: list[int] = []
    for place, (x, y) in enumerate(zip(each.x, each.y, strict=True)):
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x):
            run.append(place)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _axis(values: Sequence[float], start: float, end: float, *, log: bool = False) -> _Axis:
    """An axis from the round number below the least value to the one above the largest."""
    low, high = float(min(values)), float(max(values))
    if log:
        low, high = (low / 1.5, high * 1.5) if low == high else (low, high)
        # A little room at both ends, as a power of what there is; ticks at 1, 2 and 5, or at powers of ten where there are many.
        room = (high / low) ** 0.04
        low, high = low / room, high * room
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1,) if len(powers) > TICKS else (1, 2, 5)
        ticks = tuple(step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high)
        if len(ticks) < 3:  # a short stretch, on which equal steps serve as well
            step = _round_step((high - low) / TICKS)
            ticks = tuple(number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1))
        return _Axis(ticks, low, high, start, end, log=True)
    if low == high:
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    step = _round_step((high - low) / TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(number * step for number in range(first, last + 1))
    return _Axis(ticks, ticks[0], ticks[-1], start, end)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def _texts(axis: _Axis) -> list[str]:
    """The ticks as people write them, all with the same number of decimals."""
    largest = max(map(abs, axis.ticks), default=0.0)
    if axis.log:
        return [_big(tick) if largest >= 10_000 else f"{tick:g}" for tick in axis.ticks]
    if largest >= 100_000:
        return [_big(tick) for tick in axis.ticks]
    step = axis.ticks[1] - axis.ticks[0]
    if step < 1e-4:
        return [f"{tick:.2g}" for tick in axis.ticks]
    decimals = next(number for number in range(6) if abs(step * 10**number - round(step * 10**number)) < 1e-6 * step * 10**number)
    return [f"{tick + 0.0:,.{decimals}f}" for tick in axis.ticks]


def _big(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _head(title: str, series: Sequence[Series], kind: Literal["line", "point", "bar"]) -> tuple[float, str]:
    """Where the drawing may begin, and title and legend above it; one series alone needs no legend."""
    drawn = [f'<text class="title" x="{LEFT}" y="20">{escape(_short(title, 74))}</text>']
    if len(series) == 1:
        return 36, drawn[0]
    across, down = float(LEFT), 40.0
    for number, each in enumerate(series):
        name = _short(each.name, 60)
        wide = 30 + len(name) * LETTER + 12
        if across > LEFT and across + wide > WIDTH - RIGHT:
            across, down = float(LEFT), down + 18
        if kind == "line":
            style = f'class="line {_colour(number)}"{_dashes(number)}'
            drawn.append(f'<line {style} x1="{_n(across)}" x2="{_n(across + 24)}" y1="{_n(down - 4)}" y2="{_n(down - 4)}"/>')
        elif kind == "bar":
            drawn.append(f'<rect class="bar {_colour(number)}" x="{_n(across + 12)}" y="{_n(down - 10)}" width="12" height="12"/>')
        else:
            drawn.append(_marker(across + 14, down - 4, number))
        drawn.append(f'<text x="{_n(across + 30)}" y="{_n(down)}">{escape(name)}</text>')
        across += wide
    return down + 14, "".join(drawn)


def _y_grid(y: _Axis, label: str) -> list[str]:
    middle = _n((y.start + y.end) / 2)
    drawn = [f'<text transform="rotate(-90)" x="-{middle}" y="14" text-anchor="middle">{escape(label)}</text>']
    for tick, text in zip(y.ticks, _texts(y), strict=True):
        at = _n(y.at(tick))
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{_n(y.at(tick) + 4)}" text-anchor="end">{text}</text>')
    return drawn


def _point(each: Series, place: int, x: _Axis, y: _Axis, number: int, style: str = "") -> str:
    """A marker, and what it stands for under the pointer."""
    name = f" {each.labels[place]}" if each.labels is not None else ""
    about = escape(f"{each.name}{name}: {each.x[place]:.4g}, {each.y[place]:.4g}")
    return f"<g{style}><title>{about}</title>{_marker(x.at(each.x[place]), y.at(each.y[place]), number)}</g>"


def _marker(across: float, down: float, number: int) -> str:
    """A circle, square, triangle or diamond, by the number of the series."""
    kind = f'class="{_colour(number)}"'
    if number % 4 == 0:
        return f'<circle {kind} cx="{_n(across)}" cy="{_n(down)}" r="4"/>'
    corners = {
        1: ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        2: ((0, -5), (5, 4), (-5, 4)),
        3: ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
    }[number % 4]
    drawn = " ".join(f"{_n(across + right)},{_n(down + below)}" for right, below in corners)
    return f'<polygon {kind} points="{drawn}"/>'


def _whisker(across: float, low: float, high: float, kind: str) -> str:
    left, right = _n(across - 4), _n(across + 4)
    path = f"M{left} {_n(low)}H{right}M{left} {_n(high)}H{right}M{_n(across)} {_n(low)}V{_n(high)}"
    return f'<path class="{kind}" d="{path}"/>'


def _colour(number: int) -> str:
    return f"s{number % len(LIGHT)}"


def _dashes(number: int) -> str:
    dashes = DASHES[number % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _nothing(top: float) -> str:
    return f'<text x="{WIDTH / 2:g}" y="{_n((top + HEIGHT) / 2)}" text-anchor="middle">nothing to show</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    content = "".join(parts)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">{content}</svg>'


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _n(value: float) -> str:
    """A coordinate with as many digits as can be seen."""
    return f"{value:.1f}".removesuffix(".0")
