"""The sheet that a chart is drawn on: title, legend and axes at places in its own units, by matplotlib and without a display.

Names that come from elsewhere are text and nothing but text: control characters are replaced, and a dollar sign begins no formula.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from esper.karn.charts.axes import Axis
from esper.karn.charts.series import Series
from esper.karn.charts.style import DASHES, MARKERS, paint, series_colour
from esper.leyline.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 640, 360
"""Of a chart, in the units of its view box; a page scales it."""
LEFT, RIGHT, BOTTOM = 64, 20, 52
"""Room for the labels of the axes, and beside the last tick."""
LETTER = 6.6
"""Width of a letter at the size of legends and labels, roughly: what is laid out by it has room to spare."""
SIZE, TITLE_SIZE = 12, 14
"""Of letters."""
TOTAL: dict[str, Any] = {"color": paint("ink"), "linewidth": 2}
"""How a line is drawn that sums others up."""
Kind = Literal["line", "point", "bar", "total"]


@contextmanager
def drawing(**settings: Any) -> Iterator[None]:
    """Matplotlib as it is without anybody's settings, and silent about letters that its font does not have: a browser has them. Raises
    ConfigError where it cannot be imported."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)  # where its cache lies is of no interest here
    try:
        try:
            from matplotlib import style
        except ImportError as error:
            raise ConfigError(f"charts need matplotlib, which cannot be imported ({error}); install it: pip install matplotlib") from error
        ours: dict[Any, Any] = {"font.size": SIZE, "text.parse_math": False, "text.color": paint("faint"), **settings}
        with style.context(["default", ours]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
            yield
    finally:
        logger.setLevel(level)


class Canvas:
    """A figure and what stands on it so far. Places are in units of the view box, from its top left corner."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
        self.tips: dict[str, str] = {}
        """What is shown under the pointer, by the gid of what it points at."""

    def tip(self, text: str) -> str:
        """A gid for something that shows this under the pointer."""
        gid = f"tip{len(self.tips)}"
        self.tips[gid] = clean(text)
        return gid

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text on the sheet; y is where its letters stand."""
        self.figure.text(x / self.width, 1 - y / self.height, clean(text), va="baseline", **style)

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Axes between these edges."""
        size = (left / self.width, 1 - bottom / self.height, (right - left) / self.width, (bottom - top) / self.height)
        made = self.figure.add_axes(size, facecolor="none")
        for side, spine in made.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(paint("faint"))
        made.tick_params(which="both", length=0, pad=6, labelcolor=paint("faint"), labelsize=SIZE)
        made.set_axisbelow(True)
        return made

    def nothing(self, top: float) -> None:
        """Say that there is nothing to show."""
        self.text(self.width / 2, (top + self.height) / 2, "nothing to show", ha="center")

    def head(self, title: str, series: Sequence[Series], kind: Kind) -> float:
        """Title and legend; returns where the drawing may begin. One series alone needs no legend."""
        self.text(LEFT, 20, short(title, 66), fontsize=TITLE_SIZE, fontweight="bold", color=paint("ink"))
        entries = [(number, each) for number, each in enumerate(series) if each.name]
        return 36 if len(series) == 1 else self.legend([(short(each.name, 60), kind, number, each) for number, each in entries])

    def legend(self, entries: Sequence[tuple[str, Kind, int, Series]]) -> float:
        """Names with what they are drawn as, in as many rows as they need; returns where the drawing may begin."""
        across, down = float(LEFT), 40.0
        for name, kind, number, each in entries:
            wide = 30 + len(name) * LETTER + 12
            if across > LEFT and across + wide > self.width - RIGHT:
                across, down = float(LEFT), down + 18
            self._key(kind, number, each, across, down - 4)
            self.text(across + 30, down, name)
            across += wide
        return down + 14 if entries else 36

    def swatches(self, colours: dict[str, str]) -> float:
        """The same for colours by their names."""
        across, down = float(LEFT), 40.0
        for name, colour in colours.items():
            wide = 20 + len(name) * LETTER + 12
            if across > LEFT and across + wide > self.width - RIGHT:
                across, down = float(LEFT), down + 18
            self._box(across, down - 10, 12, 12, facecolor=colour)
            self.text(across + 18, down, name)
            across += wide
        return down + 14

    def _key(self, kind: Kind, number: int, each: Series, across: float, middle: float) -> None:
        from matplotlib.lines import Line2D

        if kind == "bar":
            self._box(across + 12, middle - 6, 12, 12, **fill(each, number))
            return
        ends = [across + 14] if kind == "point" else [across, across + 24]
        drawn = Line2D([end / self.width for end in ends], [1 - middle / self.height] * len(ends), transform=self.figure.transFigure)
        drawn.set(**(TOTAL if kind == "total" else line(each, number) if kind == "line" else marker(each, number)))
        self.figure.add_artist(drawn)

    def _box(self, left: float, top: float, width: float, height: float, **style: Any) -> None:
        from matplotlib.patches import Rectangle

        corner = (left / self.width, 1 - (top + height) / self.height)
        size = (width / self.width, height / self.height)
        self.figure.add_artist(Rectangle(corner, *size, transform=self.figure.transFigure, linewidth=0, **style))


def lay(axes: Axes, direction: Literal["x", "y"], found: Axis, label: str) -> None:
    """Give axes a direction: its ends, ticks, grid and label."""
    from matplotlib.ticker import NullLocator

    of = axes.xaxis if direction == "x" else axes.yaxis
    if found.log:
        (axes.set_xscale if direction == "x" else axes.set_yscale)("log")
    (axes.set_xlim if direction == "x" else axes.set_ylim)(found.low, found.high)
    of.set_ticks(found.ticks, labels=found.texts())
    of.set_minor_locator(NullLocator())
    of.grid(True, color=paint("grid"), linewidth=1)
    of.set_label_text(clean(label), color=paint("faint"), fontsize=SIZE)


def line(each: Series, number: int) -> dict[str, Any]:
    """How the line of the series of that number is drawn."""
    dash = DASHES[(number if each.dash is None else each.dash) % len(DASHES)]
    # Dashes are counted in widths of the line.
    return {"color": colour(each, number), "linewidth": 2, "linestyle": (0, tuple(length / 2 for length in dash)) if dash else "-"}


def marker(each: Series, number: int) -> dict[str, Any]:
    """The same of its points."""
    style = MARKERS[(number if each.dash is None else each.dash) % len(MARKERS)]
    return {"color": colour(each, number), "marker": style, "markersize": 7, "markeredgewidth": 0, "linestyle": "none"}


def fill(each: Series, number: int) -> dict[str, Any]:
    """The same of its bars and layers: once the colours come again, with a hatch."""
    again = (number if each.colour is None else each.colour) >= 7
    return {"facecolor": colour(each, number), **({"hatch": "///", "edgecolor": paint("page")} if again else {})}


def colour(each: Series, number: int) -> str:
    """The colour of the series of that number."""
    return series_colour(number if each.colour is None else each.colour)


def clean(text: str) -> str:
    """Text that every file can hold: what is no letter is shown as a box."""
    return "".join("\ufffd" if ord(each) < 32 or 0x7F <= ord(each) < 0xA0 or 0xD800 <= ord(each) < 0xE000 else each for each in text)


def short(text: str, letters: int) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= letters else text[: letters - 1] + "…"
