"""Charts are SVG that a browser reads, with round ticks, gaps where there is no number, and escaped text."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from esper.karn.charts import Series, bars, lines, points
from esper.karn.page import Section, page, table
from esper.leyline.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


def _parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)


def _texts(drawn: str) -> list[str]:
    return [each.text or "" for each in _parsed(drawn).iter(f"{SVG}text")]


def test_a_line_has_a_gap_where_a_value_is_no_number() -> None:
    drawn = lines([Series("a", [0, 1, 2, 3, 4, 5], [1, 2, math.nan, 3, 4, math.inf])], title="t", x_label="x", y_label="y")
    runs = [each.get("points", "").split() for each in _parsed(drawn).iter(f"{SVG}polyline")]
    assert [len(run) for run in runs] == [2, 2]
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_ticks_are_round_numbers_that_enclose_the_values() -> None:
    drawn = points([Series("a", [0.3, 9.7], [61.2, 69.9])], title="t", x_label="x", y_label="y")
    ticks = [float(text) for text in _texts(drawn) if re.fullmatch(r"[\d.]+", text)]
    assert {0.0, 2.0, 10.0, 60.0, 62.0, 70.0} <= set(ticks)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    drawn = points([Series("a", [10, 100, 1000], [1, 1, 1])], title="t", x_label="x", y_label="y", log_x=True)
    places = [float(each.get("cx", "")) for each in _parsed(drawn).iter(f"{SVG}circle")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)


def test_a_short_logarithmic_axis_has_ticks_too() -> None:
    drawn = points([Series("a", [1.0, 1.2, 1.8], [1, 1, 1])], title="t", x_label="x", y_label="y", log_x=True)
    assert {"1", "1.2", "1.4", "1.6", "1.8"} <= set(_texts(drawn))


def test_points_have_whiskers_where_there_is_an_interval_and_labels_where_there_are_words() -> None:
    series = Series("a", [1, 2], [5, 6], [4, math.nan], [6, math.nan], ["wait", ""])
    drawn = points([series], title="t", x_label="x", y_label="y")
    assert len(list(_parsed(drawn).iter(f"{SVG}path"))) == 1
    assert "wait" in _texts(drawn)


def test_bars_stand_on_zero_on_either_side() -> None:
    drawn = bars(["up", "down"], [Series("a", [0, 1], [2, -1])], title="t", y_label="y")
    up, down = _parsed(drawn).iter(f"{SVG}rect")
    zero = float(up.get("y", "")) + float(up.get("height", ""))
    assert zero == pytest.approx(float(down.get("y", "")), abs=0.2)
    assert float(up.get("height", "")) == pytest.approx(2 * float(down.get("height", "")), abs=0.3)


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_nothing_to_show_is_said(values: list[float]) -> None:
    series = [Series("a", [0.0] * len(values), values)]
    names = ["n"] * len(values)
    for drawn in (lines(series, title="t", x_label="x", y_label="y"), bars(names, series, title="t", y_label="y")):
        assert "nothing to show" in _texts(drawn)


def test_text_is_escaped_everywhere() -> None:
    odd = '<script>&"'
    series = [Series(odd, [1, 2], [1, 2], labels=[odd, odd]), Series("b", [1], [1])]
    drawn = points(series, title=odd, x_label=odd, y_label=odd) + bars([odd], [Series(odd, [0], [1])], title=odd, y_label=odd)
    whole = page(odd, [Section(odd, drawn + table([{odd: odd}]))])
    assert "<script" not in whole
    assert "src=" not in whole


def test_series_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a' has 2 values of y and 1 of x"):
        Series("a", [1], [1, 2])
    with pytest.raises(ConfigError, match="low and high"):
        Series("a", [1], [1], low=[0])
    with pytest.raises(ConfigError, match="1 values for 2 names"):
        bars(["m", "n"], [Series("a", [0], [1])], title="t", y_label="y")


def test_a_table_aligns_numbers_and_leaves_out_what_is_not_there() -> None:
    made = table([{"who": "a", "n": 1200, "x": 1.234}, {"who": "b", "n": None, "x": 2.0}])
    assert "<td>a</td><td class=number>1,200</td><td class=number>1.23</td>" in made
    assert "<td>b</td><td class=number></td>" in made
    assert "nothing to show" in table([])
