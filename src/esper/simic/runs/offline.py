"""The run of imitation and of offline learning: a policy learns from recorded episodes, epoch by epoch, and can be stopped and resumed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from esper.leyline.actions import Op
from esper.leyline.config import to_toml
from esper.leyline.errors import CheckpointError, LearningError
from esper.leyline.events import PolicyUpdated
from esper.nissa import Hub
from esper.simic.growth.play import Progress
from esper.simic.learning.dataset import read_dataset, split
from esper.simic.learning.imitation import BehaviourCloning, agreement
from esper.simic.learning.offline import ImplicitQLearning
from esper.simic.learning.offline_config import BCConfig, IQLConfig
from esper.simic.runs.work import run_started, versions
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_file import save_policy
from esper.tamiyo.policy.policy_header import POLICY_FILE
from esper.tolaria.data.streams import generator

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


class Student(Protocol):
    """A way to learn from recorded episodes."""

    @property
    def finished(self) -> bool:
        """Whether more epochs would be in vain."""

    def learn(self, order: Tensor, number: int) -> dict[str, float]:
        """One epoch over the episodes in this order, int64 [episodes]; `number` counts epochs from 0."""

    def judge(self) -> dict[str, float]:
        """How it does on the held-out hosts."""

    def conclude(self) -> None:
        """Leave the policy as it is to be saved."""

    def state(self) -> dict[str, Any]:
        """Everything besides the policy."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""


class OfflineRun:
    """A policy, the recorded episodes, and the loop of epochs over them. One round is one epoch."""

    def __init__(self, config: BCConfig | IQLConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        self.config, self.hub, self.command, self.folder = config, hub, command, folder
        torch.set_num_threads(config.threads)
        recorded, blueprints = read_dataset(config.runs)
        self.host_epochs = int(recorded.weight.sum())
        """That were recorded, those of episodes that count for nothing among them: it took them to know that."""
        if isinstance(config, BCConfig) and config.temperature is not None:
            recorded = recorded.preferring(config.temperature, expected=config.expected, seed=config.seed)
        self.data = recorded.fingerprint()
        self.dataset, self.held_out = split(recorded, config.held_out, config.seed)
        size = PolicyConfig(blueprints=blueprints, hidden=config.hidden, slot_width=config.slot_width)
        self.policy = Policy(size, generator("policy", config.seed))
        self.student: Student
        if isinstance(config, BCConfig):
            self.student = BehaviourCloning(self.policy, config, self.dataset, self.held_out)
        else:
            self.student = ImplicitQLearning(self.policy, config, self.dataset, self.held_out)
        self.round = 0
        self.history: list[dict[str, float]] = []

    @property
    def rounds(self) -> int:
        """Epochs in all, unless learning ends before."""
        return self.config.epochs

    @property
    def done(self) -> bool:
        return self.round >= self.config.epochs or self.student.finished

    def begin(self) -> None:
        """Record the start of a new run."""
        tasks = sorted({task for task, _, _ in (*self.dataset.sources, *self.held_out.sources)})
        hosts, about = len(self.dataset) + len(self.held_out), {"held_out": len(self.held_out), "round": self.round}
        started = run_started(self.command, self.config, task=",".join(tasks), hosts=hosts, rounds=self.config.epochs, **about)
        self.hub.emit(started)

    def run_round(self, progress: Progress | None = None) -> None:
        """One epoch over the episodes, and a look at the held-out hosts. Raises LearningError when a figure of it is not finite."""
        order = torch.randperm(len(self.dataset), generator=generator("pass", self.config.seed, self.round))
        try:
            figures = {f"train/{name}": value for name, value in self.student.learn(order, self.round).items()}
            figures |= {f"held_out/{name}": value for name, value in self.student.judge().items()}
            for name, value in figures.items():
                if not math.isfinite(value):
                    raise FloatingPointError(f"{name} is {value}")
        except FloatingPointError as error:
            raise LearningError(
                f"epoch {self.round + 1} of learning went wrong: {error}; "
                "a run goes on as it began, so begin a new one with a lower learning_rate"
            ) from error
        self.history.append(figures)
        self.round += 1
        self.hub.emit(PolicyUpdated(update=self.round, metrics=figures))

    def end(self) -> dict[str, Any]:
        """Save the policy, record the end and return the summary."""
        self.student.conclude()
        summary = self.summary()
        if self.folder is not None:
            save_policy(self.policy, self.folder / POLICY_FILE, trained=self.trained(summary["study"]))
        return summary

    def trained(self, study: Mapping[str, Any]) -> dict[str, Any]:
        """How the policy came about, for its file, which may travel: runs by their names alone."""
        about = {name: study[name] for name in ("method", "controllers", "episodes", "held_out", "epochs", "agreement")}
        return {**about, "task": study["tasks"], "runs": [run.name for run in self.config.runs], "host_epochs": self.host_epochs}

    def summary(self) -> dict[str, Any]:
        """What was learned from, and how well it is agreed with. No wall-clock times, so that equal runs have equal summaries."""
        sources = (*self.dataset.sources, *self.held_out.sources)
        ops: Counter[Op] = self.dataset.ops() + self.held_out.ops()
        return {
            "command": self.command,
            "seed": self.config.seed,
            "versions": versions(),
            "study": {
                "method": self.config.kind,
                "runs": [str(run) for run in self.config.runs],
                "controllers": dict(Counter(controller for _, _, controller in sources)),
                "tasks": sorted({task for task, _, _ in sources}),
                "episodes": len(self.dataset),
                "held_out": len(self.held_out),
                "epochs": self.round,
                "ops": {op.name: ops[op] for op in Op},
                "choices": int(self.dataset.choices().sum() + self.held_out.choices().sum()),
                "agreement": agreement(self.policy, self.held_out, self.config.gamma),
            },
            "epochs": self.history,
        }

    def close(self) -> None:
        """Nothing is held but memory."""

    # Saving

    def state(self) -> dict[str, Any]:
        """The whole run between two epochs."""
        return {
            "config": to_toml(self.config),
            "data": self.data,
            "round": self.round,
            "history": [dict(figures) for figures in self.history],
            "policy": self.policy.state_dict(),
            "student": self.student.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit. Raises CheckpointError when it is of another config or other recordings."""
        if state["config"] != to_toml(self.config):
            raise CheckpointError("the checkpoint was written under another config than the run's config.toml")
        if state["data"] != self.data:
            raise CheckpointError("the recorded episodes are not those that the study began with; begin a new one")
        self.policy.load_state_dict(state["policy"])
        self.student.load_state(state["student"])
        self.round, self.history = state["round"], list(state["history"])
