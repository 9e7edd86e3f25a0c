"""The search of a controller's settings: trials on the same hosts, the better ones on more of them, and the best on hosts that none saw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from esper.leyline.codec import to_plain
from esper.leyline.config import from_mapping, replace_fields, to_mapping, to_toml
from esper.leyline.errors import CheckpointError, ConfigError, RunError, unknown
from esper.leyline.events import ArmExamined, HostFinished, HostStarted
from esper.leyline.files import replace_file
from esper.leyline.score import score
from esper.leyline.seeds import Purpose, require
from esper.leyline.space import default_space, read_space, size
from esper.nissa import Hub
from esper.simic.growth.environment import Start
from esper.simic.growth.naming import find_policy
from esper.simic.growth.play import ControllerDecider, Play, Progress
from esper.simic.runs.drawing import FIELDS_AT_ONCE, import_optuna, optuna_point, random_points
from esper.simic.runs.halving import FEWEST_TRIALS, largest_plan
from esper.simic.runs.playing import Playing
from esper.simic.runs.search_config import SearchConfig
from esper.simic.runs.work import run_started, versions
from esper.simic.statistics import PairedDifference, paired_difference
from esper.tamiyo import CONTROLLERS, Controller
from esper.tolaria.tasks import get as get_task

BEST_FILE = "best.toml"
"""What came out best, in the run folder."""
PRESENT = 0
"""The trial with the settings that the search starts from."""

OWN_TABLES = ("heuristic", "fixed", "random")
"""Controllers whose settings have a table of their name in a run's config; those of a plug-in's are in `settings`."""

Job = tuple[int, int]
"""A trial and the number of a host for it to play."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a trial did on one host."""

    score: float
    """Val accuracy in points minus rent."""
    accuracy: float
    growth: float
    operations: int
    fossils: int
    reward: float


class TrialDecider(ControllerDecider):
    """The controllers of several trials, told apart by name in the record."""

    def __init__(self, controllers: Sequence[Controller], trials: Sequence[int]) -> None:
        super().__init__(controllers)
        self.trials = trials

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """Start a memory for each host; the names of the controllers, each with its trial."""
        return {place: f"{name}, trial {self.trials[place]}" for place, name in super().begin(started).items()}


