"""A run: several hosts grown side by side under a controller, recorded, saved, and resumed as if nothing had happened."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import esper
from esper.leyline.config import to_toml
from esper.leyline.errors import CheckpointError, unknown
from esper.leyline.events import HostFinished, HostStarted, Rewarded, RunFinished, RunStarted
from esper.leyline.reports import EpochReport
from esper.nissa import Hub
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.growth.deciding import controller_for, is_policy_file
from esper.simic.growth.earning import Earnings
from esper.simic.growth.episode import Episode, Step
from esper.simic.growth.twins import final_score
from esper.simic.rewards import FinalScore, RewardStep, Twin
from esper.simic.runs.paired import paired_difference
from esper.tamiyo import Rules
from esper.tamiyo import make as make_controller
from esper.tolaria.data import FinalEvaluation
from esper.tolaria.tasks import get as get_task
from esper.tolaria.tasks import load_task_file
from esper.tolaria.training.device import device_named
from esper.tolaria.training.engine import Engine, SerialEngine
from esper.tolaria.training.flops import FlopLedger
from esper.tolaria.training.host import Host


@dataclass(slots=True)
class Plot:
    """One host of a run, with its episode and, once it is done, its result."""

    host: Host
    episode: Episode
    index: int
    control: bool
    earnings: Earnings
    accuracies: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """On val, after each epoch."""
    reward: float = 0.0
    """Sum of what its decisions earned."""
    final: FinalScore | None = None
    """In the epoch in which it ends: what it ended at."""
    result: dict[str, Any] | None = None

    def curve(self) -> Twin:
        """This host's course so far, for the twin that it is the control of."""
        return Twin(accuracy=tuple(self.accuracies), loss=tuple(self.losses), final=self.final)


