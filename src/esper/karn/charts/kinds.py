"""The kinds of chart: lines with bands, a fan of quantiles, points with whiskers, bars, layers, and lanes. Numbers that are not finite
leave a gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from esper.karn.charts.axes import Axis, axis, within
from esper.karn.charts.canvas import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    RIGHT,
    TOTAL,
    WIDTH,
    Canvas,
    Kind,
    clean,
    colour,
    fill,
    lay,
    line,
    marker,
    short,
)
from esper.karn.charts.chart import Chart
from esper.karn.charts.series import Lane, Series
from esper.karn.charts.style import STAGE_WORDS, STAGES, paint
from esper.leyline.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 600
"""Points of a line that a screen can tell apart; of a longer one, the least and the largest of each stretch are drawn."""
TOLD = 150
"""Points of a series up to which each shows its figures under the pointer."""
LANE = 18
"""Height of a lane."""
Draw = Callable[[Canvas, "Axes"], None]


def lines(series: Sequence[Series], *, title: str, x_label: str, y_label: str, log_x: bool = False, whole_x: bool = False) -> Chart:
    """A line through the values of each series, in their order, with a band where there is an interval. A gap where a value is none.

    whole_x: x counts something, epochs or rounds, and is shown from its first value to its last.
    """

    def draw(canvas: Canvas, axes: Axes) -> None:
        for number, each in enumerate(series):
            for run in each.runs(log_x):
                if banded := [(each.x[place], *ends) for place in run if (ends := each.interval(place)) is not None]:
                    at, low, high = zip(*banded, strict=True)
                    axes.fill_between(at, low, high, color=colour(each, number), alpha=0.18, linewidth=0)
                x, y = _thin([each.x[place] for place in run], [each.y[place] for place in run])
                # A marker where a value stands alone, which a line would not show.
                axes.plot(x, y, **(marker(each, number) if len(run) == 1 else line(each, number)))

    return _plane(series, draw, title=title, x_label=x_label, y_label=y_label, log_x=log_x, kind="line", whole_x=whole_x)


def fan(
    at: Sequence[float], quantiles: Mapping[str, Sequence[float]], series: Sequence[Series] = (), *, title: str, x_label: str, y_label: str
) -> Chart:
    """Many courses as the band of their middle half, a wider one from the tenth to the ninetieth per cent, and their median; and lines
    for what they are compared with. quantiles: by "10", "25", "50", "75" and "90"."""
    outer = Series("", at, quantiles["50"], quantiles["10"], quantiles["90"], colour=0, dash=0)
    median = Series("median", at, quantiles["50"], quantiles["25"], quantiles["75"], colour=0, dash=0)
    others = [Series(each.name, each.x, each.y, colour=number, dash=number) for number, each in enumerate(series, start=1)]
    return lines([outer, median, *others], title=title, x_label=x_label, y_label=y_label, whole_x=True)


def points(series: Sequence[Series], *, title: str, x_label: str, y_label: str, log_x: bool = False, diagonal: bool = False) -> Chart:
    """A point for each value, with a whisker where there is an interval and a word where there is a label. diagonal: with a line along
    which x and y are equal."""

    def draw(canvas: Canvas, axes: Axes) -> None:
        if diagonal:
            axes.axline((0.0, 0.0), slope=1.0, color=paint("faint"), linewidth=1, linestyle=(0, (3, 3)))
        for number, each in enumerate(series):
            shown = [place for run in each.runs(log_x) for place in run]
            if len(shown) > TOLD:
                x, y = [each.x[place] for place in shown], [each.y[place] for place in shown]
                axes.plot(x, y, alpha=0.6, clip_on=False, **{**marker(each, number), "markersize": 4})
                continue
            for place in shown:
                if (ends := each.interval(place)) is not None:
                    _whisker(axes, each.x[place], ends, colour(each, number))
                name = f" {each.labels[place]}" if each.labels is not None else ""
                about = canvas.tip(f"{each.name}{name}: {each.x[place]:.4g}, {each.y[place]:.4g}")
                axes.plot([each.x[place]], [each.y[place]], gid=about, clip_on=False, **marker(each, number))
                if each.labels is not None and each.labels[place]:
                    share = axes.transAxes.inverted().transform(axes.transData.transform((each.x[place], each.y[place])))[0]
                    beside, anchor = (8, "left") if share < 0.7 else (-8, "right")
                    axes.annotate(
                        clean(short(each.labels[place], 48)),
                        (each.x[place], each.y[place]),
                        xytext=(beside, 6),
                        textcoords="offset points",
                        ha=anchor,
                        annotation_clip=False,
                    )

    return _plane(series, draw, title=title, x_label=x_label, y_label=y_label, log_x=log_x, kind="point")


def bars(names: Sequence[str], series: Sequence[Series], *, title: str, y_label: str) -> Chart:
    """A group of bars for each name, one bar for each series, from 0 up or down."""
    for each in series:
        if len(each.y) != len(names):
            raise ConfigError(f"series {each.name!r} has {len(each.y)} values for {len(names)} names; expected as many")

    def draw(canvas: Canvas) -> None:
        top = canvas.head(title, series, "bar")
        tallest = [value for each in series for place in range(len(names)) for value in (each.y[place], *(each.interval(place) or ()))]
        shown = [value for value in tallest if math.isfinite(value)]
        if not shown:
            canvas.nothing(top)
            return
        texts = [short(name, 24) for name in names]
        longest, across = max(map(len, texts)) * LETTER, (WIDTH - LEFT - RIGHT) / len(names)
        turned = longest > across - 4
        bottom = BOTTOM - 14 + (min(longest, 130) * 0.6 if turned else 0)
        axes = canvas.axes(LEFT, top, WIDTH - RIGHT, HEIGHT - bottom)
        lay(axes, "y", axis([0.0, *shown], counts=True), y_label)
        axes.set_xlim(-0.5, len(names) - 0.5)
        turn: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if turned else {}
        axes.set_xticks(range(len(names)), [clean(text) for text in texts], **turn)
        width = min(0.8 / len(series), 60 / across)
        gap = 2 / across
        for number, each in enumerate(series):
            for group, name in enumerate(names):
                value = each.y[group]
                if not math.isfinite(value):
                    continue
                left = group + (number - len(series) / 2) * width + gap / 2
                about = canvas.tip(f"{each.name}, {name}: {value:.4g}")
                axes.bar([left], [value], width=width - gap, align="edge", gid=about, linewidth=0, **fill(each, number))
                axes.patches[-1].set_gid(about)
                if (ends := each.interval(group)) is not None:
                    _whisker(axes, left + (width - gap) / 2, ends, paint("ink"))
        axes.spines["bottom"].set_visible(False)
        axes.axhline(0.0, color=paint("faint"), linewidth=1)

    return Chart(title=title, draw=draw)


def layers(series: Sequence[Series], *, title: str, x_label: str, y_label: str, total: Series | None = None) -> Chart:
    """Series on top of each other at every x, those below 0 downwards; x counts something, and each has its column. total: a line."""
    for each in series:
        if list(each.x) != list(series[0].x):
            raise ConfigError(f"series {each.name!r} has other x than {series[0].name!r}; layers need the same")

    def draw(canvas: Canvas) -> None:
        shown = [each for each in series if any(math.isfinite(value) and value != 0.0 for value in each.y)]
        entries: list[tuple[str, Kind, int, Series]] = [(short(each.name, 60), "bar", series.index(each), each) for each in shown]
        if total is not None and total.name:
            entries.append((short(total.name, 60), "total", 0, total))
        canvas.head(title, [Series("", [], [])], "bar")
        top = canvas.legend(entries)
        if not shown:
            canvas.nothing(top)
            return
        at, values = _columns(series[0].x, [each.y for each in shown])
        above, below = np.clip(values, 0.0, None).cumsum(axis=0), np.clip(values, None, 0.0).cumsum(axis=0)
        ends = [float(above[-1].max()), float(below[-1].min()), 0.0]
        if total is not None:
            ends += [value for value in total.y if math.isfinite(value)]
        step = (at[-1] - at[0]) / (len(at) - 1) if len(at) > 1 else 1.0
        edges = np.repeat(np.append(at - step / 2, at[-1] + step / 2), 2)[1:-1]
        axes = canvas.axes(LEFT, top, WIDTH - RIGHT, HEIGHT - BOTTOM)
        lay(axes, "y", axis(ends, counts=True), y_label)
        ticks = within([float(value) for value in series[0].x], whole=True)
        lay(axes, "x", Axis(ticks.ticks, float(edges[0]), float(edges[-1])), x_label)
        axes.xaxis.grid(False)
        for place, each in enumerate(shown):
            number = series.index(each)
            for stack in (above, below):
                low = stack[place - 1] if place else np.zeros(len(at))
                if (stack[place] != low).any():
                    style = {"edgecolor": "none", **fill(each, number)}
                    axes.fill_between(edges, np.repeat(low, 2), np.repeat(stack[place], 2), linewidth=0, **style)
        axes.axhline(0.0, color=paint("faint"), linewidth=1)
        if total is not None:
            x, y = _thin([float(value) for value in total.x], [float(value) for value in total.y])
            axes.plot(x, y, clip_on=False, **{**TOTAL, **({} if len(x) > 1 else {"marker": "o", "markersize": 6})})

    return Chart(title=title, draw=draw)


def lanes(rows: Sequence[Lane], *, title: str, x_label: str, end: float, note: str = "") -> Chart:
    """A row for each lane, its stretches coloured by stage, with a cross where something ended. end: of x, which begins with 0.
    note: a line under it all."""
    height = 72 + LANE * max(len(rows), 2) + 46 + (18 if note else 0)

    def draw(canvas: Canvas) -> None:
        canvas.head(title, [Series("", [], [])], "bar")
        used = {span.stage for lane in rows for span in lane.spans}
        top = canvas.swatches({STAGE_WORDS[name]: pair[0] for name, pair in STAGES.items() if name in used})
        if not rows:
            canvas.nothing(top)
            return
        names = [short(lane.name, 28) for lane in rows]
        left = min(max(40.0, max(map(len, names)) * LETTER + 14), 200.0)
        axes = canvas.axes(left, top, WIDTH - RIGHT, top + LANE * len(rows))
        lay(axes, "x", within([0.0, max(end, 1.0)], whole=True), x_label)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [clean(name) for name in names])
        unit = (WIDTH - RIGHT - left) / max(end, 1.0)
        for row, lane in enumerate(rows):
            for span in lane.spans:
                wide = span.end - span.start
                axes.barh([row], [wide], left=[span.start], height=0.72, linewidth=0, color=STAGES[span.stage][0])
                axes.patches[-1].set_gid(canvas.tip(span.about or span.label))
                if span.label and len(span.label) * LETTER < wide * unit - 6:
                    style: dict[str, Any] = {"color": paint("ink"), "fontsize": 10, "va": "center_baseline"}
                    axes.text(span.start + 4 / unit, row, clean(span.label), **style)
            axes.plot(lane.ends, [row] * len(lane.ends), "x", color=paint("ink"), markersize=6, markeredgewidth=1.5, clip_on=False)
        if note:
            canvas.text(left, top + LANE * len(rows) + 54, note)

    return Chart(title=title, draw=draw, height=height)


# What they share


def _plane(
    series: Sequence[Series],
    draw: Draw,
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool,
    kind: Kind,
    whole_x: bool = False,
) -> Chart:
    """Title, legend and axes around what `draw` puts on them."""

    def whole(canvas: Canvas) -> None:
        top = canvas.head(title, series, kind)
        shown = [(each, place) for each in series for run in each.runs(log_x) for place in run]
        if not shown:
            canvas.nothing(top)
            return
        across = [float(each.x[place]) for each, place in shown]
        axes = canvas.axes(LEFT, top, WIDTH - RIGHT, HEIGHT - BOTTOM)
        lay(axes, "x", within(across, whole=True) if whole_x else axis(across, log=log_x), x_label)
        lay(axes, "y", axis([float(value) for each, place in shown for value in (each.y[place], *(each.interval(place) or ()))]), y_label)
        draw(canvas, axes)

    return Chart(title=title, draw=whole)


def _whisker(axes: Axes, across: float, ends: tuple[float, float], colour: str) -> None:
    axes.plot([across, across], ends, color=colour, linewidth=1.5, marker="_", markersize=8, markeredgewidth=1.5, clip_on=False)


def _thin(x: Sequence[float], y: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """A line with no more points than can be seen: the least and the largest y of each stretch, in their order."""
    if len(x) <= SHOWN:
        return x, y
    stretches = np.array_split(np.arange(len(x)), SHOWN // 2)
    values = np.asarray(y)
    ends = ({int(part[values[part].argmin()]), int(part[values[part].argmax()])} for part in stretches)
    kept = sorted({0, len(x) - 1}.union(*ends))
    return [x[place] for place in kept], [y[place] for place in kept]


def _columns(x: Sequence[float], layers: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Columns as a screen can tell them apart, each the mean of those that it stands for; what is not finite counts nothing."""
    at, values = np.asarray(x, dtype=float), np.nan_to_num(np.asarray(layers, dtype=float), nan=0.0, posinf=0.0, neginf=0.0)
    if len(at) <= SHOWN:
        return at, values
    parts = np.array_split(np.arange(len(at)), SHOWN)
    return np.array([at[part].mean() for part in parts]), np.stack([values[:, part].mean(axis=1) for part in parts], axis=1)
