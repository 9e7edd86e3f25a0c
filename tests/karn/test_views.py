"""Views: what is shown of a run is what was recorded and what its summary says, while it goes on and after it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from esper.karn import views
from esper.karn.event_index import KINDS
from esper.karn.query import ask
from esper.karn.record import Record
from esper.karn.views.feed import LINES, line_of
from esper.karn.views.hosts import host_rows
from esper.leyline.errors import UnknownNameError
from esper.leyline.events import Anomaly, Envelope, to_json_line
from esper.leyline.score import score
from esper.nissa.config import MINIMAL
from esper.simic.statistics import interval, paired_difference
from esper.tolaria.storage.runs import RunFolder
from tests.karn.copies import cut_short, thinned
from tests.simic.runs import small

ALL = (
    "overview",
    "hosts",
    "distribution",
    "lives",
    "actions",
    "rounds",
    "entropies",
    "rewards",
    "calibration",
    "blueprints",
    "arms",
    "feed",
)


@pytest.fixture(scope="module")
def grown(recorded_runs: Path) -> Record:
    return Record(recorded_runs / "grown")


@pytest.fixture(scope="module")
def learned(recorded_runs: Path) -> Record:
    return Record(recorded_runs / "learned")


def figures(record: Record) -> dict[str, dict[str, Any]]:
    return {each["label"]: each for each in views.overview(record)["headline"]}


def asked(record: Record) -> dict[str, tuple[Any, ...]]:
    return {label: tuple(rest) for label, *rest in ask({"run": record}, "select label, value, low, high from headline").rows}


# One figure, wherever it is shown


def test_figures_of_hosts_are_those_of_the_summary_and_of_a_query(grown: Record) -> None:
    summary, shown = json.loads((grown.path / "summary.json").read_text()), figures(grown)
    hosts, found = summary["hosts"], summary["against_control"]["test_accuracy"]
    accuracies = [host["test_accuracy"] for host in hosts]
    expected = {
        "test accuracy": (sum(accuracies) / len(hosts), interval(accuracies).low, interval(accuracies).high),
        "against the control": (found["mean"], found["low"], found["high"]),
        "size": (sum(host["parameters"] / host["host_parameters"] for host in hosts) / len(hosts), None, None),
        "operations": (summary["operations_x"]["all"], None, None),
        "fossils": (sum(host["fossilized"] for host in hosts) / len(hosts), None, None),
    }
    assert {label: (each["value"], each["low"], each["high"]) for label, each in shown.items()} == expected
    assert asked(grown) == expected
    columns = "number, val_accuracy, test_accuracy, control_accuracy, parameters, operations, fossils, reward"
    query = f"select {columns} from hosts where twin_of is null"
    names = ("val_accuracy", "test_accuracy", "control_accuracy", "parameters")
    assert ask({"run": grown}, query).rows == [
        (place, *(host[name] for name in names), sum(host["flops"].values()), host["fossilized"], host["reward"])
        for place, host in enumerate(hosts)
    ]


def test_figures_of_learning_are_those_of_the_summary_and_of_a_query(learned: Record) -> None:
    summary = json.loads((learned.path / "summary.json").read_text())
    examination, shown = summary["examination"], figures(learned)
    assert shown["score"]["value"] == examination["arms"]["policy"]["score"]
    for arm, found in examination["policy_against"].items():
        each = shown[f"against {arm}"]
        assert (each["value"], each["low"], each["high"]) == (found["mean"], found["low"], found["high"])
    assert asked(learned) == {label: (each["value"], each["low"], each["high"]) for label, each in shown.items()}
    for row in views.arms(learned):
        assert {name: row[name] for name in examination["arms"][row["arm"]]} == examination["arms"][row["arm"]]
        assert row["difference"] == examination["policy_against"].get(row["arm"])
    names = "score, accuracy, growth, operations, fossils, reward"
    assert ask({"run": learned}, f"select arm, {names} from arms").rows == [
        (arm, *(each[name] for name in names.split(", "))) for arm, each in examination["arms"].items()
    ]
    metrics = views.rounds(learned)["metrics"]
    assert [{name: values[i] for name, values in metrics.items() if values[i] is not None} for i in range(2)] == summary["rounds"]
    assert [row[0] for row in ask({"run": learned}, "select metrics from rounds order by round").rows] == summary["rounds"]
    assert views.entropies(learned)["heads"]["op"] == [each.get("train/entropy/op") for each in summary["rounds"]]
    assert views.rewards(learned)["total"] == [each["rollout/ep_rew_mean"] for each in summary["rounds"]]
    assert views.actions(learned)["by_round"]["WAIT"] == [each["actions/wait"] for each in summary["rounds"]]


def test_figures_while_a_run_goes_on_are_worked_out_from_its_events(grown: Record, recorded_runs: Path, tmp_path: Path) -> None:
    record = Record(cut_short(recorded_runs / "grown", tmp_path / "run", rounds=5))
    found = views.overview(record)
    now = {row["host"]: row["val_accuracy"] for row in record.rows("epoch_finished") if row["epoch"] == 5}
    difference = paired_difference([now[host] for host in range(3)], [now[host + 3] for host in range(3)])
    shown = figures(record)
    assert shown["val accuracy"]["value"] == pytest.approx(sum(now[host] for host in range(3)) / 3)
    assert shown["against the control"]["value"] == pytest.approx(difference.mean)
    assert len(found["curve"]) == len(shown["against the control"]["trend"]) == 5
    assert (found["progress"]["done"], found["progress"]["total"], found["progress"]["share"]) == (5, 8, 5 / 8)
    assert (found["status"], found["go_on"]) == ("interrupted", f"esper train --resume {tmp_path / 'run'}")
    whole = {row["number"]: row for row in host_rows(grown)}
    for row in host_rows(record):
        assert (row["ended"], row["epoch"], row["val_accuracy"]) == (False, 5, now[row["number"]])
        assert row["germinated"] <= whole[row["number"]]["germinated"]
        assert row["control_accuracy"] == (now[row["number"] + 3] if row["twin_of"] is None else None)


# Hosts, seeds, decisions


def test_the_lives_of_seeds_are_the_same_from_what_happened_and_from_how_the_host_ended(
    grown: Record, recorded_runs: Path, tmp_path: Path
) -> None:
    lives = views.lives(grown)
    assert [{name: value for name, value in life.items() if name not in ("host", "stages")} for life in lives] == [
        seed for row in grown.rows("host_finished") if row["host"] < 3 for seed in row["seeds"]
    ]
    for life in lives:
        assert life["stages"][0] == [life["born"], "GERMINATED"]
        if life["outcome"] != "unfinished":
            assert life["stages"][-1] == [life["ended"], life["outcome"].upper()]
    record = Record(cut_short(recorded_runs / "grown", tmp_path / "run", rounds=7))
    so_far = {(life["host"], life["slot"], life["born"]): life for life in views.lives(record)}
    assert so_far
    for life in lives:
        if life["born"] <= 7:
            known = so_far[life["host"], life["slot"], life["born"]]
            assert (known["blueprint"], known["style"]) == (life["blueprint"], life["style"])
            over = life["outcome"] != "unfinished" and life["ended"] <= 7
            assert (known["outcome"], known["ended"]) == ((life["outcome"], life["ended"]) if over else ("alive", None))


def test_blueprints_count_every_seed(grown: Record, learned: Record) -> None:
    for record, arm in ((grown, ""), (learned, "")):
        mine = {row["number"] for row in host_rows(record) if row["twin_of"] is None and row["arm"] == arm}
        lives = [life for life in views.lives(record) if life["host"] in mine]
        rows = views.blueprints(record)
        assert sum(row["created"] for row in rows) == len(lives)
        for row in rows:
            outcomes = [life["outcome"] for life in lives if life["blueprint"] == row["blueprint"]]
            assert row["survival"] == outcomes.count("fossilized") / len(outcomes)


def test_a_host_is_drawn_as_it_grew(grown: Record) -> None:
    found = views.host(grown, 0)
    row, curve, timeline = found["row"], found["curve"], found["timeline"]
    epochs = [each for each in grown.rows("epoch_finished") if each["host"] == 0]
    assert curve["val"] == [each["val_accuracy"] for each in epochs]
    assert curve["train"] == [each["train_accuracy"] for each in epochs]
    assert curve["control"] == [each["val_accuracy"] for each in grown.rows("epoch_finished") if each["host"] == 3]
    assert [each["epoch"] for each in timeline] == list(range(9))
    assert all(state["stage"] == "DORMANT" for state in timeline[0]["slots"].values())
    stages = dict.fromkeys(found["slots"], "DORMANT")
    changes = grown.rows("stage_changed", host=0)
    for each in timeline[1:]:
        stages |= {change["slot"]: change["after"] for change in changes if change["epoch"] == each["epoch"]}
        assert {slot: state["stage"] for slot, state in each["slots"].items()} == stages
    assert row["epoch"] == 8
    with pytest.raises(UnknownNameError, match="the run has no host 99"):
        views.host(grown, 99)


def test_a_decision_opens(grown: Record, learned: Record) -> None:
    decisions = views.host(grown, 0)["decisions"]
    assert [each["epoch"] for each in decisions] == list(range(1, 9))
    first = next(each for each in decisions if each["op"] == "GERMINATE")
    opened = views.decision(grown, 0, first["epoch"])
    assert opened["text"].startswith(f"germinate {opened['decision']['blueprint']} at {opened['slot']}")
    assert any("germinated" in line for line in opened["after"])
    assert opened["after"][-1].startswith("the seed ")
    assert opened["seen"]["epoch_finished"]["val_accuracy"] == views.host(grown, 0)["curve"]["val"][first["epoch"] - 1]
    earned = {row["epoch"]: row for row in grown.rows("rewarded", host=0)}
    assert all(
        (each["reward"], each["components"]) == (earned[each["epoch"]]["total"], earned[each["epoch"]]["components"]) for each in decisions
    )
    taught = views.decision(learned, 0, 1)
    assert len(taught["probabilities"]["op"]) == len(taught["legal"]["op"])
    assert isinstance(taught["value"], float)
    with pytest.raises(UnknownNameError, match="no decision of host 0 after epoch 77"):
        views.decision(grown, 0, 77)


def test_a_host_that_is_not_recorded_in_full_has_its_course_and_its_seeds(recorded_runs: Path, tmp_path: Path) -> None:
    run = thinned(
        recorded_runs / "grown",
        tmp_path / "run",
        lambda line: line["host"] in (None, 0, 3) or line["kind"] in ("host_started", "host_finished"),
    )
    record, whole = Record(run), Record(recorded_runs / "grown")
    assert views.hosts(record)["detailed"] == [0, 3]
    found, full = views.host(record, 1), views.host(whole, 1)
    assert found["curve"]["val"] == pytest.approx(full["curve"]["val"], abs=0.005)
    assert found["row"]["score"] == full["row"]["score"]
    assert [{**life, "stages": []} for life in full["lives"]] == found["lives"]
    assert found["decisions"] == []
    last = found["timeline"][-1]["slots"]
    assert {slot for slot, state in last.items() if state["stage"] == "FOSSILIZED"} == {
        life["slot"] for life in full["lives"] if life["outcome"] == "fossilized"
    }
    assert views.distribution(record)["n"] == [3] * 8


@pytest.mark.parametrize("name", ["grown", "learned"])
def test_what_is_recorded_at_the_lowest_levels_is_enough_for_the_headline(recorded_runs: Path, tmp_path: Path, name: str) -> None:
    always = {kind.kind() for kind in MINIMAL}
    whole = Record(recorded_runs / name)
    minimal = Record(thinned(recorded_runs / name, tmp_path / "minimal", lambda line: line["kind"] in always))
    off = Record(thinned(recorded_runs / name, tmp_path / "off", lambda line: False))
    (off.path / "events.jsonl").unlink()
    for record in (minimal, off):
        assert {label: each["value"] for label, each in figures(record).items()} == {
            label: each["value"] for label, each in figures(whole).items()
        }
        for view in ALL:
            json.dumps(getattr(views, view)(record), allow_nan=False)
    assert views.overview(minimal)["curve"] == pytest.approx(views.overview(whole)["curve"])
    assert views.blueprints(minimal) == views.blueprints(whole)
    assert views.hosts(minimal)["detailed"] == []
    json.dumps(views.host(minimal, 0), allow_nan=False)
    running = Record(cut_short(minimal.path, tmp_path / "running", rounds=1))
    assert views.overview(running)["progress"]["done"] == 1


def test_calibration_compares_values_with_what_followed(learned: Record) -> None:
    found = views.calibration(learned)
    assert found is not None
    mine = [row["number"] for row in host_rows(learned) if row["round"] == 2 and row["arm"] == ""]
    rewards = [[row["total"] for row in learned.rows("rewarded", host=host)] for host in mine]
    returns = [sum(0.995**k * reward for k, reward in enumerate(each[step:])) for each in rewards for step in range(len(each))]
    assert (found["round"], found["hosts"], found["steps"]) == (2, 3, len(returns))
    assert found["return_mean"] == pytest.approx(sum(returns) / len(returns))


def test_scores_are_accuracy_minus_rent(learned: Record) -> None:
    rent = {row["host"]: row["rent"] for row in learned.rows("host_finished")}
    for row in host_rows(learned):
        assert row["score"] == score(row["val_accuracy"], row["parameters"], row["host_parameters"], rent[row["number"]])


# Lists, flags, the feed


def test_runs_are_listed_and_looked_up_by_key(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs / "grown", tmp_path / "sweep")
    shutil.copytree(recorded_runs / "learned", tmp_path / "sweep" / "points" / "001")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    known = views.Runs(tmp_path)
    found = views.runs(known)
    assert {row["key"]: row["method"] for row in found["runs"]} == {"sweep": "run", "sweep/points/001": "learn"}
    assert len(found["problems"]) == 1
    kept = known.records["sweep"]
    shutil.rmtree(tmp_path / "damaged")
    views.runs(known)
    assert known.records["sweep"] is kept
    for key in ("..", "../sweep", "sweep/points/../../sweep", str(tmp_path / "sweep"), "swep"):
        with pytest.raises(UnknownNameError):
            known.find(key)
    assert list(views.Runs(recorded_runs / "grown").records) == ["grown"]


def test_every_view_of_a_run_that_has_not_begun_is_empty_and_json(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", name="", config=small(), command="esper train heuristic").close()
    record = Record(tmp_path / "run")
    for name in ALL:
        json.dumps(getattr(views, name)(record), allow_nan=False)
    assert views.overview(record)["headline"] == []
    assert views.overview(record)["task"] == "digits"


def plain(value: Any) -> Any:
    """A value with its tuples as lists, which is all that JSON has."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def test_every_view_is_json(grown: Record, learned: Record) -> None:
    for record in (grown, learned):
        for found in (*(getattr(views, name)(record) for name in ALL), views.host(record, 0)):
            assert plain(json.loads(json.dumps(found, allow_nan=False))) == plain(found)


