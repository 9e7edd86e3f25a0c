"""How much of what a controller sees is signal: every field of the observation, looked at again where nothing has changed.

    python benchmarks/senses.py [--task digits] [--member family] [--hosts 24] [--controller heuristic]

Hosts are grown under a controller, and after every epoch each of them is looked at five times at the same weights: as the controller
sees it; with batch norms made anew from other training samples ("repeat"); after one more epoch with a learning rate of zero
("still"); and on either half of the val split ("halves"). Each look has a history of its own, as if it were the only one, so what
differs between looks is noise. The table has every field in which they differ, with the share of its variance within a host that each
kind of noise makes up and what is left for signal: first with running statistics (recalibrate 0), then as it is by default.

Halves: a quarter of the mean square of their difference is the variance that the whole split owes to the choice of its samples. Repeat
and still: half of the mean square. Of train figures, still also shows that they are means over an epoch in which the host moved.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline.observation import OBSERVATION
from esper.leyline.reports import EpochReport
from esper.leyline.stages import BLENDED, LIVE, OCCUPIED, Stage
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.episode import Episode
from esper.tamiyo import Observation, Rules, make
from esper.tolaria.data import Data, Split
from esper.tolaria.data.splits import stratified
from esper.tolaria.tasks import get
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import measured

LOOKS = ("seen", "repeat", "still", "half a", "half b")
Rows = dict[str, list[list[float]]]
"""By field: what each look saw, once for each epoch (and slot) in which the field means something."""


def meaningful(field: str, stage: Stage) -> bool:
    """Whether a slot's field says something about a seed at that stage."""
    if field.startswith(("contribution", "interaction")):
        return stage in BLENDED
    if field.startswith("trial"):
        return stage is Stage.TRAINING
    return stage in LIVE if "gradient" in field else stage in OCCUPIED


class Watched:
    """A host that is looked at in every way: itself, and one copy for each look, which takes over its state after every epoch."""

    def __init__(self, task: str, data: Data, halves: list[Data], seed: int, config: GrowthConfig, controller: str) -> None:
        found, member = get(task), config.member_for(get(task).family, seed)
        settings = {"repeat": (data, member, seed + 1_000_000), "still": (data, replace(member, learning_rate=0.0), seed)}
        settings |= {name: (half, member, seed) for name, half in zip(("half a", "half b"), halves, strict=True)}
        self.host = Host(found, data, member, seed, config.training)
        self.copies = {name: Host(found, d, m, s, config.training) for name, (d, m, s) in settings.items()}
        for copy in self.copies.values():
            copy.split = self.host.split  # "repeat" has another seed, and so another reference; its training set is the same
        self.controller = make(controller)
        self.memory = self.controller.start(seed)
        self.episodes = {look: Episode(self.host, Rules()) for look in LOOKS}

    def epoch(self) -> list[Observation]:
        """One epoch more, what each look saw of it, and the decision after it."""
        (report,) = SerialEngine().run_epoch([self.host])
        reports = {"seen": report} | {name: self._looked(name, copy, report) for name, copy in self.copies.items()}
        observations = {look: self.episodes[look].look(reports[look]) for look in LOOKS}
        decision, self.memory = self.controller.decide(observations["seen"], self.memory)
        step = self.episodes["seen"].carry_out(observations["seen"], decision)
        for look in LOOKS[1:]:
            self.episodes[look].tracker.note_decision(decision, succeeded=not step.refused)
        return list(observations.values())

    def _looked(self, name: str, copy: Host, report: EpochReport) -> EpochReport:
        """The report of this epoch as one look has it."""
        copy.load_state(self.host.state())
        if name == "still":
            copy.model.host_meter.reset()
            for slot in copy.model.slots.values():
                slot.meter.reset()
            (again,) = SerialEngine().run_epoch([copy])
            known = ("epoch", "steps", "learning_rate", "initial_learning_rate", "rollbacks")
            return replace(again, **{each: getattr(report, each) for each in known})
        scores = copy.evaluate().read()
        return replace(report, **measured(copy.model, scores.by), per_class=scores.per_class)


