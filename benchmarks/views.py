"""What looking at a run takes: reading a record of 100,000 events, reading on, the views of it, and a query.

    python benchmarks/views.py [--quick]

The record is made up: hosts beside their twins, each epoch with its seeds and decisions. `json.loads of every line` is what reading it
without an index would take; the ratios are to that. Always on the CPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.karn import views
from esper.karn.query import ask
from esper.karn.record import Record
from esper.leyline.actions import Decision, Op
from esper.leyline.events import Decided, Envelope, EpochFinished, Event, HostStarted, HostsTrained, Rewarded, RunStarted, SeedMeasured
from esper.leyline.stages import Stage
from esper.nissa import JsonlSink
from esper.simic.growth.config import ControllerRunConfig
from esper.tolaria.storage.runs import RunFolder

EVENTS, QUICK_EVENTS = 100_000, 20_000
HOSTS = 32
ROUNDS = 5

EPOCH = EpochFinished(
    train_loss=0.412345678,
    train_accuracy=91.23456789,
    val_loss=0.512345678,
    val_accuracy=90.123456789,
    learning_rate=0.05,
    parameters=6418,
    per_class=tuple(90.0 + index / 7 for index in range(10)),
    gradient_norm=0.7123456789,
    flops={"forward": 10**9, "backward": 2 * 10**9, "validation": 10**8, "counterfactual": 10**8},
)
SEED = SeedMeasured(
    slot="r0c0",
    stage=Stage.BLENDING,
    blueprint="conv_light",
    alpha=0.4,
    contribution=1.23456789,
    contribution_error=0.5123456789,
    contribution_loss=0.0123456789,
    trial_contribution=None,
    trial_error=None,
    trial_loss=None,
    gradient_norm=0.0312345678,
    gradient_health=1.0,
    gradient_ratio=0.0512345678,
)
DECIDED = Decided(decision=Decision(op=Op.WAIT), legal={"op": ("WAIT", "PRUNE")}, probabilities={"op": (0.9, 0.1)}, value=0.5)
REWARDED = Rewarded(total=0.0123456789, components={"progress": 0.01, "attribution": 0.002, "rent": 0.0003456789})


def story(count: int) -> Iterator[tuple[int | None, int | None, Event]]:
    """So many events of a run: host, epoch and event."""
    about: dict[str, float | int | str] = {"controller": "heuristic", "twins": HOSTS, "round": 0}
    started = RunStarted(command="", method="run", task="digits", hosts=HOSTS, rounds=1000, seed=0, versions={}, machine={}, about=about)
    host = HostStarted(task="digits", seed=0, member={}, epochs=1000, parameters=3000, slots=("r0c0", "r0c1", "r0c2"))
    yield None, None, started
    for number in range(2 * HOSTS):
        yield number, 0, replace(host, seed=number, twin_of=None if number < HOSTS else number - HOSTS)
    told, epoch = 1 + 2 * HOSTS, 0
    hosts = tuple(range(2 * HOSTS))
    while True:
        epoch += 1
        course = HostsTrained(
            hosts=hosts,
            val_accuracy=(90.12,) * len(hosts),
            parameters=(6418,) * len(hosts),
            live=(1,) * len(hosts),
            fossils=(1,) * len(hosts),
        )
        for number, event in [(None, course), *((number, each) for number in hosts for each in (EPOCH, SEED, SEED, DECIDED, REWARDED))]:
            if told == count:
                return
            told += 1
            yield number, epoch, event


def measure(settings: Settings) -> Iterator[Row]:
    """Rows of reading, of the views and of a query."""
    count = QUICK_EVENTS if settings.quick else EVENTS
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        RunFolder.create(run, name="", config=ControllerRunConfig(), command="").close()
        sink = JsonlSink(run / "events.jsonl")
        for seq, (host, epoch, event) in enumerate(story(count)):
            sink.write(Envelope(seq=seq, time=1.7e9 + seq / 1000, host=host, epoch=epoch, event=event))
        sink.close()
        known = Record(run)
        assert len(known) == count

        def parse() -> None:
            with (run / "events.jsonl").open("rb") as file:
                for line in file:
                    json.loads(line)

        plain = f"json.loads of every line, {count:,} events"
        tasks = {
            plain: parse,
            "a record": lambda: len(Record(run)),
            "a record and its overview": lambda: views.overview(Record(run)),
            "a record and its hosts": lambda: views.hosts(Record(run)),
            "a record and one of its hosts": lambda: views.host(Record(run), 3),
            "a record and its feed": lambda: views.feed(Record(run)),
            "reading on where nothing is new": known.refresh,
            "a query over decisions": lambda: ask({"run": Record(run)}, "select op, count(*), avg(reward) from decisions group by op"),
        }
        yield from compared(in_turns(settings, tasks, ROUNDS), plain)
        yield Row(what="size of the record", value=(run / "events.jsonl").stat().st_size / 1e6, unit="MB")


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
