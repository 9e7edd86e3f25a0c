"""Charts: descriptions of lines, points, bars, layers and lanes that become inline SVG, PNG files, or figures for a notebook."""

from esper.karn.charts.chart import Chart
from esper.karn.charts.kinds import bars, fan, lanes, layers, lines, points
from esper.karn.charts.series import Lane, Series, Span
from esper.karn.charts.style import STYLE

__all__ = ["STYLE", "Chart", "Lane", "Series", "Span", "bars", "fan", "lanes", "layers", "lines", "points"]
