"""The run of a comparison: every arm plays the same unseen hosts, a chunk of them at a time, and is scored on the test split."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from esper.leyline.actions import Planted, Style
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import CheckpointError, ConfigError
from esper.leyline.events import HostFinished, HostStarted
from esper.leyline.score import score
from esper.leyline.seeds import Purpose, require
from esper.nissa import Hub
from esper.simic.growth.deciding import controller_for, policy_from_file
from esper.simic.growth.environment import Start
from esper.simic.growth.play import ControllerDecider, Decider, DecidersAbreast, Play, Progress
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.runs.compare_config import (
    SEARCHED,
    STATIC_FINAL,
    STATIC_FLOPS,
    STATIC_LARGEST,
    SWEEP,
    TUNED,
    CompareConfig,
    Contender,
    contenders,
    from_table,
    rule,
    searched,
)
from esper.simic.runs.comparison import OPERATIONS, Row, row_of, statistics
from esper.simic.runs.playing import Playing
from esper.simic.runs.work import run_started, versions
from esper.tamiyo import make
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.tasks import get as get_task


@dataclass(frozen=True, slots=True)
class Ended:
    """A host that an arm has played."""

    started: HostStarted
    result: HostFinished


class CompareRun:
    """Arms and the hosts that all of them play. One round is one part of an arm on one chunk of hosts, or several that play at once.

    hub: takes the events. folder: not used, everything is in the summary.
    """

    def __init__(self, config: CompareConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        self.config, self.hub, self.command = config, hub, command
        self.playing = Playing(config, test=True)
        for task in config.task:
            get_task(task)
        require((Purpose.EXAMINATION,), config.host_seeds, who="esper compare")
        self.contenders = _deciding(config)
        """Those that decide, by the name of their arm."""
        self.first_policy = next(iter(self.contenders))
        self._policies: dict[str, Policy] = {
            name: policy_from_file(each.policy).to(self.playing.devices[0]).eval() for name, each in self.contenders.items() if each.policy
        }
        deciding = {each.name: each for contender in self.contenders.values() for each in contender.by_task.values() or (contender,)}
        for each in deciding.values():
            if each.controller:
                controller_for(each.controller, each.settings)  # a mistake in its settings is told before anything is played
        self.files = {name: (each.source, sha256(each.source.read_bytes()).hexdigest()) for name, each in deciding.items() if each.source}
        """Those that decide, each with its hash, by the name of who does as it says."""
        self.parts = [*self.contenders, *_static_parts(config)]
        """What is played on every chunk, in order: the arms, and of a sweep each size."""
        self.turns = _turns(self.parts, config.abreast)
        """The same, with what is played at once together."""
        self.starts = [Start(task, seed) for task in config.task for seed in config.host_seeds]
        self.chunks = _chunks(len(config.task), config.seeds, config.together)
        """Places of hosts that are played at once, all of one task: side by side, all wait in every epoch for the slowest."""
        self.ended: dict[str, list[Ended]] = {part: [] for part in self.parts}
        self.seconds: dict[str, float] = dict.fromkeys(self.parts, 0.0)
        """Wall-clock time by part."""
        self.round = self.hosts_begun = 0

    @property
    def rounds(self) -> int:
        """Turns times chunks."""
        return len(self.turns) * len(self.chunks)

    @property
    def done(self) -> bool:
        """Whether every arm has played every host."""
        return self.round >= self.rounds

    def close(self) -> None:
        """End the workers."""
        self.playing.close()

    # Running

    def begin(self) -> None:
        """Tell what begins."""
        config = self.config
        about: dict[str, int | str] = {"arms": ", ".join(self.arms), "seeds": config.seeds, "round": self.round}
        about |= self.playing.machine()
        task = ",".join(config.task)
        self.hub.emit(run_started(self.command, config, task=task, hosts=len(self.starts), rounds=self.rounds, **about))

    def run_round(self, progress: Progress | None = None) -> None:
        """The next turn on a chunk of hosts; the next chunk once every part has played this one."""
        began = time.monotonic()
        chunk, parts = self.chunks[self.round // len(self.turns)], self.turns[self.round % len(self.turns)]
        starts = [self._start(part, place) for part in parts for place in chunk]
        deciders = [(self._decider(part, starts[0].task, len(chunk)), len(chunk)) for part in parts]
        arms = [part for part in parts for _ in chunk]
        play = Play(self.playing.environment, DecidersAbreast(deciders), starts, hub=self.hub, first=self.hosts_begun, arm=arms)
        played = [Ended(*each) for each in zip(play.started, play.through(progress), strict=True)]
        self.playing.engines = self.playing.environment.engines()
        self.hosts_begun += len(starts)
        self.round += 1
        took, spent = time.monotonic() - began, sum(each.result.operations for each in played)
        for number, part in enumerate(parts):
            mine = played[number * len(chunk) : (number + 1) * len(chunk)]
            self.ended[part] += mine
            self.seconds[part] += took * sum(each.result.operations for each in mine) / spent

    def _start(self, part: str, place: int) -> Start:
        """The host at a place, as a part of an arm begins it."""
        start = self.starts[place]
        if part == STATIC_LARGEST:
            return replace(start, size=1.0)
        if part in (STATIC_FINAL, STATIC_FLOPS):
            grown = self.ended[self.first_policy][place]
            start = replace(start, planted=_architecture(grown.result))
            if part == STATIC_FINAL:
                return start
            static = self.ended[STATIC_FINAL][place]
            return replace(start, epochs=max(1, grown.result.operations * static.started.epochs // static.result.operations))
        sizes = _sweep_parts(self.config)
        return replace(start, size=sizes.index(part) / (len(sizes) - 1)) if part in sizes else start

    def _decider(self, part: str, task: str, hosts: int) -> Decider:
        """Who decides for so many hosts of a task, in a part: nobody does for networks that do not grow."""
        if part in self._policies:
            return PolicyDecider(self._policies[part], 0, deterministic=True)
        if part not in self.contenders:
            return ControllerDecider([make("wait")] * hosts)
        who = self.contenders[part].on(task)
        return ControllerDecider([controller_for(who.controller, who.settings)] * hosts)

    # What came out

    @property
    def arms(self) -> list[str]:
        """The arms in the order in which they are shown."""
        return [*self.contenders, *dict.fromkeys(_arm(part) for part in self.parts if part not in self.contenders)]

    def rows(self) -> list[Row]:
        """One row for each arm and host, arm by arm."""
        found = []
        members = [each.started.member for each in self.ended[self.first_policy]]
        for arm in self.arms:
            parts = [self.ended[part] for part in self.parts if _arm(part) == arm]
            for place, member in enumerate(members):
                each = [ended[place] for ended in parts]
                best = max(each, key=lambda ended: _val_score(ended.result))  # of equal ones the first, which is the smaller network
                spent = {name: sum(one.result.flops[name] for one in each) for name in OPERATIONS}
                found.append(row_of(arm, best.started, member, best.result, spent))
        return found

    def end(self) -> dict[str, Any]:
        """Rows and statistics. All but `wall_clock` is the same for equal runs."""
        rows = self.rows()
        seeds = self.config.host_seeds
        return {
            "command": self.command,
            "task": list(self.config.task),
            "seeds": {"first": seeds[0], "count": len(seeds)},
            "versions": versions(),
            "policies": [each.name for each in contenders(self.config)],
            "sizes": self.config.sizes,
            "comparison": statistics(rows),
            "rows": rows,
            "wall_clock": {arm: sum(self.seconds[part] for part in self.parts if _arm(part) == arm) for arm in self.arms},
        }

    # Saving

    def state(self) -> dict[str, Any]:
        """Everything between two rounds: what has been played."""
        return {
            **self.playing.state(),
            "contenders": {name: found for name, (_, found) in self.files.items()},
            "round": self.round,
            "hosts_begun": self.hosts_begun,
            "ended": {part: [to_plain(each) for each in ended] for part, ended in self.ended.items()},
            "seconds": self.seconds,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit. Raises CheckpointError when config or policies are not those of the run."""
        self.playing.load_state(state)
        for name, (path, found) in self.files.items():
            if state["contenders"][name] != found:
                raise CheckpointError(f"{path} is not what the comparison was started with")
        self.round, self.hosts_begun = state["round"], state["hosts_begun"]
        self.ended = {part: [from_plain(Ended, each) for each in ended] for part, ended in state["ended"].items()}
        self.seconds = dict(state["seconds"])


