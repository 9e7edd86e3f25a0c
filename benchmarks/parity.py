"""Whether a fleet trains and measures hosts as the serial engine does: the same hosts under both, on a task's own data, epoch by epoch.

    python benchmarks/parity.py [--task digits] [--device cpu] [--hosts 24] [--epochs 9] [--controller fixed]

Both engines round otherwise, and training makes much of little, so hosts part; on average over hosts nothing may. For every epoch the
mean difference of each figure, fleet minus serial, in units of its standard error: about one in twenty is beyond two by chance.
Under `fixed` gates let everything pass, so that both engines plant and keep the same seeds at the same times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from esper.leyline.actions import Decision
from esper.leyline.events import HostFinished
from esper.leyline.reports import EpochReport, GateConfig
from esper.leyline.seeds import Purpose
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.tamiyo import Observation, make
from esper.tolaria.training.config import TrainingConfig

Key = tuple[int, int, str]
"""A host's place, its epoch, and the name of a figure."""


class Recording(ControllerDecider):
    """Controllers, and what they saw."""

    def __init__(self, controller: str, hosts: int) -> None:
        super().__init__([make(controller) for _ in range(hosts)])
        self.figures: dict[Key, float] = {}

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """Ask each controller, and keep the figures of its host."""
        for place, observation in seen.items():
            report = observation.report
            self.figures |= {(place, report.epoch, name): value for name, value in figures(report).items()}
        return super().decide(seen)


def figures(report: EpochReport) -> dict[str, float]:
    """What was measured of a host and its seeds; a seed's figures by slot, blueprint and stage, so that only like ones are compared."""
    found: dict[str, float | None] = {
        "train accuracy": report.train_accuracy,
        "val accuracy": report.val_accuracy,
        "harvest": report.harvest_accuracy,
        "bare": report.bare_accuracy,
        "gradient norm": report.gradients.norm if report.gradients else None,
    }
    for seed in report.seeds:
        where = f"{seed.slot} {seed.blueprint} {seed.stage.name}"
        found |= {f"contribution|{where}": seed.contribution, f"trial|{where}": seed.trial_contribution}
    return {name: value for name, value in found.items() if value is not None}


def play(engine: Literal["fleet", "serial"], arguments: argparse.Namespace) -> tuple[dict[Key, float], list[HostFinished]]:
    """One episode of every host under an engine."""
    training = TrainingConfig(gates=GateConfig.permissive()) if arguments.controller == "fixed" else TrainingConfig()
    usual = GrowthConfig(member="family", epochs=arguments.epochs, control=False, training=training)
    config = replace(usual, engine=engine, device=arguments.device)
    decider = Recording(arguments.controller, arguments.hosts)
    starts = [Start(arguments.task, seed) for seed in Purpose.DEVELOPMENT.seeds(arguments.hosts, offset=arguments.first)]
    ended = Play(Growth(config), decider, starts).through()
    return decider.figures, ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--first", type=int, default=100, help="how many host seeds are passed over")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--controller", default="fixed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fleet, grown = play("fleet", arguments)
    serial, alone = play("serial", arguments)
    differences: dict[tuple[int, str], list[float]] = {}
    for (place, epoch, name), value in fleet.items():
        if (place, epoch, name) in serial:
            differences.setdefault((epoch, name.split("|")[0]), []).append(value - serial[place, epoch, name])
    beyond = counted = 0
    for (epoch, name), values in sorted(differences.items()):
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 2 else 0.0
        if error == 0.0:
            continue  # too few, or all the same
        times = float(np.mean(values)) / error
        counted, beyond = counted + 1, beyond + (abs(times) > 2)
        print(f"epoch {epoch:2d}  {name:15} {np.mean(values):+.3f} +- {error:.3f}  {times:+.1f} standard errors, {len(values)} pairs")
    ends = [one.val_accuracy - other.val_accuracy for one, other in zip(grown, alone, strict=True)]
    print(f"{beyond} of {counted} mean differences are beyond two standard errors")
    print(f"at the end: {np.mean(ends):+.2f} +- {np.std(ends, ddof=1) / len(ends) ** 0.5:.2f} points of val accuracy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
