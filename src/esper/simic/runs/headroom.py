"""The run that looks for headroom: many plans on the same hosts, and what it would be worth to choose among them by the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from esper.kasmina.blueprints import names
from esper.leyline.actions import Decision
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.config import to_toml
from esper.leyline.errors import ConfigError, unknown
from esper.leyline.events import HostFinished, HostStarted, PlansPlayed
from esper.leyline.files import replace_file
from esper.leyline.score import rent_points, score
from esper.leyline.seeds import Purpose
from esper.nissa import Hub
from esper.simic.adaptivity import Outcomes, adaptivity, encoded, hosts_needed
from esper.simic.growth.deciding import controller_for
from esper.simic.growth.environment import Start
from esper.simic.growth.play import ControllerDecider, Play, Progress
from esper.simic.growth.recording import FOLDER, EpisodeRecorder, about_of, going_on, rules_of
from esper.simic.runs.compare_config import PLAN_FILE
from esper.simic.runs.headroom_config import HeadroomConfig
from esper.simic.runs.playing import Playing
from esper.simic.runs.work import run_started, versions
from esper.simic.statistics import interval
from esper.tamiyo import Controller, FixedConfig, Observation, make
from esper.tolaria.tasks import get as get_task

FIRST_HOST, FIRST_REPEAT = 300_000, 400_000
"""Where its hosts are among the development seeds, and those that are born anew; each seed of a search has 1,000 of them."""
LOOK = 3
"""The epoch after which what a host has shown so far counts as known."""
REPEATED_PLANS = 3
"""The best plans, which are repeated."""
NO_FEATURES = ("label_noise", "rent")
"""Fields of a member that nothing is predicted from: what nobody knows of a host beforehand, and what training does not depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One plan on one host."""

    plan: int
    """Its number; below zero a controller that plays beside the plans, the first one of them -1."""
    host: int
    repeat: int
    score: float
    accuracy: float
    growth: float
    """Parameters of what was harvested over the host's."""
    flops: float
    """Operations in all."""


@dataclass(frozen=True, slots=True)
class Job:
    """A plan to be played on a host."""

    plan: int
    host: int
    repeat: int = 0


class Watching(ControllerDecider):
    """Controllers, one for each host; what a host shows in its first epochs is noted where it is to be looked at."""

    def __init__(self, controllers: Sequence[Controller], look: Mapping[int, int]) -> None:
        super().__init__(controllers)
        self.look = look
        """By place, the last epoch that is looked at."""
        self.seen: dict[int, list[float]] = {}

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """Ask each plan, and note what is to be noted."""
        for place, observation in seen.items():
            report = observation.report
            if report.epoch <= self.look.get(place, 0):
                self.seen[place] = [report.train_accuracy, report.val_accuracy, report.train_loss, report.val_loss]
        return super().decide(seen)


WAITING = FixedConfig(seeds=0)


