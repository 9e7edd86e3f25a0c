"""Charts are SVG that a browser reads, with round ticks, gaps where there is no number, escaped text, and the same bytes every time."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from esper.karn.charts import Chart, Lane, Series, Span, bars, fan, lanes, layers, lines, points
from esper.karn.charts.style import PAINT, STYLE
from esper.karn.page import Section, charts, page, table
from esper.leyline.errors import ConfigError, RunError

SVG = "{http://www.w3.org/2000/svg}"
ODD = '<script>&"$x^2$ $\x1b\x00\ud800 \u202e漢'
"""A name that is markup, half a formula, and letters that no font has."""


def _paths(drawn: Chart, colour: str) -> list[list[str]]:
    """The paths that are drawn in a colour, each as its commands with their places."""
    found = [each for each in ElementTree.fromstring(drawn.svg()).iter(f"{SVG}path") if f"--{colour}," in each.get("style", "")]
    return [re.findall(r"[A-Za-z][^A-Za-z]*", each.get("d", "")) for each in found]


def _texts(drawn: Chart) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawn.svg()).iter(f"{SVG}text")]


def every_kind(name: str = "a") -> list[Chart]:
    """A chart of each kind, with a name wherever one can stand."""
    series = [Series(name, [1, 2, 3], [1, 2, 1], [0, 1, 0], [2, 3, 2], labels=[name, "", name]), Series("b", [1, 2, 3], [3, 1, 2])]
    lane = Lane(name=name, spans=[Span(start=1, end=9, stage="TRAINING", label=name, about=name)], ends=[9])
    words = {"title": name, "x_label": name, "y_label": name}
    return [
        lines(series, **words),
        points(series, **words, log_x=True),
        bars([name, "2", "3"], series, title=name, y_label=name),
        layers(series, **words, total=series[0]),
        fan([1, 2, 3], {key: [1, 2, 3] for key in ("10", "25", "50", "75", "90")}, series, **words),
        lanes([lane], title=name, x_label=name, end=10, note=name),
    ]


def test_a_line_has_a_gap_where_a_value_is_no_number() -> None:
    drawn = lines([Series("a", [0, 1, 2, 3, 4, 5], [1, 2, math.nan, 3, 4, math.inf])], title="t", x_label="x", y_label="y")
    assert [len(run) for run in _paths(drawn, "series-0")] == [2, 2]
    assert not re.search(r"nan|inf", drawn.svg())


def test_a_long_line_is_drawn_with_the_points_that_can_be_seen_and_keeps_its_peaks() -> None:
    values = [float(place % 7) for place in range(50_000)]
    values[31_234] = 1000.0
    drawn = lines([Series("a", range(50_000), values)], title="t", x_label="x", y_label="y")
    (run,) = _paths(drawn, "series-0")
    assert len(run) < 700
    assert min(float(step.split()[2]) for step in run) == 36.0, "the peak reaches the top of the axes"


def test_ticks_are_round_numbers_that_enclose_the_values() -> None:
    drawn = points([Series("a", [0.3, 9.7], [61.2, 69.9])], title="t", x_label="x", y_label="y")
    ticks = [float(text) for text in _texts(drawn) if re.fullmatch(r"[\d.]+", text)]
    assert {0.0, 2.0, 10.0, 60.0, 62.0, 70.0} <= set(ticks)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    drawn = points([Series("a", [10, 100, 1000], [1, 1, 1])], title="t", x_label="x", y_label="y", log_x=True)
    root = ElementTree.fromstring(drawn.svg())
    places = [float(each.get("x", "")) for each in root.iter(f"{SVG}use") if "--series-0," in each.get("style", "")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)


def test_a_short_logarithmic_axis_has_ticks_too() -> None:
    drawn = points([Series("a", [1.0, 1.2, 1.8], [1, 1, 1])], title="t", x_label="x", y_label="y", log_x=True)
    assert {"1", "1.2", "1.4", "1.6", "1.8"} <= set(_texts(drawn))


def test_points_have_whiskers_where_there_is_an_interval_and_labels_where_there_are_words() -> None:
    series = Series("a", [1, 2], [5, 6], [4, math.nan], [6, math.nan], ["wait", ""])
    drawn = points([series], title="t", x_label="x", y_label="y")
    (whisker,) = [path for path in _paths(drawn, "series-0") if [step[0] for step in path] == ["M", "L"] and path[0][1:] != path[1][1:]][:1]
    assert whisker[0].split()[1] == whisker[1].split()[1], "it stands upright"
    assert "wait" in _texts(drawn)
    assert "<title>a wait: 1, 5</title>" in drawn.svg()


def test_bars_stand_on_zero_on_either_side() -> None:
    drawn = bars(["up", "down"], [Series("a", [0, 1], [2, -1])], title="t", y_label="y")
    up, down = ([float(place) for step in path if step[0] != "z" for place in step.split()[2:3]] for path in _paths(drawn, "series-0"))
    assert max(up) == pytest.approx(min(down), abs=0.2)
    assert max(up) - min(up) == pytest.approx(2 * (max(down) - min(down)), abs=0.3)


def test_layers_stand_on_each_other_and_what_is_below_zero_hangs_from_it() -> None:
    series = [Series("a", [1], [2]), Series("b", [1], [1]), Series("c", [1], [-1])]
    drawn = layers(series, title="t", x_label="x", y_label="y")
    ends = []
    for number in range(3):
        path = next(path for path in _paths(drawn, f"series-{number}") if len(path) > 4 and "z" in path[-1])
        places = [float(step.split()[2]) for step in path if len(step.split()) > 2]
        ends.append((max(places), min(places)))
    (zero, first), (second, top), (below, hung) = ends
    assert zero > first
    assert second == pytest.approx(first, abs=0.2)
    assert zero - first == pytest.approx(2 * (second - top), abs=0.3)
    assert hung == pytest.approx(zero, abs=0.2)
    assert below > zero


def test_a_lane_shows_its_stages_in_their_colours_and_what_they_are_under_the_pointer() -> None:
    spans = [Span(start=2, end=5, stage="TRAINING", about="training, epochs 2 to 5"), Span(start=5, end=9, stage="FOSSILIZED")]
    drawn = lanes([Lane(name="host 0 · r0c0", spans=spans)], title="t", x_label="epoch", end=10)
    assert {"host 0 · r0c0", "training", "fossilized"} <= set(_texts(drawn))
    assert "<title>training, epochs 2 to 5</title>" in drawn.svg()
    assert len(_paths(drawn, "stage-training")) == 2, "the stretch, and its key"


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_nothing_to_show_is_said(values: list[float]) -> None:
    series = [Series("a", [0.0] * len(values), values)]
    names = ["n"] * len(values)
    words = {"title": "t", "x_label": "x", "y_label": "y"}
    drawn = [lines(series, **words), bars(names, series, title="t", y_label="y"), layers(series, **words)]
    for each in [*drawn, lanes([], title="t", x_label="x", end=0)]:
        assert "nothing to show" in _texts(each)


def test_text_is_text_everywhere() -> None:
    drawn = every_kind(ODD)
    whole = page(ODD, [Section(ODD, charts(*drawn) + table([{ODD: ODD}]))])
    assert "<script" not in whole
    assert not re.search(r"src=|@import|https?://(?!www\.w3\.org/2000/svg)", whole)
    for each in drawn:
        shown = "".join(text for text in ElementTree.fromstring(each.svg()).itertext())
        assert '<script>&"$x^2$ $' in shown, "neither markup nor a formula"


def test_charts_follow_day_and_night_and_share_no_ids() -> None:
    drawn = [each.svg() for each in every_kind()]
    for each in drawn:
        loose = set(re.findall(r":#[0-9a-f]{6}", re.sub(r"var\([^)]*\)", "", each)))
        assert not loose, "every colour is a variable of the page"
    ids = [re.findall(r' id="([^"]+)"', each) for each in drawn]
    assert all(len(found) == len(set(found)) for found in ids)
    assert len({name for found in ids for name in found}) == sum(map(len, ids))
    for found, each in zip(ids, drawn, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', each)) == set(found)
    assert len({day for day, _ in PAINT.values()}) == len(PAINT), "a colour by day has one name"
    assert STYLE.count("--series-0:") == 2


PROGRAM = "import sys; from tests.karn.test_charts import every_kind; sys.stdout.write('\\n'.join(each.svg() for each in every_kind()))"


def test_the_same_chart_has_the_same_bytes_whatever_the_process_and_the_settings_of_its_user(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nsvg.fonttype: path\nfont.size: 30\n")
    project = Path(__file__).resolve().parents[2]
    found = set()
    for seed, more in (("1", {}), ("2", {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc")})):
        environment = {**os.environ, "PYTHONHASHSEED": seed, **more}
        done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=project, env=environment, capture_output=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_a_chart_is_a_picture_and_a_figure_too(tmp_path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    loaded = "matplotlib.pyplot" in sys.modules  # by somebody else in this process
    drawn = every_kind()[0]
    drawn.png(tmp_path / "a.png")
    assert imread(tmp_path / "a.png").shape[:2] == (720, 1280)
    assert isinstance(drawn.figure(), Figure)
    assert ("matplotlib.pyplot" in sys.modules) == loaded
    with pytest.raises(RunError, match="nowhere"):
        drawn.png(tmp_path / "nowhere/a.png")


def test_without_matplotlib_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="charts need matplotlib"):
        every_kind()[0].svg()


def test_series_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a' has 2 values of y and 1 of x"):
        Series("a", [1], [1, 2])
    with pytest.raises(ConfigError, match="low and high"):
        Series("a", [1], [1], low=[0])
    with pytest.raises(ConfigError, match="1 values for 2 names"):
        bars(["m", "n"], [Series("a", [0], [1])], title="t", y_label="y")
    with pytest.raises(ConfigError, match="'b' has other x than 'a'"):
        layers([Series("a", [1], [1]), Series("b", [2], [1])], title="t", x_label="x", y_label="y")


def test_a_table_aligns_numbers_and_leaves_out_what_is_not_there() -> None:
    made = table([{"who": "a", "n": 1200, "x": 1.234}, {"who": "b", "n": None, "x": 2.0}])
    assert "<td>a</td><td class=number>1,200</td><td class=number>1.23</td>" in made
    assert "<td>b</td><td class=number></td>" in made
    assert "nothing to show" in table([])
