"""Controls: what each host does without growth. Computed once for each task, member and seed, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch

from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import StateError
from esper.leyline.files import replace_file
from esper.simic.growth.config import GrowthConfig
from esper.simic.rewards import FinalScore, Twin
from esper.tolaria.data import Data
from esper.tolaria.data.sources import cache_folder
from esper.tolaria.tasks import Member, Task
from esper.tolaria.training.flops import FlopLedger
from esper.tolaria.training.host import Host


def final_score(host: Host) -> FinalScore:
    """What is harvested of a host now, on val."""
    score = host.score(host.data.val)
    return FinalScore(accuracy=score.accuracy, loss=score.loss, parameters=host.harvest_parameters())


class TwinCache:
    """The curves of WAIT-only twins. A curve depends on the host, its data and how it is trained, never on who controls others."""

    def __init__(self, config: GrowthConfig, folder: Path | None = None) -> None:
        self.config = config
        self.folder = folder or cache_folder() / "controls"
        self._known: dict[str, Twin] = {}

    def get(self, task: Task, data: Data, member: Member, seed: int) -> Twin:
        """The twin's val accuracy and loss after each epoch, from memory, from disk, or trained now."""
        key = self._key(task, data, member, seed)
        if key not in self._known:
            path = self.folder / f"{key}.json"
            self._known[key] = _read(path, member.epochs) or self._train(task, data, member, seed, path)
        return self._known[key]

    def _key(self, task: Task, data: Data, member: Member, seed: int) -> str:
        training = self.config.training
        names = ("clip", "precision", "channels_last", "compile", "eval_batch", "recalibrate")
        how = {name: getattr(training, name) for name in names}
        governor = asdict(training.governor)
        facts = [task.name, data.fingerprint, asdict(member), seed, how, governor, self.config.device, torch.__version__]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]

    def _train(self, task: Task, data: Data, member: Member, seed: int, path: Path) -> Twin:
        host = Host(task, data, member, seed, self.config.training, FlopLedger())
        accuracies, losses = [], []
        while not host.done:
            report = host.train_epoch()
            host.end_epoch()
            accuracies.append(report.val_accuracy)
            losses.append(report.val_loss)
        control = Twin(accuracy=tuple(accuracies), loss=tuple(losses), final=final_score(host))
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(to_plain(control)).encode())
        return control


def _read(path: Path, epochs: int) -> Twin | None:
    """A curve from disk; a damaged or foreign file counts as none and is written anew."""
    try:
        control = from_plain(Twin, json.loads(path.read_bytes()))
    except (OSError, ValueError, StateError):
        return None
    return control if len(control.accuracy) == len(control.loss) == epochs and control.final is not None else None
