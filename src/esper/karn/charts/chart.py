"""A chart: a description that becomes a figure, an inline SVG or a PNG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.karn.charts.canvas import HEIGHT, WIDTH, Canvas, drawing
from esper.karn.charts.style import paint
from esper.leyline.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 144
"""Two pixels for each unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart; nothing is drawn before it is asked for. Every method raises ConfigError where matplotlib cannot be imported."""

    title: str
    draw: Callable[[Canvas], None]
    """Puts everything on a sheet."""
    width: float = WIDTH
    height: float = HEIGHT

    def figure(self) -> Figure:
        """A matplotlib figure of its own, by day, that needs neither a display nor pyplot."""
        with drawing():
            figure = self._drawn().figure
            figure.set_facecolor(paint("page"))
            return figure

    def svg(self) -> str:
        """An SVG element for a page, the same bytes for the same chart. In a page with style.STYLE it follows day and night."""
        from esper.karn.charts.svg import to_svg

        with drawing(**{"svg.fonttype": "none", "svg.hashsalt": "esper", "svg.id": None}):
            return to_svg(self._drawn(), self.title)

    def png(self, path: Path) -> None:
        """Write it as a PNG, by day. Raises RunError where that cannot be done."""
        with drawing():
            figure = self._drawn().figure
            try:
                figure.savefig(path, format="png", dpi=PNG_DPI, facecolor=paint("page"), metadata={"Software": None})
            except OSError as error:
                raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return self.svg()

    def _drawn(self) -> Canvas:
        canvas = Canvas(self.width, self.height)
        self.draw(canvas)
        return canvas
