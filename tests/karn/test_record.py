"""A run folder as it is read: whole lines alone, read on without a gap, begun anew when the file is another, and never past damage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esper.karn.record import Record
from esper.leyline.errors import EventError, RunError
from esper.leyline.events import EVENT_TYPES, EVENT_VERSION, Envelope, EpochFinished, Note, Observed, SeedMeasured, to_json_line
from esper.leyline.stages import Stage
from esper.nissa import JsonlSink, read_events
from esper.tolaria.storage.runs import RunFolder
from tests.karn.copies import cut_short
from tests.simic.runs import small


def note(seq: int, text: str = "", time: float = 0.0) -> bytes:
    return to_json_line(Envelope(seq=seq, time=time, host=None, epoch=None, event=Note(text=text))).encode() + b"\n"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A run that has not begun."""
    RunFolder.create(tmp_path / "run", name="", config=small(), command="esper train heuristic").close()
    return tmp_path / "run"


def write(run: Path, *lines: bytes) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.writelines(lines)


def texts(record: Record) -> list[str]:
    return [row["text"] for row in record.rows("note")]


def test_rows_are_the_events(recorded_runs: Path) -> None:
    for name in ("grown", "learned"):
        record = Record(recorded_runs / name)
        envelopes = list(read_events(recorded_runs / name / "events.jsonl"))
        rows = record.rows()
        assert len(record) == len(rows) == len(envelopes)
        assert record.offset == (recorded_runs / name / "events.jsonl").stat().st_size
        for row, envelope in zip(rows, envelopes, strict=True):
            line = json.loads(to_json_line(envelope))
            assert row == {**{key: line[key] for key in ("seq", "time", "host", "epoch", "kind")}, **line["data"]}
        for kind in EVENT_TYPES:
            assert record.rows(kind) == [row for row in rows if row["kind"] == kind]
        assert record.rows("decided", "rewarded", host=1) == [
            row for row in rows if row["host"] == 1 and row["kind"] in ("decided", "rewarded")
        ]


def test_a_run_is_read_on_line_by_line(empty: Path) -> None:
    record = Record(empty)
    assert (len(record), record.rows(), record.refresh(), record.info.status) == (0, [], False, "new")
    write(empty, note(0, "a"), note(1, "b")[:-5])
    assert record.refresh()
    assert texts(record) == ["a"], "a line that is only half written is left for later"
    assert not record.refresh()
    write(empty, note(1, "b")[-5:], note(2, "c"))
    assert record.refresh()
    assert texts(record) == ["a", "b", "c"]
    assert (record.generation, record.problem, record.info.status) == (0, None, "interrupted")


@pytest.mark.parametrize("longer", [False, True], ids=["shorter", "longer"])
def test_a_run_that_went_on_from_an_earlier_checkpoint_is_read_anew(empty: Path, longer: bool) -> None:
    write(empty, note(0, "a", 1.0), note(1, "b", 2.0), note(2, "c", 3.0))
    record = Record(empty)
    assert texts(record) == ["a", "b", "c"]
    with (empty / "events.jsonl").open("r+b") as file:
        file.truncate(len(note(0, "a", 1.0)))
    write(empty, note(1, "b", 12.5), *([note(2, "C", 13.5), note(3, "d", 14.5)] if longer else []))
    assert record.refresh()
    assert texts(record) == (["a", "b", "C", "d"] if longer else ["a", "b"])
    assert record.generation == 1


def test_a_file_that_changes_between_two_looks_is_noticed_by_whoever_asks(empty: Path) -> None:
    write(empty, note(0, "a", 1.0), note(1, "b", 2.0))
    record = Record(empty)
    assert len(record) == 2
    (empty / "events.jsonl").write_bytes(note(0, "another", 3.0))
    assert texts(record) == ["another"]
    assert record.generation == 1


def test_another_run_in_the_same_folder_is_another(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs / "grown", tmp_path / "run")
    record = Record(tmp_path / "run")
    before = len(record), record.id
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunError, match="there is no such folder"):
        record.refresh()
    shutil.copytree(recorded_runs / "learned", tmp_path / "run")
    assert record.refresh()
    assert record.generation >= 1
    assert (record.id, record.config["kind"], record.rows("run_started")[0]["method"]) == (
        Record(recorded_runs / "learned").id,
        "learn",
        "learn",
    )
    assert before != (len(record), record.id)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{}\n", "line 2: is damaged: expected an event, found '{}'"),
        (b"\x00\xff\n", "line 2: is damaged"),
        (b"\n", "line 2: is damaged"),
        (note(2), "line 2: holds event 2, expected 1: events were lost, doubled or edited"),
        (note(1).replace(b'"note"', b'"nothing"'), "line 2: is of the unknown kind 'nothing'"),
        (note(1).replace(b'{"v":%d' % EVENT_VERSION, b'{"v":99'), f"schema version 99; this version of Esper reads {EVENT_VERSION}"),
    ],
)
def test_reading_stops_before_a_damaged_line_and_says_where(empty: Path, line: bytes, said: str) -> None:
    write(empty, note(0, "a"), line, note(2, "c"))
    record = Record(empty)
    assert texts(record) == ["a"]
    assert record.problem is not None
    assert said in record.problem
    with pytest.raises(EventError, match=r"events\.jsonl, line 2"):
        record.check()
    write(empty, note(3, "d"))
    record.refresh()
    assert texts(record) == ["a"]
    (empty / "events.jsonl").write_bytes(note(0, "a") + note(1, "b"))
    record.refresh()
    assert (texts(record), record.problem) == (["a", "b"], None), "what was put right is read"


