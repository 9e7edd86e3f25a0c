"""What charts look like: colours by day and by night, dashes, markers. No drawing library is needed to know it.

Colours are those of Okabe and Ito, which people who see few colours can tell apart; series differ in dashes and markers too. A chart is
drawn in the colours of the day, each of which is one name of `PAINT`; in a page it takes them from the variables of `STYLE`.
"""

from __future__ import annotations

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07000", "#3a9bd0", "#555555")
DARK = ("#5ab4f0", "#ff8c42", "#2fc79a", "#eba0cb", "#f0c24a", "#a5d8f7", "#c0c0c0")
"""One colour a series, by day and by night; after the last one the first comes again, with other dashes."""
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 3), (9, 3, 2, 3))
"""Of lines, strokes and gaps: one for each series in turn, so that colour is not all that tells them apart."""
MARKERS = ("o", "s", "^", "D")
"""Of points: a circle, a square, a triangle, a diamond."""

STAGES = {
    "GERMINATED": ("#d8c9a0", "#7d6f4a"),
    "TRAINING": ("#86bfe6", "#2f6f9f"),
    "BLENDING": ("#f2a65e", "#c06a1c"),
    "HOLDING": ("#d9a5c4", "#a35f89"),
    "FOSSILIZED": ("#1f9e79", "#26b089"),
    "PRUNED": ("#9a9a9a", "#7a7a7a"),
    "LIVED": ("#b9c2c9", "#56616b"),
}
"""Of the stages of a seed's life, by day and by night. LIVED is a life of which the stages were not recorded."""
STAGE_WORDS = {name: "alive" if name == "LIVED" else name.lower() for name in STAGES}
"""The same as people read them."""

PAINT: dict[str, tuple[str, str]] = {
    **{f"series-{number}": pair for number, pair in enumerate(zip(LIGHT, DARK, strict=True))},
    **{f"stage-{name.lower()}": pair for name, pair in STAGES.items()},
    "ink": ("#1b1b1b", "#ececec"),
    "faint": ("#5c5c5c", "#a8a8a8"),
    "grid": ("#dcdcdc", "#3a3a3a"),
    "page": ("#fefefe", "#16181b"),
}
"""Every colour of a chart by its name: by day and by night. No two names have the same colour by day."""


def _variables(night: int) -> str:
    return ":root{" + "".join(f"--{name}:{pair[night]};" for name, pair in PAINT.items()) + "}"


STYLE = (
    f"{_variables(0)}\n"
    f"@media (prefers-color-scheme:dark){{{_variables(1)}}}\n"
    "svg.chart{max-width:100%;height:auto;font:12px system-ui,sans-serif}\n"
    "svg.chart *{stroke-linejoin:round;stroke-linecap:butt} svg.chart [data-tip]:hover{opacity:.7}"
)
"""The same for the head of a page."""


def paint(name: str) -> str:
    """A colour by day."""
    return PAINT[name][0]


def series_colour(number: int) -> str:
    """The colour of the series of that number, by day."""
    return LIGHT[number % len(LIGHT)]