class HeadroomRun:
    """Plans and hosts, a chunk of episodes a round: the basic plans, then those that are proposed, then repetitions.

    hub: takes the events. folder: the run folder, where the best plan is written.
    """

    def __init__(self, config: HeadroomConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        self.config, self.hub, self.command, self.folder = config, hub, command, folder
        self.playing = Playing(config)
        first = Purpose.DEVELOPMENT.first + FIRST_HOST + config.seed * 1_000
        self.starts = [Start(config.task[i % len(config.task)], first + i) for i in range(config.hosts)]
        self.members = [config.member_for(get_task(start.task).family, start.seed) for start in self.starts]
        self.where = self._where()
        """Where a plan may place a seed: 0 is the first slot, 1 the last."""
        self.plans = self._basic()
        self.beside = [controller_for(name, called="beside") for name in config.beside]
        """Whoever plays beside the plans."""
        for number, controller in enumerate(self.beside):
            if controller.name in [each.name for each in self.beside[:number]]:
                raise ConfigError(f"'beside' names {controller.name} twice; each plays once")
        self.stage, self.round = 0, 0
        self.played: list[Played] = []
        self.shown: dict[int, list[float]] = {}
        """By host, what it showed before anything grew."""
        self.jobs = self._all(range(-len(self.beside), len(self.plans)))
        """What is left of the present stage."""

    def _all(self, plans: Iterable[int]) -> list[Job]:
        """These plans on every host, hosts that are alike next to each other: they end together, and a fleet has many of them."""
        alike = [(start.task, member.epochs, repr(member)) for start, member in zip(self.starts, self.members, strict=True)]
        numbers = sorted(range(self.config.hosts), key=alike.__getitem__)
        return [Job(plan, host) for host in numbers for plan in plans]

    # Plans

    def _basic(self) -> list[FixedConfig]:
        """Waiting, and if plans are wanted each blueprint at the first, the middle and the last slot, and at all of them."""
        plans, places = [WAITING], dict.fromkeys([*((place,) for place in self.where), self.where])
        for blueprints in self._blueprints() if self.config.plans else ():
            one = FixedConfig(blueprints=blueprints, first=1, period=3, tempo=3)
            plans += [replace(one, places=each) for each in places]
        return plans

    def _where(self) -> tuple[float, ...]:
        """First, middle and last; fewer where no host may use that many slots, because there two of them are the same."""
        hosts = dict.fromkeys((start.task, member) for start, member in zip(self.starts, self.members, strict=True))
        most = max(len(get_task(task).make_host(member, get_task(task).classes)[1]) for task, member in hosts)
        return {1: (0.0,), 2: (0.0, 1.0)}.get(min(most, len(self.config.slots) or most), (0.0, 0.5, 1.0))

    def _blueprints(self) -> list[tuple[str, ...]]:
        """What can grow: for tasks of several topologies one of each, in the order of their size."""
        topologies = dict.fromkeys(self._topology(task) for task in self.config.task)
        known = {name for topology in topologies for name in names(topology)}
        for name in self.config.blueprints:
            if name not in known:
                raise unknown("blueprint", name, known)
        wanted = self.config.blueprints or tuple(known)
        lists = [found for topology in topologies if (found := [name for name in names(topology) if name in wanted])]
        longest = max(map(len, lists))
        return [tuple(dict.fromkeys(each[min(i, len(each) - 1)] for each in lists)) for i in range(longest)]

    def _topology(self, task: str) -> Any:
        from esper.kasmina import Growable

        found = get_task(task)
        member = self.config.member_for(found.family, self.starts[0].seed)
        host, slots = found.make_host(member, found.classes)
        model = Growable(host, slots, found.example(member))
        return next(iter(model.slots.values())).place.shape.topology

    def _near(self, plan: FixedConfig) -> Iterator[FixedConfig]:
        """Plans that differ from one in a single respect: a place more or fewer, another blueprint, a later start, the same again."""
        places = plan.places
        for place in (0.5, 0.0, 1.0):
            if places and place in self.where and place not in places:
                yield replace(plan, places=(*places, place))
        for place in places if len(places) > 1 else ():
            yield replace(plan, places=tuple(each for each in places if each != place))
        for blueprints in self._blueprints():
            if places and blueprints != plan.blueprints:
                yield replace(plan, blueprints=blueprints)
        if places and plan.first < 5:
            yield replace(plan, first=plan.first + 4)

    def _propose(self) -> list[FixedConfig]:
        """Plans that nobody tried yet, near those that did best: on average, and in turn near those that add most for some hosts."""
        table = self._table()
        means = table.mean(0)
        best = int(means.argmax())
        added = np.maximum(table - table[:, [best]], 0.0).mean(0)
        order = [int(plan) for pair in zip(np.argsort(-means), np.argsort(-added), strict=True) for plan in pair]
        found: list[FixedConfig] = []
        queues = [self._near(self.plans[plan]) for plan in dict.fromkeys(order)]
        while queues and len(found) < self.config.proposals:
            for queue in list(queues):
                new = next((plan for plan in queue if plan not in self.plans and plan not in found), None)
                if new is None:
                    queues.remove(queue)
                elif len(found) < self.config.proposals:
                    found.append(new)
        return found

    def _table(self) -> Any:
        """float64 [hosts, plans]: the scores of all plans that were played once."""
        return self._outcomes(range(len(self.plans))).scores

    # Running

    @property
    def rounds(self) -> int:
        """Rounds in all, as far as can be foreseen."""
        ahead = (self.config.searches - self.stage) * self.config.proposals * self.config.hosts if self.stage < self.config.searches else 0
        if self.stage <= self.config.searches:
            ahead += min(self.config.repeated, self.config.hosts) * REPEATED_PLANS * (self.config.repeats - 1)
        return self.round + math.ceil((len(self.jobs) + ahead) / self.config.side_by_side(gpu=self.playing.gpu))

    @property
    def done(self) -> bool:
        """Whether every stage is over."""
        return not self.jobs and self.stage > self.config.searches

    def begin(self) -> None:
        """Tell what begins, or goes on."""
        config = self.config
        about: dict[str, float | int | str] = {"round": self.round, "plans": len(self.plans), "workers": self.playing.workers}
        about |= self.playing.machine()
        started = run_started(self.command, config, task=",".join(config.task), hosts=config.hosts, rounds=self.rounds, **about)
        self.hub.emit(started)

    def run_round(self, progress: Progress | None = None) -> None:
        """One chunk of episodes; then, if the stage is over, what the next one takes."""
        size = self.config.side_by_side(gpu=self.playing.gpu)
        now, self.jobs = self.jobs[:size], self.jobs[size:]
        look = {place: min(LOOK, self.members[job.host].epochs) for place, job in enumerate(now) if job.plan == 0 == job.repeat}
        decider = Watching([self._controller(job.plan) for job in now], look)
        starts = [self._start(job) for job in now]
        kept = [place for place, job in enumerate(now) if self.config.record and job.repeat == 0 and self.folder is not None]
        play = Play(self.playing.environment, decider, starts, recorders={place: EpisodeRecorder() for place in kept})
        for place, result in enumerate(play.through(progress)):
            self._note(now[place], result)
            if place in kept:
                self._record(now[place], play.started[place], play.recorders[place], result)
            if place in decider.seen:
                self.shown[now[place].host] = decider.seen[place]
        self.playing.engines = self.playing.environment.engines()
        self.round += 1
        while not self.jobs and self.stage <= self.config.searches:
            self.stage += 1
            self.jobs = self._next_stage()
        best, reached = self._best_so_far()
        self.hub.emit(PlansPlayed(episodes=len(self.played), plans=len(self.plans), best=best, score=reached))

    def _best_so_far(self) -> tuple[str, float]:
        table = self._table()
        whole = [plan for plan in range(len(self.plans)) if not np.isnan(table[:, plan]).any()]
        if not whole:
            return "", 0.0
        best = max(whole, key=lambda plan: float(table[:, plan].mean()))
        return described(self.plans[best]), float(table[:, best].mean())

    def _controller(self, plan: int) -> Controller:
        return make("fixed", self.plans[plan]) if plan >= 0 else self.beside[-1 - plan]

    def _name(self, plan: int) -> str:
        return described(self.plans[plan]) if plan >= 0 else self.beside[-1 - plan].name

    def _start(self, job: Job) -> Start:
        start = self.starts[job.host]
        if not job.repeat:
            return start
        seed = Purpose.DEVELOPMENT.first + FIRST_REPEAT + self.config.seed * 1_000 + job.host + 10_000 * (job.repeat - 1)
        return replace(start, seed=seed, member_of=start.seed)

    def _note(self, job: Job, result: HostFinished) -> None:
        reached = score(result.val_accuracy, result.parameters, result.host_parameters, result.rent)
        growth, flops = result.parameters / result.host_parameters, float(result.operations)
        where = {"plan": job.plan, "host": job.host, "repeat": job.repeat}
        self.played.append(Played(**where, score=reached, accuracy=result.val_accuracy, growth=growth, flops=flops))

    def _record(self, job: Job, host: HostStarted, recorder: EpisodeRecorder, result: HostFinished) -> None:
        """Keep an episode for imitation."""
        assert self.folder is not None, "recorders are for a run with a folder"
        about = about_of(host, self._name(job.plan), rules_of(self.config), result)
        who = f"plan-{job.plan:03}" if job.plan >= 0 else f"beside-{-1 - job.plan:03}"
        with going_on(self.hub):
            path = self.folder / FOLDER / f"{who}-host-{job.host:04}.safetensors"
            recorder.save(path, **about)

    def _next_stage(self) -> list[Job]:
        """What the stage that begins now plays: proposals while there are searches, then repetitions."""
        if self.stage <= self.config.searches:
            first = len(self.plans)
            self.plans += self._propose()
            return self._all(range(first, len(self.plans)))
        best = np.argsort(-self._table().mean(0))[:REPEATED_PLANS]
        hosts = range(min(self.config.repeated, self.config.hosts))
        return [Job(int(plan), host, repeat) for repeat in range(1, self.config.repeats) for plan in best for host in hosts]

    # What came out

    def end(self) -> dict[str, Any]:
        """The figures, and the best single plan as a file. No wall-clock times, so that equal searches have equal summaries."""
        table = self._table()
        found = adaptivity(self._outcomes(range(len(self.plans))), self._known(), self._seen(), self.config.seed)
        best = self.plans[found.best]
        if self.folder is not None:
            text = f"# the best single plan of {self.command or 'a search for headroom'}\n[fixed]\n{to_toml(best)}"
            replace_file(self.folder / PLAN_FILE, text.encode())
        return {
            "command": self.command,
            "task": list(self.config.task),
            "seed": self.config.seed,
            "versions": versions(),
            "hosts": self.config.hosts,
            "episodes": len(self.played),
            "plans": [self._plan_row(plan, table) for plan in range(len(self.plans))],
            "best": {"plan": found.best, "described": described(best), "score": asdict(found.single)},
            "adaptivity": {
                "before": asdict(found.before),
                "during": asdict(found.during),
                "hindsight": found.hindsight,
                "spread": found.spread,
                "rivals": found.rivals,
                "hosts_needed": hosts_needed(found.spread, found.during.mean),
                "hosts_needed_for_a_point": hosts_needed(found.rivals, 1.0),
            },
            "beside": self._beside(table[:, found.best]),
            "repetitions": self._repetitions(),
            "kinds": self._kinds(table),
            "rows": [
                {"task": start.task, "seed": start.seed, "chosen": found.chosen[host], "scores": table[host].tolist()}
                for host, start in enumerate(self.starts)
            ],
        }

    def _plan_row(self, plan: int, table: Any) -> dict[str, Any]:
        once = [each for each in self.played if each.plan == plan and each.repeat == 0]
        mean = {name: float(np.mean([getattr(each, name) for each in once])) for name in ("score", "accuracy", "growth", "flops")}
        waiting = float(np.mean([each.flops for each in self.played if each.plan == 0 and each.repeat == 0]))
        against, operations = asdict(interval(table[:, plan] - table[:, 0])), mean["flops"] / waiting
        return {"plan": plan, "described": described(self.plans[plan]), **mean, "operations": operations, "against_wait": against}

    def _beside(self, best: Any) -> list[dict[str, Any]]:
        """What each controller beside the plans scored, also against the best of them, and what choosing between it and all is worth."""
        rows = []
        for number, controller in enumerate(self.beside, start=1):
            outcomes = self._outcomes([-number, *range(len(self.plans))])
            mine = outcomes.scores[:, 0]
            found = adaptivity(outcomes, self._known(), self._seen(), self.config.seed)
            against = asdict(interval(mine - best))
            rows.append(
                {"name": controller.name, "score": asdict(interval(mine)), "against_best": against, "choosing": asdict(found.before)}
            )
        return rows

    def _outcomes(self, plans: Sequence[int]) -> Outcomes:
        accuracy, size = (np.full((self.config.hosts, len(plans)), math.nan) for _ in range(2))
        column = {plan: number for number, plan in enumerate(plans)}
        for each in self.played:
            if each.repeat == 0 and each.plan in column:
                accuracy[each.host, column[each.plan]] = each.accuracy
                size[each.host, column[each.plan]] = rent_points(each.growth, 1.0, 1.0)
        return Outcomes(accuracy=accuracy, size=size, rent=np.asarray([member.rent for member in self.members]))

    def _known(self) -> Any:
        """What is known of each host before it trains, besides its rent."""
        rows = [[start.task, *_features(asdict(member))] for start, member in zip(self.starts, self.members, strict=True)]
        return encoded(rows)

    def _seen(self) -> Any:
        return np.asarray([self.shown[host] for host in range(self.config.hosts)], dtype=np.float64)

    def _repetitions(self) -> dict[str, Any]:
        """The spread between repetitions of one plan on one kind of host, which no decision explains."""
        again: dict[tuple[int, int], list[float]] = {}
        for each in self.played:
            again.setdefault((each.plan, each.host), []).append(each.score)
        variances = [float(np.var(scores, ddof=1)) for scores in again.values() if len(scores) > 1]
        return {"pairs": len(variances), "std": math.sqrt(float(np.mean(variances))) if variances else None}

    def _kinds(self, table: Any) -> list[dict[str, Any]]:
        """For each value of what differs between hosts: how many have it, the plan that is best for them, and how much it is ahead there.

        In hindsight, to look at; what it is worth is said by `adaptivity`.
        """
        best, rows = int(table.mean(0).argmax()), []
        members = [{"task": start.task, **member.plain()} for start, member in zip(self.starts, self.members, strict=True)]
        fields: dict[str, list[Any]] = {name: [member[name] for member in members] for name in members[0]}
        for name, values in fields.items():
            for value in sorted(set(values)) if len(set(values)) > 1 else ():
                mine = table[[each == value for each in values]]
                plan = int(mine.mean(0).argmax())
                ahead = float(mine[:, plan].mean() - mine[:, best].mean())
                row = {"hosts": len(mine), "best": described(self.plans[plan]), "score": float(mine[:, plan].mean()), "ahead": ahead}
                rows.append({"field": name, "value": value, **row})
        return rows

    def close(self) -> None:
        """End the workers."""
        self.playing.close()

    # Saving

    def state(self) -> dict[str, Any]:
        """Everything between two rounds."""
        return {
            **self.playing.state(),
            "round": self.round,
            "stage": self.stage,
            "plans": [to_plain(plan) for plan in self.plans],
            "jobs": [to_plain(job) for job in self.jobs],
            "played": [to_plain(each) for each in self.played],
            "shown": {str(host): values for host, values in self.shown.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        self.playing.load_state(state)
        self.round, self.stage = state["round"], state["stage"]
        self.plans = [from_plain(FixedConfig, each) for each in state["plans"]]
        self.jobs = [from_plain(Job, each) for each in state["jobs"]]
        self.played = [from_plain(Played, each) for each in state["played"]]
        self.shown = {int(host): list(values) for host, values in state["shown"].items()}


def described(plan: FixedConfig) -> str:
    """A plan in a few words."""
    if _waits(plan):
        return "wait"
    where = {0.0: "first", 0.5: "middle", 1.0: "last"}
    places = "+".join(where.get(place, f"{place:g}") for place in plan.places) or f"{plan.seeds} spread evenly"
    late = f" from epoch {plan.first}" if plan.first > 1 else ""
    return f"{'/'.join(plan.blueprints)} {places}{late}"


def _waits(plan: FixedConfig) -> bool:
    return not plan.places and not plan.seeds


def _features(member: Mapping[str, Any]) -> list[Any]:
    return [tuple(value) if isinstance(value, list) else value for name, value in member.items() if name not in NO_FEATURES]
