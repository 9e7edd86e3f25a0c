"""Run folders made by hand for the tests of the live page: real events and a real lock, without any training."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from esper.leyline.actions import Decision, Op
from esper.leyline.events import (
    Anomaly,
    Decided,
    Envelope,
    EpochFinished,
    Event,
    GateChecked,
    HostFinished,
    HostStarted,
    HostsTrained,
    Rewarded,
    RoundFinished,
    RunFinished,
    RunStarted,
    SeedLife,
    SeedMeasured,
    StageChanged,
    to_json_line,
)
from esper.leyline.reports import Gate
from esper.leyline.stages import Stage

SLOTS = ("r0c0", "r0c1")
MEMBER: dict[str, float | int | str] = {"widths": "8-16", "kernel": 3, "kernels": "", "parts": "", "layers": 2}
EPOCHS = 8
LIFE = {1: Stage.GERMINATED, 2: Stage.TRAINING, 4: Stage.BLENDING, 6: Stage.HOLDING, 7: Stage.FOSSILIZED}
"""The stage that the seed of every host comes to after an epoch."""


@dataclass
class Story:
    """A run that is written bit by bit."""

    path: Path
    task: str = "digits"
    blueprint: str = "conv_light"
    hosts: int = 2
    detailed: int = 16
    seq: int = 0
    epoch: int = 0
    stage: Stage = field(default=Stage.DORMANT)

    def begin(self) -> Story:
        """Make the folder, and say what begins."""
        self.path.mkdir(parents=True)
        marker = {"format": "esper run", "version": 2, "id": f"{abs(hash(str(self.path))):016x}", "command": "esper train heuristic"}
        (self.path / "run.json").write_text(json.dumps({**marker, "created": "2026-01-01T12:00:00+00:00"}))
        (self.path / "config.toml").write_text('kind = "run"\n')
        about: dict[str, float | int | str] = {"controller": "heuristic", "twins": self.hosts}
        started = {"versions": {"esper": "0"}, "machine": {"system": "Linux", "cores": 2}, "about": about, "seed": 0}
        self.emit(RunStarted(command="esper train", method="run", task=self.task, hosts=self.hosts, rounds=EPOCHS, **started))  # type: ignore[arg-type]
        for number in range(2 * self.hosts):
            twin = number - self.hosts if number >= self.hosts else None
            begun = HostStarted(task=self.task, seed=number, member=MEMBER, epochs=EPOCHS, parameters=100, slots=SLOTS, twin_of=twin)
            self.emit(begun, number, 0)
        return self

    def run(self, epochs: int) -> Story:
        """So many epochs more."""
        for _ in range(epochs):
            self.epoch += 1
            before, self.stage = self.stage, LIFE.get(self.epoch, self.stage)
            for number in range(min(self.hosts, self.detailed)):
                self._epoch(number, before)
            numbers = tuple(range(2 * self.hosts))
            accuracy = tuple(self._accuracy(number) for number in numbers)
            sizes, zeros = (150,) * len(numbers), (0,) * len(numbers)
            self.emit(HostsTrained(hosts=numbers, val_accuracy=accuracy, parameters=sizes, live=zeros, fossils=zeros), None, self.epoch)
            self.emit(RoundFinished(round=self.epoch, rounds=EPOCHS))
        return self

    def flag(self) -> Story:
        """Something looks wrong."""
        text = f"seeds of {self.blueprint} earn and bring nothing"
        self.emit(Anomaly(detector="reward_hacking", text=text, value=2.0, threshold=1.0), 0, self.epoch)
        return self

    def finish(self) -> Story:
        """Every host ends, and the run."""
        for number in range(2 * self.hosts):
            life = SeedLife(
                slot=SLOTS[0], blueprint=self.blueprint, style="LINEAR_ADD", born=1, ended=7, outcome="fossilized", contribution=2.5,
                parameters=50,
            )  # fmt: skip
            grown = number < self.hosts
            ended = HostFinished(
                val_accuracy=self._accuracy(number), val_loss=0.5, test_accuracy=None, test_loss=None, host_parameters=100,
                parameters=150 if grown else 100, rent=5.0, control_accuracy=self._accuracy(number + self.hosts) if grown else None,
                control_loss=None, flops={"forward": 10}, germinated=int(grown), fossilized=int(grown), pruned=0, rollbacks=0, reward=1.0,
                components={"progress": 1.0}, decisions={"WAIT": 8}, refused=0, slots={}, seeds=(life,) if grown else (),
            )  # fmt: skip
            self.emit(ended, number, EPOCHS)
        self.emit(RunFinished(outcome="finished"))
        return self

    def emit(self, event: Event, host: int | None = None, epoch: int | None = None) -> None:
        """Append one event."""
        line = to_json_line(Envelope(seq=self.seq, time=time.time(), host=host, epoch=epoch, event=event))
        with (self.path / "events.jsonl").open("a") as file:
            file.write(line + "\n")
        self.seq += 1

    def _accuracy(self, number: int) -> float:
        return 20.0 + number % 7 + (8.0 if number < self.hosts else 2.0) * self.epoch

    def _epoch(self, number: int, before: Stage) -> None:
        losses = {"train_loss": 1.0, "val_loss": 1.0, "train_accuracy": 50.0, "learning_rate": 0.1, "gradient_norm": None}
        measured = EpochFinished(val_accuracy=self._accuracy(number), parameters=150, per_class=(), flops={"forward": 1}, **losses)  # type: ignore[arg-type]
        self.emit(measured, number, self.epoch)
        if before not in (Stage.DORMANT, Stage.UNKNOWN):
            names = ("contribution_loss", "trial_contribution", "trial_error", "trial_loss", "gradient_norm", "gradient_ratio")
            nothing = dict.fromkeys(names)
            seed = {"slot": SLOTS[0], "stage": before, "blueprint": self.blueprint, "alpha": min(1.0, self.epoch / 8)}
            self.emit(SeedMeasured(contribution=2.5, contribution_error=0.5, gradient_health=1.0, **seed, **nothing), number, self.epoch)  # type: ignore[arg-type]
        op = Op.GERMINATE if self.epoch == 1 else Op.WAIT
        decision = Decision(op=op, slot=SLOTS[0] if op else "", blueprint=self.blueprint if op else "", reason="as it seems")
        legal: dict[str, tuple[str, ...]] = {"op": ("WAIT", "GERMINATE")}
        legal |= {"blueprint": (self.blueprint, "norm")} if op else {}
        chances = dict.fromkeys(legal, (0.75, 0.25))
        self.emit(Decided(decision=decision, legal=legal, probabilities=chances, value=0.5), number, self.epoch)
        if self.stage is not before:
            changed = StageChanged(slot=SLOTS[0], before=before, after=self.stage, cause="tick", blueprint=self.blueprint, parameters=50)
            self.emit(changed, number, self.epoch)
        if self.epoch == 4:
            self.emit(GateChecked(gate=Gate.G2, slot=SLOTS[0], passed=True, reasons=(), figures={"alpha": 0.0}), number, self.epoch)
        self.emit(Rewarded(total=0.1, components={"progress": 0.2, "costs": -0.1}), number, self.epoch)
