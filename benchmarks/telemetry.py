"""An epoch of growing hosts at each level of telemetry against one without, and how many events go through in a second.

    python benchmarks/telemetry.py [--quick] [--device cuda]

The same hosts of the digits task grow under the fixed schedule once for each level, four of them by the serial engine and two hundred by
the fleet (a thousand on a GPU), each play with a journal of its own. `an epoch` is training, deciding, acting and telling; `telling` is
the last of these alone, building the events of an epoch and writing them, so that its ratio is telemetry's share of an epoch without.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.leyline.reports import GateConfig
from esper.nissa import Hub, JsonlSink, TelemetryConfig, read_events
from esper.nissa.config import LEVELS, LevelName
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.tamiyo import FixedConfig, make
from esper.tolaria.training.config import EngineName, TrainingConfig

EPOCHS, ROUNDS = 40, 7
BURST = 800
"""Events that are emitted one after another to measure how many go through in a second."""
MEMBERS = {"serial": {"train_size": "400"}, "fleet": {"widths": "[2,4]", "train_size": "192", "batch": "96"}}
"""What hosts are like; the small ones of a fleet take next to no time, so that telling counts most."""
HASTY = TrainingConfig(gates=GateConfig(strict=False, min_training_epochs=1, min_gradient_health=0.0))


class Telling(Play):
    """A play that can tell its last epoch again."""

    def _tell(self, *epoch: Any) -> None:
        self.last = epoch
        super()._tell(*epoch)

    def again(self) -> None:
        """Everything that was told after the last epoch."""
        self._tell(*self.last)
        self.hub.flush()


def play(engine: EngineName, hosts: int, level: LevelName, folder: Path, device: str) -> Telling:
    """Hosts that are about to begin, and the record of them."""
    config = GrowthConfig(control=False, epochs=EPOCHS, fix=MEMBERS[engine], training=HASTY, engine=engine, device=device)
    journal = None if level == "off" else JsonlSink(folder / f"{engine}-{level}.jsonl")
    hub = Hub(journal, config=TelemetryConfig(level=level, events=1 << 40))
    controller = make("fixed", FixedConfig(first=1, period=1))
    made = Telling(Growth(config), ControllerDecider([controller] * hosts), [Start("digits", seed) for seed in range(hosts)], hub=hub)
    made.announce()
    return made


def measure(settings: Settings) -> Iterator[Row]:
    """Rows of epochs and of telling by each engine, of a burst of events, and of their size."""
    many = 1000 if settings.device != "cpu" else 50 if settings.quick else 200
    engines: tuple[tuple[EngineName, int], ...] = (("fleet", many),) if settings.device != "cpu" else (("serial", 4), ("fleet", many))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine, hosts in engines:
            plays = {level: play(engine, hosts, level, folder, settings.device) for level in LEVELS}
            who = f"{engine}, {hosts} hosts: "
            epochs = {f"{who}an epoch, {level}": each.run_epoch for level, each in plays.items()}
            for each in plays.values():
                each.run_epoch()  # before there is anything to tell again
            telling = {f"{who}telling, {level}": each.again for level, each in plays.items() if level != "off"}
            yield from compared(in_turns(settings, {**epochs, **telling}, ROUNDS), f"{who}an epoch, off")
        yield from journal(settings, folder)


def journal(settings: Settings, folder: Path) -> Iterator[Row]:
    """How quick a journal is, and how long its lines are."""
    source = folder / f"{'serial' if settings.device == 'cpu' else 'fleet'}-normal.jsonl"
    envelopes = list(read_events(source))[:BURST]
    contents = [json.loads(line) for line in source.read_bytes().splitlines()[:BURST]]
    plain, hub = "json.dumps and write", Hub(JsonlSink(folder / "burst.jsonl"))

    def burst() -> None:
        for envelope in envelopes:
            hub.emit(envelope.event, host=envelope.host, epoch=envelope.epoch)
        hub.flush()

    with (folder / "plain.jsonl").open("w") as file:
        tasks = {plain: lambda: file.writelines(json.dumps(each) + "\n" for each in contents), "a hub with its journal": burst}
        yield from compared(in_turns(settings, tasks), plain, unit="events/s", value_of=lambda taken: len(contents) / taken)
    hub.close()
    yield Row(what="size of an event", value=source.stat().st_size / sum(1 for _ in source.open("rb")), unit="bytes")


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
