"""The sweep: one run of a method for each point of a space of its settings, each in a folder of its own, compared by their val score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from esper.leyline.config import replace_fields, to_toml
from esper.leyline.errors import CheckpointError, ConfigError, Interrupted, LearningError, RunError
from esper.leyline.events import ArmExamined, Envelope, Note, RoundFinished
from esper.leyline.files import replace_file
from esper.leyline.score import score
from esper.leyline.seeds import Purpose, require
from esper.leyline.space import grid, read_space, size
from esper.nissa import Hub
from esper.simic.growth.play import Progress
from esper.simic.plugins import load_plugins, plugin_hashes
from esper.simic.runs import runner
from esper.simic.runs.drawing import random_points
from esper.simic.runs.practice_config import PracticeConfig
from esper.simic.runs.search import BEST_FILE
from esper.simic.runs.sweep_config import SweepConfig, Swept
from esper.simic.runs.work import run_started, versions
from esper.simic.statistics import interval, paired_difference
from esper.tolaria.storage.runs import POINTS, read_run, read_summary

MOST_POINTS = 10_000
"""A grid with more combinations is a slip of the finger."""
CONVERGED = 0.95
"""A run has converged once it has come so large a share of the way from its first figure to its last."""
LAST = 5
"""The last figure is the mean over the last one in so many rounds, as single rounds are noisy."""


class Listener:
    """A sink of a point's run: passes its remarks on, and tells how much of the point is done."""

    def __init__(self, hub: Hub, progress: Progress | None) -> None:
        self.hub, self.tell = hub, progress
        self.round, self.rounds = 0, 1

    def write(self, envelope: Envelope) -> None:
        """Take an event."""
        match envelope.event:
            case Note() as note:
                self.hub.emit(note)
            case RoundFinished(round=round, rounds=rounds):
                self.round, self.rounds = round, rounds

    def progress(self, share: float) -> None:
        """So much of the present round of the run is done."""
        if self.tell is not None:
            self.tell(min(1.0, (self.round + share) / self.rounds))

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to put away."""


class SweepRun:
    """Points, one after another. One round is a point: a run with checkpoints of its own, which goes on where it was interrupted.

    hub: takes the events of the sweep; those of a point are in its own folder. folder: the run folder of the sweep.
    """

    def __init__(self, config: SweepConfig, hub: Hub, command: str, folder: Path) -> None:
        self.config, self.hub, self.command, self.folder = config, hub, command, folder
        load_plugins(config.plugins)
        self.space = read_space(config.method_config, config.over, "--over")
        if config.points is None and size(self.space) < float("inf") and size(self.space) > MOST_POINTS:
            raise ConfigError(f"--over: a grid of {size(self.space):.0f} points is more than {MOST_POINTS}; draw some with --points N")
        drawn = random_points(self.space, config.seed)
        self.points = grid(self.space, "--over") if config.points is None else list(islice(drawn, config.points))
        self.configs = [self._config(values) for values in self.points]
        self.results: list[dict[str, Any]] = []
        """How each point came out, in the order of the points."""

    def _config(self, values: Mapping[str, Any]) -> Swept:
        """The config of a point. A sweep is a choice, so no point of it looks at the test split or at hosts of an examination."""
        config = replace_fields(self.config.method_config, values, "--over")
        if isinstance(config, PracticeConfig):
            return config
        require([Purpose.DEVELOPMENT], range(config.seed, config.seed + config.hosts), who="esper sweep")
        return replace(config, test=False)

    @property
    def round(self) -> int:
        """Points done."""
        return len(self.results)

    @property
    def rounds(self) -> int:
        """Points in all."""
        return len(self.points)

    @property
    def done(self) -> bool:
        """Whether every point is done."""
        return self.round >= self.rounds

    def begin(self) -> None:
        """Tell what begins, and how the points came out so far."""
        base = self.config.method_config
        task = ",".join(base.task) if isinstance(base, PracticeConfig) else base.task
        about: dict[str, int | str] = {"method": self.config.method, "over": ", ".join(self.space), "round": self.round}
        self.hub.emit(run_started(self.command, self.config, task=task, hosts=base.hosts, rounds=self.rounds, **about))
        for result in self.results:
            self._tell(result)

    def run_round(self, progress: Progress | None = None) -> None:
        """The run of the next point, from its beginning or from where it was interrupted."""
        number, config = self.round, self.configs[self.round]
        path = self.folder / POINTS / f"{number + 1:03}"
        listener = Listener(self.hub, progress)
        watching: dict[str, Any] = {"display": listener, "progress": listener.progress}
        row: dict[str, Any] = {"point": number + 1, "values": self.points[number], "run": str(path.relative_to(self.folder)), "failed": ""}
        try:
            if not (path / "run.json").exists():
                command = f"{self.command} # point {number + 1} of {self.rounds}"
                runner.start(config, path, command, **watching)
            elif read_run(path).status != "finished":
                runner.resume(path, **watching)
            row |= figures(config, read_summary(path))
        except Interrupted as stopped:
            how = str(stopped).partition(";")[0]
            raise Interrupted(f"point {number + 1} of {self.rounds} {how}; {runner.go_on(self.config, self.folder)}") from None
        except LearningError as error:  # a setting under which nothing can be learned is an outcome as well
            row["failed"] = str(error)
        self.results.append(row)
        self._tell(row)

    def _tell(self, row: Mapping[str, Any]) -> None:
        name = f"point {row['point']}: {told(row['values'])}"
        if row["failed"]:
            self.hub.emit(Note(text=f"{name} failed: {row['failed']}"))
        else:
            means = {figure: row[figure] for figure in ("accuracy", "growth", "operations", "fossils", "reward")}
            self.hub.emit(ArmExamined(arm=name, hosts=len(row["scores"]), score=row["score"]["mean"], **means))

    def end(self) -> dict[str, Any]:
        """Write the best point's config and return the summary. No wall-clock times, so that equal sweeps have equal summaries."""
        ranked = sorted(self.results, key=lambda row: -row["score"]["mean"] if not row["failed"] else float("inf"))
        best = None if ranked[0]["failed"] else ranked[0]
        rows = [{**row, "against_best": _against(row, best)} for row in ranked]
        if best is not None:
            config = replace_fields(self.config.method_config, best["values"], "--over")
            head = f"# From: {self.command}\n# Point {best['point']} of {self.rounds}: {told(best['values'])}\n\n"
            try:
                replace_file(self.folder / BEST_FILE, (head + to_toml(config)).encode())
            except OSError as error:
                raise RunError(f"{self.folder / BEST_FILE} cannot be written: {error.strerror}") from error
        found = {
            "method": self.config.method,
            "space": {key: str(entry) for key, entry in self.space.items()},
            "points": rows,
            "best": None if best is None else {"point": best["point"], "values": best["values"]},
        }
        base = self.config.method_config
        return {"command": self.command, "task": base.task, "seed": base.seed, "versions": versions(), "sweep": found}

    def close(self) -> None:
        """Each point lets go of what it holds."""

    # Saving

    def state(self) -> dict[str, Any]:
        """What came out so far; a point that was interrupted has its own checkpoints."""
        return {"config": to_toml(self.config), "plugins": plugin_hashes(self.config.plugins), "results": self.results}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on after the last point that is done."""
        if state["config"] != to_toml(self.config):
            raise CheckpointError("the checkpoint was written under another config than the run's config.toml")
        plugin_hashes(self.config.plugins, state["plugins"])
        self.results = list(state["results"])


def told(values: Mapping[str, Any]) -> str:
    """The values of a point in a line."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def figures(config: Swept, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A finished run as a sweep compares it: the val score host by host, its mean with an interval, and how soon it converged."""
    if isinstance(config, PracticeConfig):
        examination = summary["examination"]
        seeds = [[row["task"], row["seed"]] for row in examination["rows"]]
        scores = [row["policy_score"] for row in examination["rows"]]
        arm = examination["arms"]["policy"]
        means = {name: arm[name] for name in ("accuracy", "growth", "operations", "fossils", "reward")}
        course = [figures["rollout/ep_rew_mean"] for figures in summary["rounds"]]
        unit = "rounds"
    else:
        hosts = summary["hosts"]
        seeds = [[summary["task"], host["seed"]] for host in hosts]
        scores = [score(host["val_accuracy"], host["parameters"], host["host_parameters"], host["rent"]) for host in hosts]
        means = {
            "accuracy": _mean([host["val_accuracy"] for host in hosts]),
            "growth": _mean([host["parameters"] / host["host_parameters"] for host in hosts]),
            "operations": _mean([sum(host["flops"].values()) for host in hosts]),
            "fossils": _mean([host["fossilized"] for host in hosts]),
            "reward": _mean([host["reward"] for host in hosts]),
        }
        courses = [host["val_accuracies"] for host in hosts]  # a host that has ended stays where it is
        longest = max(map(len, courses))
        course = [_mean([each[min(epoch, len(each) - 1)] for each in courses]) for epoch in range(longest)]
        unit = "epochs"
    return {"score": asdict(interval(scores)), **means, "converged": converged(course), "unit": unit, "hosts": seeds, "scores": scores}


def _against(row: Mapping[str, Any], best: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A point minus the best one, host by host; None for the best itself and where the hosts are others."""
    if best is None or row is best or row["failed"] or row["hosts"] != best["hosts"]:
        return None
    return asdict(paired_difference(row["scores"], best["scores"]))


def converged(course: Sequence[float]) -> int | None:
    """After how many rounds a figure had come 95 % of the way from its first value to its last; None for one that did not rise."""
    first, last = course[0], _mean(course[-max(1, len(course) // LAST) :])
    if not last > first:
        return None
    return next(number for number, value in enumerate(course, start=1) if value >= first + CONVERGED * (last - first))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