class SearchRun:
    """Trials of a controller's settings, by successive halving, within a budget of host epochs.

    One round is as many hosts as are played at once, of one trial or several. The test split is never read.
    hub: takes the events. folder: the run folder, where the best settings are written at the end; None to write none.
    """

    def __init__(self, config: SearchConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        self.config, self.hub, self.command, self.folder = config, hub, command, folder
        self.playing = Playing(config)
        families = {task: config.fixed_family(get_task(task).family) for task in config.task}
        torch.set_num_threads(config.threads or 1)
        if config.method == "optuna":
            import_optuna()
        self.kind = _kind(config.controller)
        given = config.controller_config()
        self.present = from_mapping(self.kind.config, given or {}, config.controller) if given is None or isinstance(given, dict) else given
        """The settings that the search starts from."""
        texts = config.over or dict(self.kind.space) or default_space(self.present)
        if not texts:
            raise ConfigError(f"the controller {config.controller!r} has no settings that can be searched")
        self.space = read_space(self.present, texts, f"esper tune {config.controller}")
        require([Purpose.DEVELOPMENT], [config.seed], who="esper tune")

        @cache
        def epochs(number: int) -> int:
            start = self._start(number)
            return config.member_of(families[start.task], start.seed).epochs

        self.epochs = epochs
        most = {"most_trials": int(min(1 + size(self.space), 1e9)), "most_hosts": Purpose.TRAINING.first - config.seed}
        self.plan = largest_plan(config.budget, config.hosts, config.fresh, epochs, **most)
        self.trials: list[dict[str, Any]] = [{}]
        """The values of each trial that was drawn; those of the present settings come first."""
        if config.method == "random":
            self.trials += islice(self._random(), self.plan.trials - 1)
            # A small space may be used up before the budget is.
            if len(self.trials) < FEWEST_TRIALS:
                raise ConfigError(f"esper tune {config.controller}: what is to be searched holds the present settings and nothing else")
            self.plan = largest_plan(config.budget, config.hosts, config.fresh, epochs, **{**most, "most_trials": len(self.trials)})
        self.played: dict[Job, Played] = {}
        self.spent = self.round = self.hosts_begun = 0

    def _random(self) -> Iterator[dict[str, Any]]:
        """Trials at random, but for those that change nothing."""
        present = to_plain(self.present)
        for point in random_points(self.space, self.config.seed, FIELDS_AT_ONCE):
            if to_plain(self.settings(point)) != present:
                yield point

    def settings(self, values: Mapping[str, Any]) -> Any:
        """The controller's config with the values of a trial."""
        return replace_fields(self.present, values, f"esper tune {self.config.controller}")

    # What is to be played

    @property
    def rounds(self) -> int:
        """Rounds in all; fewer when nothing turns out better than the present settings."""
        jobs, before = [], 0
        for rung in self.plan.rungs:
            jobs.append(rung.trials * (rung.hosts - before))
            before = rung.hosts
        return sum(-(-count // self.config.side_by_side(gpu=self.playing.gpu)) for count in (*jobs, 2 * len(self.plan.fresh)))

    @property
    def done(self) -> bool:
        """Whether everything is played."""
        return not self._jobs()

    def _jobs(self) -> list[Job]:
        """What is left to play of the present rung, or of the comparison at the end; nothing when all is done."""
        trials, jobs = self._standing()
        if jobs or trials[0] == PRESENT:
            return jobs
        return [(trial, host) for host in self.plan.fresh for trial in (trials[0], PRESENT) if (trial, host) not in self.played]

    def _standing(self) -> tuple[list[int], list[Job]]:
        """All trials, those that came further first, of equals the one that was drawn first; and what is left to play of a rung."""
        trials = list(range(self.plan.trials))
        for rung in self.plan.rungs:
            playing, gone = trials[: rung.trials], trials[rung.trials :]
            if jobs := [(trial, host) for trial in playing for host in range(rung.hosts) if (trial, host) not in self.played]:
                return trials, jobs
            trials = sorted(playing, key=lambda trial: -self._means(trial, range(rung.hosts))["score"]) + gone
        return trials, []

    def _start(self, number: int) -> Start:
        """The host of a number; tasks take turns."""
        return Start(self.config.task[number % len(self.config.task)], self.config.seed + number)

    # Running

    def begin(self) -> None:
        """Tell what begins, and how the trials did so far."""
        config = self.config
        about: dict[str, float | int | str] = {"controller": config.controller, "budget": config.budget, "trials": self.plan.trials}
        about |= {"fresh": config.fresh, "settings": len(self.space), "round": self.round, **self.playing.machine()}
        task = ",".join(config.task)
        self.hub.emit(run_started(self.command, config, task=task, hosts=config.hosts, rounds=self.rounds, **about))
        self._tell({trial for trial, _ in self.played})

    def run_round(self, progress: Progress | None = None) -> None:
        """Play the next hosts."""
        jobs = self._jobs()[: self.config.side_by_side(gpu=self.playing.gpu)]
        self._draw(max(trial for trial, _ in jobs))
        controllers = {trial: self.kind.factory(self.settings(self.trials[trial])) for trial, _ in jobs}
        decider = TrialDecider([controllers[trial] for trial, _ in jobs], [trial for trial, _ in jobs])
        starts = [self._start(host) for _, host in jobs]
        play = Play(self.playing.environment, decider, starts, hub=self.hub, first=self.hosts_begun, round=self.round + 1)
        results = play.through(progress)
        self.playing.engines = self.playing.environment.engines()
        self.hosts_begun += len(jobs)
        self.spent += sum(host.epochs for host in play.started)
        assert self.spent <= self.plan.cost <= self.config.budget, "the plan said what it costs"
        self.played |= {job: self._figures(result) for job, result in zip(jobs, results, strict=True)}
        self.round += 1
        self._tell({trial for trial, _ in jobs})

    def _draw(self, last: int) -> None:
        """Have values for every trial up to this one, by what is known of those that have played the first rung."""
        first = self.plan.rungs[0].hosts
        while len(self.trials) <= last:
            whole = [t for t in range(len(self.trials)) if all((t, host) in self.played for host in range(first))]
            told = [(self._in_space(t), self._means(t, range(first))["score"]) for t in whole]
            self.trials.append(optuna_point(self.space, self.config.seed, len(self.trials), told))

    def _in_space(self, trial: int) -> dict[str, Any]:
        """Every value of a trial that is searched: those that it changed as they were drawn, the others as a config file has them."""
        values: dict[str, Any] = {}
        for key in self.space:
            place: Any = to_mapping(self.present)
            for part in key.split("."):
                place = place.get(part)  # one that is not set has no value to learn from
            values[key] = place
        return values | self.trials[trial]

    def _figures(self, result: HostFinished) -> Played:
        return Played(
            score=score(result.val_accuracy, result.parameters, result.host_parameters, result.rent),
            accuracy=result.val_accuracy,
            growth=result.parameters / result.host_parameters,
            operations=result.operations,
            fossils=result.fossilized,
            reward=result.reward,
        )

    def _tell(self, trials: set[int]) -> None:
        """Record how these trials stand."""
        for trial in sorted(trials):
            played = self._hosts_of(trial)
            if played:
                self.hub.emit(ArmExamined(arm=f"trial {trial}", hosts=len(played), **self._means(trial, played)))

    def _hosts_of(self, trial: int) -> list[int]:
        """The hosts that a trial has played in the search, the comparison left out."""
        return [host for host in range(self.plan.fresh.start) if (trial, host) in self.played]

    def _means(self, trial: int, hosts: Sequence[int]) -> dict[str, float]:
        rows = [asdict(self.played[trial, host]) for host in hosts]
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    # What came out

    def end(self) -> dict[str, Any]:
        """Write the best settings and return the summary. No wall-clock times, so that equal searches have equal summaries."""
        config, (ranking, _) = self.config, self._standing()
        best = ranking[0]
        rows = [
            {"trial": trial, "values": self.trials[trial], "hosts": len(hosts), **self._means(trial, hosts)}
            for trial in ranking
            if (hosts := self._hosts_of(trial))
        ]
        found: dict[str, Any] = {
            "controller": config.controller,
            "method": config.method,
            "space": {key: str(entry) for key, entry in self.space.items()},
            "budget": config.budget,
            "spent": self.spent,
            "rungs": [asdict(rung) for rung in self.plan.rungs],
            "trials": rows,
            "best": {"trial": best, "values": self.trials[best]},
            "fresh": None if best == PRESENT else self._comparison(best),
        }
        if self.folder is not None:
            self._write_best(best, found)
        return {"command": self.command, "task": list(config.task), "seed": config.seed, "versions": versions(), "search": found}

    def _comparison(self, best: int) -> dict[str, Any]:
        """The best against the present settings on the fresh hosts, and what the search itself made of it."""
        seen = [host for host in self._hosts_of(PRESENT) if (best, host) in self.played]
        searched, difference = (
            paired_difference([self.played[best, host].score for host in hosts], [self.played[PRESENT, host].score for host in hosts])
            for hosts in (seen, self.plan.fresh)
        )
        return {
            "hosts": len(self.plan.fresh),
            "best": self._means(best, self.plan.fresh),
            "present": self._means(PRESENT, self.plan.fresh),
            "difference": asdict(difference),
            "in_the_search": {"hosts": len(seen), "difference": searched.mean},
            "flattered_by": searched.mean - difference.mean,
            "rows": [
                {"seed": self.config.seed + host, "best": self.played[best, host].score, "present": self.played[PRESENT, host].score}
                for host in self.plan.fresh
            ],
        }

    def _write_best(self, best: int, found: Mapping[str, Any]) -> None:
        """The best settings as a config file, for `esper train heuristic --config`."""
        assert self.folder is not None
        name, settings = self.config.controller, self.settings(self.trials[best])
        lines = [f"# From: {self.command}", f"# {self.spent} host epochs, {self.plan.trials} trials; trial {best} came out best."]
        if best == PRESENT:
            lines.append("# That is what the search started from: nothing better was found.")
        else:
            difference = found["fresh"]["difference"]
            lines.append(f"# On {difference['pairs']} hosts that no trial saw: {PairedDifference(**difference)}, in points of score.")
        if name in OWN_TABLES:
            table = to_toml(settings, table=name)
        else:
            values = {key: json.dumps(json.dumps(value)) for key, value in to_mapping(settings).items()}
            table = "".join(f"{line}\n" for line in ["[settings]", *(f"{key} = {value}" for key, value in values.items())])
        gates = to_toml(self.config.training.gates, table="training.gates")  # what was found was found under these
        text = "\n".join([*lines, "", f"controller = {json.dumps(name)}", "", table, gates])
        try:
            replace_file(self.folder / BEST_FILE, text.encode())
        except OSError as error:
            raise RunError(f"{self.folder / BEST_FILE} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """End the workers."""
        self.playing.close()

    # Saving

    def state(self) -> dict[str, Any]:
        """Everything between two rounds. No host is part of it: each is played to its end within a round."""
        return {
            **self.playing.state(),
            "space": {key: str(entry) for key, entry in self.space.items()},
            "round": self.round,
            "spent": self.spent,
            "hosts_begun": self.hosts_begun,
            "trials": self.trials,
            "played": [[*job, to_plain(played)] for job, played in self.played.items()],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        self.playing.load_state(state)
        if state["space"] != {key: str(entry) for key, entry in self.space.items()}:
            raise CheckpointError("this version of Esper searches another space than the search began with; begin a new one")
        self.round, self.spent, self.hosts_begun = state["round"], state["spent"], state["hosts_begun"]
        self.trials = list(state["trials"])
        self.played = {(trial, host): Played(**played) for trial, host, played in state["played"]}


def _kind(name: str) -> Any:
    if find_policy(name) is not None:
        raise ConfigError(f"a trained policy has no settings to search; expected the name of a controller: {', '.join(CONTROLLERS)}")
    if name not in CONTROLLERS:
        raise unknown("controller", name, CONTROLLERS)
    return CONTROLLERS[name]