def _deciding(config: CompareConfig) -> dict[str, Contender]:
    """The policies that were named, and then the baselines that decide and are not among them."""
    found = {each.name: each for each in contenders(config)}
    for name in config.baselines:
        if name in (STATIC_FINAL, STATIC_LARGEST, SWEEP):
            continue
        if name == TUNED:
            assert config.tuned is not None, "config.baselines sees to it"
            found[name] = from_table(config.tuned, name, table="heuristic")
        elif name == SEARCHED:
            found[name] = searched(config)
        elif name not in found:
            found[name] = rule(name, config)
    if len(found) + len(_static_parts(config)) < 2:
        raise ConfigError("there is one arm alone, and nothing to compare it with; name another policy, or --arms all")
    return found


def _chunks(tasks: int, seeds: int, together: int) -> list[range]:
    """Places, task after task, cut into pieces of so many hosts at most, none of which has hosts of two tasks."""
    ends = [(first, first + seeds) for first in range(0, tasks * seeds, seeds)]
    return [range(place, min(place + together, end)) for first, end in ends for place in range(first, end, together)]


def _static_parts(config: CompareConfig) -> list[str]:
    """Parts of the arms that do not grow."""
    parts = {STATIC_FINAL: [STATIC_FINAL, STATIC_FLOPS], STATIC_LARGEST: [STATIC_LARGEST], SWEEP: _sweep_parts(config)}
    return [part for name in config.baselines for part in parts.get(name, ())]


def _sweep_parts(config: CompareConfig) -> list[str]:
    return [f"{SWEEP} {number} of {config.sizes}" for number in range(1, config.sizes + 1)]


def _turns(parts: Sequence[str], abreast: bool) -> list[tuple[str, ...]]:
    """Parts in the order in which they are played: each by itself, or at once what needs not know how another one ended."""
    later = [part for part in parts if part in (STATIC_FINAL, STATIC_FLOPS)]
    at_once = tuple(part for part in parts if part not in later)
    return [at_once, *((part,) for part in later)] if abreast else [(part,) for part in parts]


def _arm(part: str) -> str:
    """The arm that a part belongs to."""
    return SWEEP if part.startswith(f"{SWEEP} ") else part


def _architecture(grown: HostFinished) -> tuple[Planted, ...]:
    """What a host kept of what grew in it."""
    kept: Sequence[tuple[str, dict[str, str]]] = [(id, slot) for id, slot in grown.slots.items() if slot["stage"] == "FOSSILIZED"]
    return tuple(Planted(slot=id, blueprint=slot["blueprint"], style=Style[slot["style"]]) for id, slot in kept)


def _val_score(result: HostFinished) -> float:
    return score(result.val_accuracy, result.parameters, result.host_parameters, result.rent)
