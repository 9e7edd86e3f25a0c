"""Runs that teach a policy by playing: rounds on many hosts, learning after each, and an examination on unseen hosts at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from esper.kasmina.blueprints import names
from esper.leyline.actions import Op
from esper.leyline.errors import ConfigError
from esper.leyline.events import ArmExamined, HostFinished, PolicyUpdated
from esper.leyline.reports import Topology
from esper.leyline.score import score
from esper.leyline.seeds import Purpose, require
from esper.nissa import Hub
from esper.simic.growth.deciding import policy_for
from esper.simic.growth.environment import Start
from esper.simic.growth.naming import find_policy
from esper.simic.growth.play import ControllerDecider, Play, Progress
from esper.simic.growth.recording import FOLDER, about_of, going_on, rules_of, write_episode
from esper.simic.growth.sizes import longest_budget, most_slots
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.learning.repeated import Repeated
from esper.simic.learning.rollout import Rollout, RolloutBuffer
from esper.simic.runs.playing import Playing
from esper.simic.runs.practice_config import PracticeConfig
from esper.simic.runs.work import run_started, versions
from esper.simic.statistics import paired_difference
from esper.tamiyo import blueprint_names, make
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy.heads import Exploration
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy, reset_heads
from esper.tamiyo.policy.policy_file import save_policy
from esper.tamiyo.policy.policy_header import POLICY_FILE, read_header
from esper.tolaria.data.streams import stream_seed
from esper.tolaria.tasks import get as get_task

POOL_HOSTS, NEW_HOSTS = 10_000, 1_000_000
"""How far the training seeds of runs with neighbouring seeds lie apart, with a pool and with new hosts in every round."""


class Learning(Protocol):
    """Whatever a policy learns by, with everything that it goes on from."""

    @property
    def policy(self) -> Policy:
        """What learns."""

    def reset_heads(self, heads: Iterable[str]) -> None:
        """Make chosen heads as new, and forget what is known about them."""

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as a checkpoint can hold it."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""


class Practice(ABC):
    """A policy, the hosts it practises on, and the loop of playing and learning. After the last round, the arms of the examination.

    hub: takes the events. folder: the run folder, where episodes and the policy are kept; None to keep none.
    prior: what a new policy starts from. explore: by the longest budget, what it draws with; None where it does not draw.
    """

    RIVALS = ("wait", "random", "fixed", "heuristic")
    """Who is examined beside the policy, on the same hosts."""
    learner: Learning

    def __init__(
        self, config: PracticeConfig, prior: Prior, hub: Hub, command: str, folder: Path | None, *, exploring: bool = False
    ) -> None:
        self.config, self.prior, self.hub, self.command, self.folder = config, prior, hub, command, folder
        self.playing = Playing(config)
        tasks = [get_task(name) for name in config.task]
        torch.set_num_threads(config.threads or 1)
        first = self._first_policy().to(self.playing.devices[0])
        self.acting = Repeated(first.device)
        self._drawn(config.rounds - 1)  # host seeds that are for something else are told of before anything is trained
        steps, slots = max(longest_budget(config, task) for task in tasks), max(most_slots(config, task) for task in tasks)
        self.explore = Exploration.for_budget(steps) if exploring else None
        self.buffer = RolloutBuffer(config.hosts, steps, slots, len(first.config.blueprints), exploration=self.explore)
        self.round = self.hosts_begun = 0
        self.history: list[dict[str, float]] = []
        """The figures of each round, by their names in the manner of Stable-Baselines3."""
        self.arms: dict[str, list[HostFinished]] = {}
        """The examination so far."""
        self.learner = self._learner(first)

    @abstractmethod
    def _learner(self, policy: Policy) -> Learning:
        """What this policy learns by."""

    @abstractmethod
    def starts(self, number: int) -> list[Start]:
        """Everyone who begins in a round, counted from 0: first the hosts that are drawn, whose episodes are recorded."""

    @abstractmethod
    def decider(self, number: int) -> PolicyDecider:
        """Who decides for them."""

    @abstractmethod
    def learn(self, decider: PolicyDecider, rollout: Rollout, played: Sequence[HostFinished]) -> dict[str, float]:
        """Learn from a round, how everyone in it ended among it; what there is to say of that."""

    @property
    def policy(self) -> Policy:
        """What learns."""
        return self.learner.policy

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return self.config.rounds

    @property
    def done(self) -> bool:
        """Whether every round is played and every arm examined."""
        return self.round >= self.config.rounds and len(self.arms) == len(self.arm_names)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Who is examined at the end, in this order: the policy as the config has it decide, and the other way."""
        return ("policy", "policy-drawn" if self.config.deterministic else "policy-likeliest", *self.RIVALS)

    def close(self) -> None:
        """End the workers."""
        self.playing.close()

    def _first_policy(self) -> Policy:
        config = self.config
        generator = torch.Generator().manual_seed(stream_seed("policy", config.seed))
        blueprints = blueprint_names({topology: names(topology) for topology in Topology})
        sizes = {name: value for name in ("hidden", "slot_width") if (value := getattr(config, name)) is not None}
        if config.from_policy is not None:
            policy = policy_for(config.from_policy)
            for name, wanted in sizes.items():
                if wanted != getattr(policy.config, name):
                    found = getattr(policy.config, name)
                    raise ConfigError(f"{config.from_policy} has a {name} of {found}, which cannot become {wanted}; leave the setting out")
            if config.reset_heads:
                reset_heads(policy, config.reset_heads, generator)
            return policy
        if config.reset_heads:
            raise ConfigError("--reset-heads makes heads of an existing policy new; name it with --from-policy, or resume a run")
        return Policy(PolicyConfig(blueprints=blueprints, prior=self.prior, **sizes), generator)

    def examinees(self) -> list[Start]:
        """Unseen hosts for the examination."""
        tasks = self.config.task
        seeds = Purpose.DEVELOPMENT.seeds(self.config.examined)
        return [Start(tasks[i % len(tasks)], seed) for i, seed in enumerate(seeds)]

    # Running

    def begin(self) -> None:
        """Tell what begins, and what was learned so far."""
        config = self.config
        sizes: dict[str, float | int | str] = {
            "workers": self.playing.workers,
            "rollout_bytes": self.buffer.nbytes,
            "examined": config.examined,
            "arms": len(self.arm_names),
        }
        about = {**sizes, **self.playing.machine(), **self.about()}
        task = ",".join(config.task)
        started = run_started(self.command, config, task=task, hosts=config.hosts, rounds=config.rounds, round=self.round, **about)
        self.hub.emit(started)
        for number, figures in enumerate(self.history, start=1):
            self.hub.emit(PolicyUpdated(update=number, metrics=figures))

    def about(self) -> dict[str, float | int | str]:
        """What else there is to say of the run when it begins."""
        return {}

    def run_round(self, progress: Progress | None = None) -> None:
        """One round: play and learn. After the last round, one arm of the examination."""
        if self.round >= self.config.rounds:
            self.examine(self.arm_names[len(self.arms)], progress)
            return
        self.buffer.clear()
        starts, own, tasks = self.starts(self.round), self.config.hosts, self.config.task
        self.buffer.task.copy_(torch.tensor([tasks.index(start.task) for start in starts[:own]]))
        decider, first = self.decider(self.round), self._numbers(own)
        playing = Play(self.playing.environment, decider, starts, hub=self.hub, first=first, round=self.round + 1, recorded=own)
        played = playing.through(progress)
        # Before the hosts of the next round begin, which a run that goes on begins again.
        self.playing.engines = self.playing.environment.engines()
        last = self.round + 1 == self.config.rounds
        self.playing.environment.expect(dict(enumerate(self.examinees() if last else self.starts(self.round + 1))))
        rollout = self.buffer.rollout()
        figures = {**self.learn(decider, rollout, played), **round_figures(played[:own]), **rewards_by_op(rollout)}
        figures["rollout/host_epochs"] = float(sum(host.epochs for host in playing.started))
        self.history.append({name: figures[name] for name in sorted(figures)})
        self.round += 1
        self.hub.emit(PolicyUpdated(update=self.round, metrics=self.history[-1]))
        if self.folder is not None:
            rules = rules_of(self.config)
            for row, result in enumerate(played[:own]):
                with going_on(self.hub):
                    write_episode(
                        self.folder / FOLDER / f"round-{self.round:04}-host-{row:04}.safetensors",
                        episode_tensors(rollout, row, len(playing.started[row].slots)),
                        self.policy.config.blueprints,
                        about_of(playing.started[row], self.config.method, rules, result),
                    )

    def _numbers(self, hosts: int) -> int:
        """The number of the first of so many hosts in the record; no number is used twice in a run."""
        first = self.hosts_begun
        self.hosts_begun += hosts
        return first

    def _drawn(self, number: int) -> list[Start]:
        """The hosts of a round, counted from 0; a function of the config and that number."""
        config, tasks = self.config, self.config.task
        turns = [self._turn(number, place) for place in range(config.hosts)]
        if not config.pool:
            seeds = Purpose.TRAINING.seeds(config.hosts, offset=config.seed * NEW_HOSTS + number * config.hosts)
            require((Purpose.TRAINING,), (seeds[0], seeds[-1]), who="practice")
            return [Start(tasks[task], seed) for (_, task), seed in zip(turns, seeds, strict=True)]
        pool = Purpose.TRAINING.seeds(config.pool, offset=config.seed * POOL_HOSTS)
        require((Purpose.TRAINING,), (pool[0], pool[-1]), who="practice")
        drawn = []
        for turn, task in turns:
            own = pool[task :: len(tasks)]
            use, position = divmod(turn, len(own))
            drawn.append(Start(tasks[task], own[_order(config.seed, use, len(own))[position]]))
        return drawn

    def _turn(self, number: int, place: int) -> tuple[int, int]:
        """Of the host at a place of a round: how many hosts of its task came before, and the number of the task."""
        hosts, tasks = self.config.hosts, len(self.config.task)
        if self.config.turns == "hosts":
            return divmod(number * hosts + place, tasks)
        turn, task = divmod(number, tasks)
        return turn * hosts + place, task

    # The examination

    def examine(self, arm: str, progress: Progress | None = None) -> None:
        """Play one arm on the unseen hosts."""
        starts = self.examinees()
        decider: PolicyDecider | ControllerDecider
        if arm in self.RIVALS:
            decider = ControllerDecider([make(arm)] * len(starts))
        else:
            self.policy.eval()
            seed = stream_seed("examine", self.config.seed) % (1 << 31)
            likeliest = self.config.deterministic == (arm == "policy")
            decider = PolicyDecider(self.policy, seed, deterministic=likeliest, repeated=self.acting)
        playing = Play(self.playing.environment, decider, starts, hub=self.hub, first=self._numbers(len(starts)), round=self.round, arm=arm)
        self.arms[arm] = playing.through(progress)
        self.hub.emit(ArmExamined(arm=arm, hosts=len(starts), **self.arm_figures(arm)))

    def scores(self, arm: str) -> list[float]:
        """Val accuracy in points minus rent, host by host."""
        return [score(r.val_accuracy, r.parameters, r.host_parameters, r.rent) for r in self.arms[arm]]

    def arm_figures(self, arm: str) -> dict[str, float]:
        """One arm of the examination: means over its hosts."""
        results = self.arms[arm]
        return {
            "score": _mean(self.scores(arm)),
            "accuracy": _mean([r.val_accuracy for r in results]),
            "growth": _mean([r.parameters / r.host_parameters for r in results]),
            "operations": _mean([r.operations for r in results]),
            "fossils": _mean([r.fossilized for r in results]),
            "reward": _mean([r.reward for r in results]),
        }

    def examination(self) -> dict[str, Any]:
        """The policy against each rival, paired by host, on the val score: accuracy in points minus rent, of the harvested network.

        A claim on the test split is for a comparison of its own.
        """
        scores = {arm: self.scores(arm) for arm in self.arms}
        return {
            "hosts": self.config.examined,
            "arms": {arm: self.arm_figures(arm) for arm in self.arms},
            "policy_against": {arm: asdict(paired_difference(scores["policy"], scores[arm])) for arm in scores if arm in self.RIVALS},
            "rows": [
                {"task": start.task, "seed": start.seed, **{f"{arm}_score": scores[arm][i] for arm in scores}}
                for i, start in enumerate(self.examinees())
            ],
        }

    def trained(self) -> dict[str, Any]:
        """How the policy came about, for its file."""
        config, epochs = self.config, sum(int(figures["rollout/host_epochs"]) for figures in self.history)
        about = {"method": config.method, "task": list(config.task), "rounds": self.round, "hosts": config.hosts, "seed": config.seed}
        found = None if config.from_policy is None else find_policy(config.from_policy)
        before = {} if found is None else {"from": read_header(found.path).trained}
        return {**about, "host_epochs": epochs, **before}

    def end(self) -> dict[str, Any]:
        """Save the policy and return what was learned. No wall-clock times, so that equal runs have equal summaries."""
        if self.folder is not None:
            trained = self.trained()
            save_policy(self.policy, self.folder / POLICY_FILE, trained=trained)
        return {
            "command": self.command,
            "task": list(self.config.task),
            "seed": self.config.seed,
            "versions": versions(),
            "rounds": self.history,
            "examination": self.examination(),
        }

    # Saving

    def state(self) -> dict[str, Any]:
        """Everything between two rounds. Episodes start from zero memory, so no host is part of it, and no arm of an examination."""
        return {
            **self.playing.state(),
            "round": self.round,
            "hosts_begun": self.hosts_begun,
            "learner": self.learner.state(),
            "history": self.history,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit; settings of learning are the present ones."""
        self.playing.load_state(state)
        self.learner.load_state(state["learner"])
        self.round, self.hosts_begun, self.history = state["round"], state["hosts_begun"], list(state["history"])

    def reset_heads(self, heads: Sequence[str]) -> None:
        """Make chosen heads as new, and forget what the optimiser knew of them."""
        self.learner.reset_heads(heads)


@lru_cache(maxsize=8)  # as all hosts of a round ask for the same few
def _order(seed: int, use: int, size: int) -> list[int]:
    """The order in which a pool of that size is gone through, another one each time it is used up."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(stream_seed("pool", seed, use))).tolist()


def episode_tensors(rollout: Rollout, row: int, slots: int) -> dict[str, Tensor]:
    """One episode of a round as it is recorded: without the padding of its steps and slots."""
    steps = int(rollout.lengths()[row])
    tensors = {name: tensor[row, :steps] for name, tensor in rollout.observations.tensors().items()}
    for name in ("slots", "blueprints", "exists", "blueprint_mask", "costs"):  # [steps, slots, ...]
        tensors[name] = tensors[name][:, :slots]
    tensors["slot_mask"] = tensors["slot_mask"][:, :, :slots]  # [steps, ops, slots]
    return {**tensors, "actions": rollout.actions[row, :steps], "rewards": rollout.reward[row, :steps]}


def round_figures(played: Sequence[HostFinished]) -> dict[str, float]:
    """A round in figures, named in the manner of Stable-Baselines3."""
    figures = {
        "rollout/accuracy": _mean([r.val_accuracy for r in played]),
        "rollout/growth": _mean([r.parameters / r.host_parameters for r in played]),
        "rollout/fossils": _mean([r.fossilized for r in played]),
        "rollout/germinated": _mean([r.germinated for r in played]),
        "rollout/pruned": _mean([r.pruned for r in played]),
        "rollout/refused": _mean([r.refused for r in played]),
    }
    leads = [r.val_accuracy - r.control_accuracy for r in played if r.control_accuracy is not None]
    if leads:
        figures["rollout/against_control"] = _mean(leads)
    for name in played[0].components:
        figures[f"reward/{name}"] = _mean([r.components.get(name, 0.0) for r in played])
    seeds = [seed for r in played for seed in r.seeds]
    for blueprint in sorted({seed.blueprint for seed in seeds}):
        own = [seed.outcome for seed in seeds if seed.blueprint == blueprint]
        figures |= {f"germinated/{blueprint}": float(len(own)), f"fossilized/{blueprint}": float(own.count("fossilized"))}
    return figures | {f"actions/{op.name.lower()}": float(sum(r.decisions.get(op.name, 0) for r in played)) for op in Op}


def rewards_by_op(rollout: Rollout) -> dict[str, float]:
    """The mean reward of the steps in which each op was decided; an op that was never decided is left out."""
    ops = torch.where(rollout.weight > 0, rollout.actions[..., 0], -1)
    return {f"reward_by_op/{op.name.lower()}": float(rollout.reward[ops == op].mean()) for op in Op if (ops == op).any()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