class ControllerRun:
    """The hosts of a run and the loop that moves them.

    hub: takes the events. engine: trains. episodes: the folder for recorded episodes; None to record none.
    """

    def __init__(
        self, config: ControllerRunConfig, hub: Hub, command: str = "", engine: Engine | None = None, episodes: Path | None = None
    ) -> None:
        self.config, self.hub, self.command, self.episodes = config, hub, command, episodes
        self.engine = engine or SerialEngine()
        for file in config.task_files:
            load_task_file(file)
        self.task = get_task(config.task)
        threads = config.threads or self.task.threads
        if threads:
            torch.set_num_threads(threads)
        self.data = self.task.load(config.data, device_named(config.device))
        self.ledger = FlopLedger()
        settings = {"heuristic": config.heuristic, "fixed": config.fixed, "random": config.random}
        self.controller = controller_for(config.controller, settings.get(config.controller), called="controller")
        self.policy_hash = sha256(Path(config.controller).read_bytes()).hexdigest() if is_policy_file(config.controller) else ""
        """Of the file of the policy that decides; empty where a rule does."""
        self.round = 0
        self.earned: list[tuple[Plot, int, RewardStep]] = []
        """What was earned in the last round: host, epoch of the decision, reward."""
        self.plots = [self._plot(i, control=False) for i in range(config.hosts)]
        if config.control and config.controller != "wait":
            self.plots += [self._plot(i, control=True) for i in range(config.hosts)]

    def _plot(self, index: int, control: bool) -> Plot:
        config = self.config
        seed = config.seed + index
        host = Host(self.task, self.data, config.member_for(self.task.family, seed), seed, config.training, self.ledger)
        for slot in config.slots:
            if slot not in host.model.slot_ids:
                raise unknown("slot", slot, host.model.slot_ids)
        rules = Rules(max_seeds=config.max_seeds, enabled=config.slots or None)
        episode = Episode(host, make_controller("wait") if control else self.controller, rules, seed=seed)
        return Plot(host, episode, index, control, Earnings(config.reward, host.model.slot_ids))

    # Running

    @property
    def epochs(self) -> int:
        """Epochs of the longest host."""
        return max(plot.host.member.epochs for plot in self.plots)

    @property
    def done(self) -> bool:
        return all(plot.result is not None for plot in self.plots)

    def begin(self) -> None:
        """Record the start of a new run."""
        if not self.hub.on:
            return
        config = self.config
        self.hub.emit(
            RunStarted(
                command=self.command, task=config.task, hosts=config.hosts, epochs=self.epochs, seed=config.seed, versions=versions()
            )
        )
        for number, plot in enumerate(self.plots):
            member = {name: _plain(value) for name, value in asdict(plot.host.member).items()}
            member["controller"] = plot.episode.controller.name
            self.hub.emit(
                HostStarted(task=config.task, member=member, parameters=plot.host.start_parameters, slots=plot.host.model.slot_ids),
                host=number,
                epoch=0,
            )

    def run_epoch(self, progress: Callable[[int], None] | None = None) -> list[tuple[Plot, EpochReport, Step]]:
        """One epoch of every host that is not done, and the decisions after it."""
        self.earned = []
        active = [plot for plot in self.plots if not plot.host.done]
        reports = self.engine.run_epoch([plot.host for plot in active], progress)
        steps = []
        for plot, report in zip(active, reports, strict=True):
            plot.accuracies.append(report.val_accuracy)
            plot.losses.append(report.val_loss)
        for plot, report in zip(active, reports, strict=True):
            self._pay(plot, plot.earnings.settle(report, self._control(plot)), report.epoch - 1)
            step = plot.episode.step(report)
            plot.earnings.decided(step)
            steps.append((plot, report, step))
            if self.hub.on:
                for event in step.events:
                    self.hub.emit(event, host=self.plots.index(plot), epoch=report.epoch)
        ended = [plot for plot in active if plot.host.done]
        for plot in ended:  # all of them before the first is paid: what a host ended at is measured against what its twin did
            plot.final = final_score(plot.host)
        for plot in ended:
            self._finish(plot)
        self.round += 1
        return steps

    def _control(self, plot: Plot) -> Twin | None:
        """The course of a host's twin, as long as its own."""
        return next((twin.curve() for twin in self.plots if twin.control and twin.index == plot.index), None)

    def _pay(self, plot: Plot, reward: RewardStep | None, epoch: int) -> None:
        """Record what a host's decision after `epoch` earned."""
        if reward is not None:
            plot.reward += reward.total
            self.earned.append((plot, epoch, reward))
            if self.hub.on and not plot.control:
                earned = Rewarded(total=reward.total, components=dict(reward.components))
                self.hub.emit(earned, host=self.plots.index(plot), epoch=epoch)

    def _finish(self, plot: Plot) -> None:
        """Final figures of a host: those of its harvested network, on val and on the untouched test split."""
        host, final = plot.host, plot.final
        assert final is not None
        test = host.score(self.data.test(FinalEvaluation(asked_by="end of a run")))
        self._pay(plot, plot.earnings.settle(None, self._control(plot), final), host.epoch)
        if self.episodes is not None and not plot.control:
            about = {"task": self.config.task, "seed": host.seed, "controller": plot.episode.controller.name, "final": asdict(final)}
            plot.earnings.recorder.save(self.episodes / f"host-{plot.index:04}.safetensors", **about)
        plot.result = {
            "seed": host.seed,
            "controller": plot.episode.controller.name,
            "val_accuracy": final.accuracy,
            "val_loss": final.loss,
            "test_accuracy": test.accuracy,
            "test_loss": test.loss,
            "host_parameters": host.start_parameters,
            "parameters": final.parameters,
            "flops": dict(host.flops),
            "germinated": host.germinated,
            "fossilized": host.fossilized,
            "pruned": host.pruned,
            "rollbacks": host.rollbacks,
            "reward": plot.reward,
            "slots": {r.slot: {"stage": r.stage.name, "blueprint": r.blueprint} for r in host.model.reports()},
        }
        if self.hub.on:
            finished = HostFinished(
                val_accuracy=final.accuracy,
                test_accuracy=test.accuracy,
                parameters=final.parameters,
                germinated=host.germinated,
                fossilized=host.fossilized,
                pruned=host.pruned,
                rollbacks=host.rollbacks,
            )
            self.hub.emit(finished, host=self.plots.index(plot), epoch=host.epoch)

    def end(self) -> dict[str, Any]:
        """Record the end and return the summary."""
        if self.hub.on:
            self.hub.emit(RunFinished(outcome="finished"))
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """What came out, host by host and against the control. No wall-clock times, so that equal runs have equal summaries."""
        grown = [plot.result for plot in self.plots if not plot.control and plot.result is not None]
        control = [plot.result for plot in self.plots if plot.control and plot.result is not None]
        summary: dict[str, Any] = {
            "command": self.command,
            "task": self.config.task,
            "seed": self.config.seed,
            "data": {"origin": self.data.origin, "fingerprint": self.data.fingerprint},
            "versions": versions(),
            "hosts": grown,
        }
        if control and len(control) == len(grown):
            summary["control"] = control
            summary["against_control"] = {
                name: asdict(paired_difference([r[name] for r in grown], [r[name] for r in control]))
                for name in ("test_accuracy", "val_accuracy", "test_loss", "val_loss")
            }
        return summary

    def close(self) -> None:
        """Let go of the data."""
        self.data.release()

    # Saving

    def state(self) -> dict[str, Any]:
        """The whole run between two epochs."""
        return {
            "config": to_toml(self.config),
            "data": self.data.fingerprint,
            "policy": self.policy_hash,
            "classes": self.data.classes,
            "round": self.round,
            "plots": [
                {
                    "host": plot.host.state(),
                    "episode": plot.episode.state(),
                    "earnings": plot.earnings.state(),
                    "curve": [plot.accuracies, plot.losses],
                    "reward": plot.reward,
                    "result": plot.result,
                }
                for plot in self.plots
            ],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved run, bit for bit. Raises CheckpointError when config, data or policy are not those of the run."""
        if state["config"] != to_toml(self.config):
            raise CheckpointError("the checkpoint was written under another config than the run's config.toml")
        if state["data"] != self.data.fingerprint:
            raise CheckpointError(f"the data differs from that of the checkpoint ({self.data.origin})")
        if state["policy"] != self.policy_hash:
            raise CheckpointError(f"{self.config.controller} is not the policy that the run was started with")
        self.round = state["round"]
        for plot, saved in zip(self.plots, state["plots"], strict=True):
            plot.host.load_state(saved["host"])
            plot.episode.load_state(saved["episode"])
            plot.earnings.load_state(saved["earnings"])
            plot.accuracies, plot.losses = (list(values) for values in saved["curve"])
            plot.reward, plot.result = saved["reward"], saved["result"]


def versions() -> dict[str, str]:
    """What a result depends on besides its config."""
    return {"esper": esper.__version__, "python": platform.python_version(), "torch": torch.__version__}


def _plain(value: Any) -> float | int | str:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, (int, float, str)) else "-".join(str(v) for v in value)
