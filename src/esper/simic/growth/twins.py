"""Twins: what each host does without growth. Trained once for each task, member and seed, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import torch

import esper
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import RunError, StateError
from esper.leyline.files import replace_file
from esper.leyline.score import USUAL_RENT
from esper.simic.growth.config import GrowthConfig
from esper.simic.rewards import Twin
from esper.tolaria.data.sources import cache_folder
from esper.tolaria.training.engine import choose
from esper.tolaria.training.host import Host

HOW = ("clip", "precision", "channels_last", "compile", "eval_batch", "recalibrate")
"""Settings of training that a host without seeds depends on."""
CODE = ("leyline", "kasmina", "tolaria", "simic/growth")
"""The parts of the package that train and measure hosts."""


class TwinCache:
    """The courses of twins. A course depends on the host, its data and how it is trained, never on who controls others."""

    def __init__(self, config: GrowthConfig, folder: Path | None = None) -> None:
        self.config = config
        self.folder = folder or cache_folder() / "controls"
        self._known: dict[str, Twin] = {}

    def get(self, hosts: Sequence[Host], train: Callable[[list[Host]], list[Twin]]) -> list[Twin]:
        """The course of each host's twin, from memory, from disk, or from `train`, which is given all that are missing at once."""
        keys = [self._key(host) for host in hosts]
        missing: dict[str, Host] = {}
        for key, host in zip(keys, hosts, strict=True):
            if key in self._known:
                continue
            found = _read(self.folder / f"{key}.json", host.member.epochs)
            if found is not None:
                self._known[key] = found
            else:
                missing[key] = host
        for key, twin in zip(missing, train(list(missing.values())) if missing else [], strict=True):
            self._known[key] = twin
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(self.folder / f"{key}.json", json.dumps(to_plain(twin)).encode())
            except OSError as error:
                raise RunError(f"controls cannot be kept in {self.folder}: {error.strerror}; ESPER_DATA names another folder") from error
        return [self._known[key] for key in keys]

    def _key(self, host: Host) -> str:
        how = {name: getattr(self.config.training, name) for name in HOW}
        # What size costs changes nothing in a network that does not grow.
        governor, built = asdict(self.config.training.governor), host.task.fingerprint(replace(host.member, rent=USUAL_RENT))
        device = host.split.x.device
        where = [device.type, choose(self.config.engine, self.config.training, device).engine]
        facts = [built, host.data.fingerprint, host.seed, how, governor, where, torch.__version__, code_version()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


@cache
def code_version() -> str:
    """A hash of the code that trains and measures a host: another version of it may give other courses."""
    root = Path(esper.__file__).parent
    files = sorted(path for name in CODE for path in (root / name).rglob("*.py"))
    return hashlib.sha256(b"".join(path.relative_to(root).as_posix().encode() + path.read_bytes() for path in files)).hexdigest()


def _read(path: Path, epochs: int) -> Twin | None:
    """A course from disk; a damaged or foreign file counts as none and is written anew."""
    try:
        twin = from_plain(Twin, json.loads(path.read_bytes()))
    except (OSError, ValueError, StateError):
        return None
    return twin if len(twin.accuracy) == len(twin.loss) == epochs and twin.final is not None else None