@pytest.mark.parametrize("data", [b'{"text":"b}}', b'{"text":"b","more":1}', b'{"nothing":"b"}'])
def test_damage_inside_an_event_is_found_when_it_is_asked_for(empty: Path, data: bytes) -> None:
    write(empty, note(0, "a"), note(1, "b").replace(b'{"text":"b"}', data), note(2, "c"))
    record = Record(empty)
    assert texts(record) == ["a"]
    assert "line 2: is damaged" in (record.problem or "")
    assert len(record) == 1


def test_numbers_that_json_has_not_are_none_and_names_stay_names(empty: Path) -> None:
    nan = float("nan")
    epoch = EpochFinished(
        train_loss=nan,
        train_accuracy=1.0,
        val_loss=float("inf"),
        val_accuracy=2.0,
        learning_rate=0.1,
        parameters=3,
        per_class=(nan, 4.0),
        gradient_norm=None,
        flops={},
    )
    measured = dict.fromkeys(("contribution_error", "contribution_loss", "trial_contribution", "trial_error", "trial_loss"))
    measured |= dict.fromkeys(("gradient_norm", "gradient_health", "gradient_ratio"))
    seed = SeedMeasured(slot="Infinity", stage=Stage.TRAINING, blueprint="NaN", alpha=0.0, contribution=nan, **measured)  # type: ignore[arg-type]
    seen = Observed(host={"x": 1.0}, slots={})
    events = [epoch, seed, seen]
    write(empty, *(to_json_line(Envelope(seq=i, time=0.0, host=7, epoch=1, event=e)).encode() + b"\n" for i, e in enumerate(events)))
    first, second, third = Record(empty).rows()
    assert (first["train_loss"], first["val_loss"], first["per_class"]) == (None, None, [None, 4.0])
    assert (second["slot"], second["blueprint"], second["contribution"]) == ("Infinity", "NaN", None)
    assert (third["host"], third["observed_host"]) == (7, {"x": 1.0})


def test_a_run_without_events_and_with_damaged_files_is_still_a_run(recorded_runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(recorded_runs / "grown", run)
    (run / "events.jsonl").unlink()
    record = Record(run)
    assert (len(record), record.info.status, record.problem) == (0, "finished", None)
    (run / "summary.json").write_text("{")
    (run / "config.toml").write_text("=")
    assert record.refresh()
    assert (record.summary, record.config) == (None, {})
    assert "config.toml" in (record.problem or "")


def test_a_hundred_thousand_events_are_indexed_and_few_of_them_parsed(empty: Path) -> None:
    sink = JsonlSink(empty / "events.jsonl")
    sink.write(Envelope(seq=0, time=0.0, host=None, epoch=None, event=Note(text="first")))
    sink.flush()
    line = (
        b'{"v":%d,"seq":%%d,"time":1.5,"host":%%d,"epoch":%%d,"kind":"interaction","data":{"slots":["a","b"],"value":%%d.5}}\n'
        % EVENT_VERSION
    )
    write(empty, *(line % (seq, seq % 50, seq // 50, seq) for seq in range(1, 100_000)))
    record = Record(empty)
    assert len(record) == 100_000
    assert texts(record) == ["first"]
    assert [row["value"] for row in record.rows("interaction", host=49)][-2:] == [99_949.5, 99_999.5]
    assert record.last("interaction") == record.at([99_999])[0]


def test_reading_loads_no_torch(recorded_runs: Path) -> None:
    program = "import sys; from esper.karn import views; from esper.karn.record import Record; record = Record(sys.argv[1])\n"
    program += "views.overview(record); views.lives(record); views.calibration(record); views.arms(record); views.blueprints(record)\n"
    program += "import esper; esper.load_run(sys.argv[1]).hosts(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, str(recorded_runs / "learned")], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_killed_run_is_read_up_to_its_torn_line(recorded_runs: Path, tmp_path: Path) -> None:
    record = Record(cut_short(recorded_runs / "grown", tmp_path / "run", rounds=2, torn=b'{"v":'))
    assert (record.problem, record.info.status, record.summary) == (None, "interrupted", None)
    last: dict[str, Any] = record.rows()[-1]
    assert (last["kind"], last["round"]) == ("round_finished", 2)
