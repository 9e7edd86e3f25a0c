"""The school: a policy plays rounds of episodes on many hosts and learns from each by PPO; at the end it is examined on unseen hosts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from esper.kasmina.blueprints import names
from esper.leyline.actions import Op
from esper.leyline.config import to_toml
from esper.leyline.errors import CheckpointError, ConfigError
from esper.leyline.events import HostFinished, PolicyUpdated, Refused, RolledBack, RunFinished, RunStarted, StageChanged
from esper.leyline.reports import Topology
from esper.nissa import Hub
from esper.simic.growth.environment import Environment, Growth, Start
from esper.simic.growth.play import Played, Progress, play_controller, play_round
from esper.simic.growth.recording import FOLDER, EpisodeRecorder
from esper.simic.growth.workers import GrowthWorkers
from esper.simic.learning.ppo import make_optimizer, update
from esper.simic.learning.ppo_metrics import UpdateMetrics
from esper.simic.learning.rollout import RolloutBuffer
from esper.simic.plugins import load_plugins
from esper.simic.runs.controller import versions
from esper.simic.runs.paired import paired_difference
from esper.simic.runs.ppo_config import PPORunConfig
from esper.tamiyo import blueprint_names, make
from esper.tamiyo.policy.heads import Exploration
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy, reset_heads
from esper.tamiyo.policy.policy_file import load_policy, save_policy
from esper.tolaria.data.streams import stream_seed
from esper.tolaria.tasks import get as get_task
from esper.tolaria.training.device import device_named

TRAINING_SEEDS = 1_000_000
"""Host seeds from here on are for training; smaller ones, which every other command uses, stay unseen for the examination."""

KEPT_EVENTS = (StageChanged, Refused, RolledBack)
"""What is recorded of an episode in training; a run of a single controller records everything."""

POLICY_FILE = "policy.safetensors"


class PPORun:
    """A policy, the hosts it practises on, and the loop of playing and learning. One call of `run_epoch` is one round."""

    ARMS = ("policy", "wait", "random", "fixed", "heuristic")
    """Who is examined at the end, in this order, on the same hosts."""

    def __init__(self, config: PPORunConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        self.config, self.hub, self.command, self.folder = config, hub, command, folder
        load_plugins(config.plugins)
        for task in config.task:
            get_task(task)
        device_named(config.device)  # a mistake is told before any worker starts
        torch.set_num_threads(config.threads or 1)
        self.blueprints = blueprint_names({topology: names(topology) for topology in Topology})
        self.policy = self._first_policy()
        self.ppo = config.ppo.over(config.rounds)
        self.optimizer = make_optimizer(self.policy, self.ppo)
        self.starts = self._pool()
        budgets, slots = self._sizes()
        self.explore = Exploration.for_budget(max(budgets))
        self.buffer = RolloutBuffer(config.hosts, max(budgets), slots, len(self.policy.config.blueprints), exploration=self.explore)
        self.round = 0
        self.played: list[Played] = []
        self.metrics: UpdateMetrics | None = None
        self.history: list[dict[str, float]] = []
        self.seconds: dict[str, float] = {}
        self.arms: dict[str, list[Played]] = {}
        """The examination so far."""
        self.examination: dict[str, Any] | None = None
        self._environment: Environment | None = None

    @property
    def epochs(self) -> int:
        """Rounds in all."""
        return self.config.rounds

    @property
    def done(self) -> bool:
        return self.round >= self.config.rounds and self.examination is not None

    @property
    def environment(self) -> Environment:
        """The hosts' environment, made when it is first needed: in this process, or in workers."""
        if self._environment is None:
            workers = min(self.config.workers, self.config.hosts)
            self._environment = GrowthWorkers(self.config, workers) if workers > 1 else Growth(self.config)
        return self._environment

    def close(self) -> None:
        """End the workers."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _first_policy(self) -> Policy:
        config = self.config
        generator = torch.Generator().manual_seed(stream_seed("policy", config.seed))
        sizes = {name: value for name in ("hidden", "slot_width") if (value := getattr(config, name)) is not None}
        if config.from_policy is not None:
            policy = load_policy(config.from_policy)
            missing = sorted(set(self.blueprints) - set(policy.config.blueprints))
            if missing:
                raise ConfigError(f"{config.from_policy} was made without the blueprint {missing[0]!r}, which these hosts have")
            for name, wanted in sizes.items():
                if wanted != getattr(policy.config, name):
                    found = getattr(policy.config, name)
                    raise ConfigError(f"{config.from_policy} has a {name} of {found}, which cannot become {wanted}; leave the setting out")
            if config.reset_heads:
                reset_heads(policy, config.reset_heads, generator)
            return policy
        if config.reset_heads:
            raise ConfigError("--reset-heads makes heads of an existing policy new; name it with --from-policy, or resume a run")
        return Policy(PolicyConfig(blueprints=self.blueprints, prior=config.ppo.prior, **sizes), generator)

    def _pool(self) -> list[Start]:
        """The hosts to practise on: a finite pool, so that each one's control is trained once."""
        tasks = self.config.task
        return [Start(tasks[i % len(tasks)], TRAINING_SEEDS + self.config.seed * 10_000 + i) for i in range(self.config.pool)]

    def _sizes(self) -> tuple[list[int], int]:
        """Budgets of the pool's hosts, and the most slots that one of them has."""
        budgets, slots = [], 0
        for start in (*self.starts, *self.examinees()):
            task = get_task(start.task)
            member = self.config.member_for(task.family, start.seed)
            budgets.append(member.epochs)
            slots = max(slots, len(task.make_host(member, task.classes)[1]))
        return budgets, slots

    def examinees(self) -> list[Start]:
        """Unseen hosts for the examination."""
        tasks = self.config.task
        return [Start(tasks[i % len(tasks)], i) for i in range(self.config.examined)]

    # Running

    def begin(self) -> None:
        """Record the start of a new run."""
        if self.hub.on:
            config = self.config
            started = RunStarted(
                command=self.command,
                task=",".join(config.task),
                hosts=config.hosts,
                epochs=config.rounds,
                seed=config.seed,
                versions=versions(),
            )
            self.hub.emit(started)

    def run_epoch(self, progress: Callable[[int], None] | None = None) -> None:
        """One round: play, learn, record. After the last round, one arm of the examination."""
        told = None if progress is None else lambda done, total: progress(round(self.config.hosts * done / total))
        if self.round >= self.config.rounds:
            self._examine(self.ARMS[len(self.arms)], told)
            return
        began = time.perf_counter()
        starts = self._drawn(self.round)
        self.buffer.clear()
        recorders = [EpisodeRecorder() for _ in starts] if self.folder is not None else []
        self.played = play_round(
            self.environment,
            self.policy,
            starts,
            seed=stream_seed("round", self.config.seed, self.round) % (1 << 31),
            explore=self.explore,
            buffer=self.buffer,
            recorders=recorders,
            progress=told,
        )
        between = time.perf_counter()
        generator = torch.Generator().manual_seed(stream_seed("update", self.config.seed, self.round))
        self.metrics = update(self.policy, self.optimizer, self.buffer.rollout(), self.ppo, self.round, generator)
        self.seconds = {"play": between - began, "learn": time.perf_counter() - between}
        self._record()
        self._keep(recorders)
        self.round += 1

    def _keep(self, recorders: Sequence[EpisodeRecorder]) -> None:
        """Write the round's episodes, which imitation and offline learning can read."""
        for row, recorder in enumerate(recorders):
            assert self.folder is not None
            played = self.played[row]
            about = {"task": played.start.task, "seed": played.start.seed, "controller": "ppo", "final": played.final}
            recorder.save(self.folder / FOLDER / f"round-{self.round:04}-host-{row:03}.safetensors", **about)

    def _drawn(self, number: int) -> list[Start]:
        """The hosts of a round: the pool in a new order each time it is used up."""
        size, hosts = len(self.starts), self.config.hosts
        chosen = []
        for place in range(number * hosts, (number + 1) * hosts):
            order = torch.randperm(size, generator=torch.Generator().manual_seed(stream_seed("pool", self.config.seed, place // size)))
            chosen.append(self.starts[int(order[place % size])])
        return chosen

    def _record(self) -> None:
        assert self.metrics is not None
        figures = {**self.metrics.flat(), **round_figures(self.played)}
        self.history.append({name: figures[name] for name in sorted(figures)})
        if not self.hub.on:
            return
        for row, played in enumerate(self.played):
            number = self.round * self.config.hosts + row
            for epoch, event in played.events:
                if isinstance(event, KEPT_EVENTS):
                    self.hub.emit(event, host=number, epoch=epoch)
            final = played.final
            finished = HostFinished(
                val_accuracy=final["accuracy"],
                test_accuracy=None,
                parameters=int(final["parameters"]),
                germinated=int(final["germinated"]),
                fossilized=int(final["fossilized"]),
                pruned=int(final["pruned"]),
                rollbacks=int(final["rollbacks"]),
            )
            self.hub.emit(finished, host=number, epoch=len(played.decisions))
        self.hub.emit(PolicyUpdated(update=self.round + 1, metrics=figures))

    # The examination

    def _examine(self, arm: str, progress: Progress | None) -> None:
        """Play one arm on the unseen hosts; after the last, compare."""
        starts = self.examinees()
        if arm == "policy":
            self.policy.eval()
            seed = stream_seed("examine", self.config.seed) % (1 << 31)
            likeliest = self.config.deterministic
            self.arms[arm] = play_round(
                self.environment, self.policy, starts, seed=seed, explore=None, deterministic=likeliest, progress=progress
            )
        else:
            self.arms[arm] = play_controller(self.environment, make(arm), starts, progress=progress)
        if len(self.arms) == len(self.ARMS):
            self.examination = self._compared(starts)

    def _compared(self, starts: Sequence[Start]) -> dict[str, Any]:
        """The policy against each other arm, paired by host, on the val score: accuracy in points minus rent, of the harvested network.

        A claim on the test split is for a comparison of its own.
        """
        scores = {name: [self.score(played) for played in plays] for name, plays in self.arms.items()}
        return {
            "hosts": len(starts),
            "arms": {name: arm_figures(plays, scores[name]) for name, plays in self.arms.items()},
            "policy_against": {
                name: asdict(paired_difference(scores["policy"], scores[name])) for name in scores if name != "policy"
            },
            "rows": [
                {"task": start.task, "seed": start.seed, **{f"{name}_score": scores[name][i] for name in scores}}
                for i, start in enumerate(starts)
            ],
        }

    def score(self, played: Played) -> float:
        """Val accuracy in points minus rent."""
        final = played.final
        growth = math.log2(final["parameters"] / final["host_parameters"])
        return final["accuracy"] - self.config.reward.rent * growth / math.log2(16)

    def end(self) -> dict[str, Any]:
        """Save the policy, record the end and return the summary."""
        if self.folder is not None:
            save_policy(self.policy, self.folder / POLICY_FILE, trained=self._trained())
        if self.hub.on:
            self.hub.emit(RunFinished(outcome="finished"))
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """What was learned. No wall-clock times, so that equal runs have equal summaries."""
        return {
            "command": self.command,
            "task": list(self.config.task),
            "seed": self.config.seed,
            "versions": versions(),
            "rounds": self.history,
            "examination": self.examination,
        }

    def _trained(self) -> dict[str, Any]:
        return {"task": list(self.config.task), "rounds": self.round, "hosts": self.config.hosts, "seed": self.config.seed}

    # Saving

    def state(self) -> dict[str, Any]:
        """Everything between two rounds. Episodes start from zero memory, so no host is part of it."""
        return {
            "config": to_toml(self.config.lasting()),
            "round": self.round,
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
            "examination": self.examination,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit; settings of learning are the present ones."""
        if state["config"] != to_toml(self.config.lasting()):
            raise CheckpointError("the checkpoint was written under another config than the run's config.toml")
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group, fresh in zip(self.optimizer.param_groups, self.policy.parameter_groups(self.ppo.weight_decay), strict=True):
            group["weight_decay"] = fresh["weight_decay"]
        self.round, self.history, self.examination = state["round"], list(state["history"]), state["examination"]

    def reset_heads(self, heads: Sequence[str]) -> None:
        """Make chosen heads as new, and forget what the optimiser knew of them."""
        generator = torch.Generator().manual_seed(stream_seed("reset", self.config.seed, self.round))
        for parameter in reset_heads(self.policy, heads, generator):
            self.optimizer.state.pop(parameter, None)


def round_figures(played: Sequence[Played]) -> dict[str, float]:
    """A round in figures, named in the manner of Stable-Baselines3."""
    count = len(played)
    figures = {
        "rollout/accuracy": sum(p.final["accuracy"] for p in played) / count,
        "rollout/growth": sum(p.final["parameters"] / p.final["host_parameters"] for p in played) / count,
        "rollout/fossils": sum(p.final["fossilized"] for p in played) / count,
        "rollout/germinated": sum(p.final["germinated"] for p in played) / count,
        "rollout/pruned": sum(p.final["pruned"] for p in played) / count,
        "rollout/refused": sum(p.refused for p in played) / count,
    }
    if all("control_accuracy" in p.final for p in played):
        figures["rollout/against_control"] = sum(p.final["accuracy"] - p.final["control_accuracy"] for p in played) / count
    for name in played[0].components:
        figures[f"reward/{name}"] = sum(p.components.get(name, 0.0) for p in played) / count
    ops = Counter(decision.op for p in played for decision in p.decisions)
    figures |= {f"actions/{op.name.lower()}": float(ops[op]) for op in Op}
    return figures


def arm_figures(plays: Sequence[Played], scores: Sequence[float]) -> dict[str, float]:
    """One arm of the examination: means over its hosts."""
    count = len(plays)
    return {
        "score": sum(scores) / count,
        "accuracy": sum(p.final["accuracy"] for p in plays) / count,
        "growth": sum(p.final["parameters"] / p.final["host_parameters"] for p in plays) / count,
        "fossils": sum(p.final["fossilized"] for p in plays) / count,
        "reward": sum(p.reward for p in plays) / count,
    }
