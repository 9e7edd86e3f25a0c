"""Recorded episodes: what a controller saw, what it decided and what that earned, in files that imitation and offline learning read.

One episode is one safetensors file: the fields of ObservationBatch, the actions and the rewards, time first, and who, what and how it
ended as metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from esper.leyline.actions import Decision
from esper.leyline.config import to_mapping
from esper.leyline.errors import RunError, in_a_line
from esper.leyline.events import HostFinished, HostStarted
from esper.leyline.files import replace_file
from esper.leyline.observation import OBSERVATION
from esper.leyline.score import rent_points, score
from esper.nissa import Hub
from esper.simic.growth.config import GrowthConfig
from esper.tamiyo import Observation
from esper.tamiyo.policy.batch import ObservationBatch

FOLDER = "episodes"
"""Where a run keeps them."""


def rules_of(config: GrowthConfig) -> dict[str, Any]:
    """What earned and what was allowed in the episodes of a run, for their `about`: episodes of other rules are not to be mixed.

    hash: of all the rest, which is for people. control: whether there was a twin, which the reward is then taken against.
    """
    rules = {"control": config.control, "reward": to_mapping(config.reward), "gates": to_mapping(config.training.gates)}
    return {"hash": hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:12], **rules}


def about_of(host: HostStarted, controller: str, rules: dict[str, Any], result: HostFinished) -> dict[str, Any]:
    """Who decided, on what, under which rules and how it ended: what every recorded episode tells of itself.

    final: val figures of the harvested network. size: what its growth costs at a rent of one point; score: points after rent.
    """
    grown, bare = result.parameters, result.host_parameters
    final = {
        "accuracy": result.val_accuracy,
        "loss": result.val_loss,
        "parameters": grown,
        "size": rent_points(grown, bare, 1.0),
        "rent": result.rent,
        "score": score(result.val_accuracy, grown, bare, result.rent),
    }
    return {"task": host.task, "seed": host.seed, "controller": controller, "member": dict(host.member), "rules": rules, "final": final}


class EpisodeRecorder:
    """Collects one host's episode, decision by decision."""

    def __init__(self) -> None:
        self.blueprints: tuple[str, ...] = ()
        self._rows: dict[str, list[Tensor]] = {}
        self._rewards: list[float] = []

    def decided(self, observation: Observation, decision: Decision) -> None:
        """What was seen, and what was decided."""
        self.blueprints = observation.masks.blueprint_names
        batch = ObservationBatch.from_observations([observation], self.blueprints)
        row = {name: tensor[0] for name, tensor in batch.tensors().items()}
        row["actions"] = torch.tensor(observation.masks.indices(decision), dtype=torch.int64)
        for name, tensor in row.items():
            self._rows.setdefault(name, []).append(tensor)

    def earned(self, reward: float) -> None:
        """What the last decision earned."""
        self._rewards.append(reward)
        assert len(self._rewards) == len(self._rows["actions"]), "a reward without its decision"

    def save(self, path: Path, **about: Any) -> None:
        """Write the episode, whole or not at all; `about` says who decided, on what, and how it ended. Raises RunError."""
        tensors = {name: torch.stack(rows) for name, rows in self._rows.items()}
        tensors["rewards"] = torch.tensor(self._rewards, dtype=torch.float32)
        write_episode(path, tensors, self.blueprints, about)

    def state(self) -> dict[str, Any]:
        """What was collected so far."""
        return {"blueprints": list(self.blueprints), "rows": self._rows, "rewards": list(self._rewards)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.blueprints = tuple(state["blueprints"])
        self._rows = {name: list(rows) for name, rows in state["rows"].items()}
        self._rewards = list(state["rewards"])


def write_episode(path: Path, tensors: dict[str, Tensor], blueprints: Sequence[str], about: dict[str, Any]) -> None:
    """Write an episode, whole or not at all: the fields of ObservationBatch, `actions` and `rewards`, each [steps, ...]."""
    metadata = {"schema": OBSERVATION.fingerprint(), "blueprints": json.dumps(blueprints), "about": json.dumps(about)}
    content = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise RunError(f"the episode {path} cannot be written: {error.strerror}; what the run wrote before is intact") from error


@contextmanager
def going_on(hub: Hub) -> Iterator[None]:
    """A disk that takes no episodes is told of once, and does not stop the run."""
    try:
        yield
    except RunError as error:
        hub.remark(f"{error}; the run goes on, and nothing can be learned from this episode later", once="episodes")


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """One recorded episode; every tensor is [steps] in front."""

    batch: ObservationBatch
    actions: Tensor
    rewards: Tensor
    about: dict[str, Any]


def read_episodes(runs: Sequence[Path], blueprints: tuple[str, ...] | None = None) -> tuple[list[RecordedEpisode], tuple[str, ...]]:
    """Every episode of these runs, and the blueprints that their actions refer to. Raises RunError for one that cannot be used."""
    episodes: list[RecordedEpisode] = []
    names = blueprints
    for run in runs:
        paths = sorted((run / FOLDER).glob("*.safetensors"))
        if not paths:
            raise RunError(f"{run} holds no recorded episodes; expected a run folder of esper train with files in {FOLDER}/")
        for path in paths:
            episode, found = _read(path)
            if names is not None and found != names:
                raise RunError(f"{path} was recorded with other blueprints ({', '.join(found)}) than the rest ({', '.join(names)})")
            names = found
            episodes.append(episode)
    assert names is not None
    return episodes, names


def _read(path: Path) -> tuple[RecordedEpisode, tuple[str, ...]]:
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if metadata["schema"] != OBSERVATION.fingerprint():
            raise RunError(f"{path} was recorded under another observation schema than this version's; record it again")
        names = tuple(json.loads(metadata["blueprints"]))
        actions, rewards = tensors.pop("actions"), tensors.pop("rewards")
        return RecordedEpisode(ObservationBatch(**tensors), actions, rewards, json.loads(metadata["about"])), names
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise RunError(f"{path} is not a recorded episode, or is damaged ({in_a_line(error)})") from error