def test_flags_are_told_with_their_round(recorded_runs: Path, tmp_path: Path) -> None:
    run = cut_short(recorded_runs / "learned", tmp_path / "run", rounds=1)
    record = Record(run)
    flag = Anomaly(detector="entropy_collapse", text="<b>op</b> entropy is 0.01", value=0.01, threshold=0.1)
    line = to_json_line(Envelope(seq=len(record), time=0.0, host=None, epoch=None, event=flag))
    with (run / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    record.refresh()
    (found,) = views.overview(record)["flags"]
    assert (found["detector"], found["text"], found["round"]) == ("entropy_collapse", "<b>op</b> entropy is 0.01", 2)
    assert views.runs(tmp_path)["runs"][0]["flags"] == 1


def test_the_feed_gives_every_event_once_the_newest_first(grown: Record) -> None:
    seen, before = [], None
    while True:
        page = views.feed(grown, before=before, limit=100)
        seen += [each["seq"] for each in page["events"]]
        if not page["more"]:
            break
        before = page["before"]
    assert seen == list(range(len(grown)))[::-1]
    germinated = views.feed(grown, kinds=["stage_changed"], host=1, text="TO GERMINATED", limit=500)["events"]
    assert {each["seq"] for each in germinated} == {
        row["seq"] for row in grown.rows("stage_changed", host=1) if row["after"] == "GERMINATED"
    }
    with pytest.raises(UnknownNameError, match="did you mean 'stage_changed'"):
        views.feed(grown, kinds=["stage_change"])


def test_every_kind_of_event_has_a_line(grown: Record, learned: Record) -> None:
    lines = {row["kind"]: line_of(row) for record in (grown, learned) for row in record.rows()}
    assert len(lines) > 12
    assert all(text and "\n" not in text for text in lines.values())
    assert set(LINES) == set(KINDS)