def watched(job: tuple[str, Path | None, GrowthConfig, str, int]) -> Rows:
    """One host through its budget."""
    task, source, config, controller, seed = job
    torch.set_num_threads(1)
    data = get(task).load(source, torch.device(config.device))
    first, second = (index.to(data.val.x.device) for index in stratified(data.val.y.cpu().flatten(), len(data.val) // 2, "half"))
    halves = [
        Data(
            classes=data.classes,
            train=data.train,
            val=Split(data.val.x[index], data.val.y[index]),
            test=lambda: data.val,
            fingerprint="",
            origin="half",
        )
        for index in (first, second)
    ]
    both, rows = Watched(task, data, halves, seed, config, controller), defaultdict(list)
    while not both.host.done:
        observations = both.epoch()
        for place, field in enumerate(OBSERVATION.host_fields):
            rows[field.name].append([float(each.host[place]) for each in observations])
        for number, slot in enumerate(observations[0].report.seeds):
            for place, field in enumerate(OBSERVATION.slot_fields):
                if meaningful(field.name, slot.stage):
                    rows[f"slot: {field.name}"].append([float(each.slots[number, place]) for each in observations])
    return dict(rows)


def noise(values: NDArray[np.float64]) -> dict[str, float]:
    """Of values [rows, looks]: the variance that each kind of noise makes up."""
    seen, repeat, still, a, b = values.T
    squares = {"repeat": 0.5 * (seen - repeat) ** 2, "still": 0.5 * (seen - still) ** 2, "halves": 0.25 * (a - b) ** 2}
    return {name: float(each.mean()) for name, each in squares.items()}


def shares(hosts: list[Rows]) -> dict[str, dict[str, float]]:
    """By field: the share of the variance within a host that each kind of noise makes up, and what is left."""
    found = {}
    for field in dict.fromkeys(name for rows in hosts for name in rows):
        values = [np.array(rows[field]) for rows in hosts if len(rows.get(field, ())) > 1]
        if not values:
            continue
        everything = np.concatenate(values)
        within = np.concatenate([each[:, 0] - each[:, 0].mean() for each in values])
        variance, parts = float((within**2).mean()), noise(everything)
        if any(parts.values()) and variance > 0.0:
            found[field] = {name: part / variance for name, part in parts.items()} | {"rows": float(len(everything))}
            found[field]["signal"] = max(0.0, 1.0 - sum(found[field][name] for name in parts))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--member", default="family")
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--controller", default="heuristic")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the table to this file")
    args = parser.parse_args()
    tables = []
    for samples in (0, TrainingConfig().recalibrate):
        config = GrowthConfig(member=args.member, device=args.device, training=TrainingConfig(recalibrate=samples))
        jobs = [(args.task, args.data, config, args.controller, seed) for seed in range(args.hosts)]
        with mp.get_context("spawn").Pool(args.jobs) as pool:
            tables.append(shares(pool.map(watched, jobs, chunksize=1)))
    before, after = tables
    if args.json:
        args.json.write_text(json.dumps({"before": before, "after": after}, indent=1))
    print(f"{args.task}, {args.member}, {args.hosts} hosts under {args.controller}: shares of the variance within a host, in percent")
    titles = ("still", "halves", "signal")
    print(f"{'':32} running: " + " ".join(f"{t:>7}" for t in titles) + "   anew: " + " ".join(f"{t:>7}" for t in ("repeat", *titles)))
    for field in sorted(after.keys() | before.keys(), key=lambda name: after.get(name, before.get(name, {}))["signal"]):
        old, new = before.get(field), after.get(field)
        left = " ".join(f"{100 * old[t]:7.1f}" if old else " " * 7 for t in titles)
        right = " ".join(f"{100 * new[t]:7.1f}" if new else " " * 7 for t in ("repeat", *titles))
        print(f"{field:32}          {left}         {right}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
