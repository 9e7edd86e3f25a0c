"""A study: a policy learns from recorded runs, pass by pass, in a run of its own that can be stopped and resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from esper.leyline.actions import Op
from esper.leyline.config import to_toml
from esper.leyline.errors import CheckpointError
from esper.leyline.events import PolicyUpdated, RunStarted
from esper.nissa import Hub
from esper.simic.growth.play import Progress
from esper.simic.learning.dataset import read_dataset, split
from esper.simic.learning.imitation import BehaviourCloning, agreement
from esper.simic.learning.offline import ImplicitQLearning
from esper.simic.learning.offline_config import BCConfig, IQLConfig
from esper.simic.runs.work import POLICY_FILE, versions
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_file import save_policy
from esper.tolaria.data.streams import stream_seed

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


class Student(Protocol):
    """A way to learn from recorded episodes."""

    @property
    def finished(self) -> bool:
        """Whether more passes would be in vain."""
        ...

    def learn(self, order: Tensor, number: int) -> dict[str, float]:
        """One pass over the episodes in this order; `number` counts passes from 0."""
        ...

    def judge(self) -> dict[str, float]:
        """How it does on the held-out hosts."""
        ...

    def conclude(self) -> None:
        """Leave the policy as it is to be saved."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything besides the policy."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        ...


class OfflineRun:
    """A policy, the recorded episodes, and the loop of passes over them. One round is one pass."""

    def __init__(self, config: BCConfig | IQLConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        self.config, self.hub, self.command, self.folder = config, hub, command, folder
        torch.set_num_threads(config.threads)
        recorded, blueprints = read_dataset(config.runs)
        self.data = recorded.fingerprint()
        self.lessons, self.held_out = split(recorded, config.held_out, config.seed)
        size = PolicyConfig(blueprints=blueprints, hidden=config.hidden, slot_width=config.slot_width)
        self.policy = Policy(size, torch.Generator().manual_seed(stream_seed("policy", config.seed)))
        self.student: Student
        if isinstance(config, BCConfig):
            self.student = BehaviourCloning(self.policy, config, self.lessons, self.held_out)
        else:
            self.student = ImplicitQLearning(self.policy, config, self.lessons, self.held_out)
        self.round = 0
        self.history: list[dict[str, float]] = []

    @property
    def rounds(self) -> int:
        """Most passes."""
        return self.config.epochs

    @property
    def done(self) -> bool:
        return self.round >= self.config.epochs or self.student.finished

    def begin(self) -> None:
        """Record the start of a new run."""
        started = RunStarted(
            command=self.command,
            method=self.config.kind,
            task=",".join(sorted({task for task, _, _ in (*self.lessons.sources, *self.held_out.sources)})),
            hosts=len(self.lessons) + len(self.held_out),
            rounds=self.config.epochs,
            seed=self.config.seed,
            versions=versions(),
            about={"held_out": len(self.held_out), "round": self.round},
        )
        self.hub.emit(started)

    def run_round(self, progress: Progress | None = None) -> None:
        """One pass over the episodes, and a look at the held-out hosts."""
        generator = torch.Generator().manual_seed(stream_seed("pass", self.config.seed, self.round))
        order = torch.randperm(len(self.lessons), generator=generator)
        learned = {f"train/{name}": value for name, value in self.student.learn(order, self.round).items()}
        judged = {f"held_out/{name}": value for name, value in self.student.judge().items()}
        self.history.append({**learned, **judged})
        self.round += 1
        self.hub.emit(PolicyUpdated(update=self.round, metrics=self.history[-1]))

    def end(self) -> dict[str, Any]:
        """Save the policy, record the end and return the summary."""
        self.student.conclude()
        summary = self.summary()
        if self.folder is not None:
            about = {name: summary["study"][name] for name in ("method", "runs", "controllers", "tasks", "episodes", "held_out", "passes")}
            save_policy(self.policy, self.folder / POLICY_FILE, trained={**about, "agreement": summary["study"]["agreement"]})
        return summary

    def summary(self) -> dict[str, Any]:
        """What was learned from, and how well it is agreed with. No wall-clock times, so that equal runs have equal summaries."""
        sources = (*self.lessons.sources, *self.held_out.sources)
        ops: Counter[Op] = self.lessons.ops() + self.held_out.ops()
        return {
            "command": self.command,
            "seed": self.config.seed,
            "versions": versions(),
            "study": {
                "method": self.config.kind,
                "runs": [str(run) for run in self.config.runs],
                "controllers": dict(Counter(controller for _, _, controller in sources)),
                "tasks": sorted({task for task, _, _ in sources}),
                "episodes": len(self.lessons),
                "held_out": len(self.held_out),
                "passes": self.round,
                "ops": {op.name: ops[op] for op in Op},
                "choices": int(self.lessons.choices().sum() + self.held_out.choices().sum()),
                "agreement": agreement(self.policy, self.held_out, self.config.gamma),
            },
            "passes": self.history,
        }

    def close(self) -> None:
        """Nothing is held but memory."""

    # Saving

    def state(self) -> dict[str, Any]:
        """The whole study between two passes."""
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
