"""The run of a controller: several hosts grown side by side, each beside a twin that does not grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from esper.leyline.config import to_toml
from esper.leyline.errors import CheckpointError
from esper.leyline.seeds import Purpose, require
from esper.nissa import Hub
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.growth.deciding import controller_for
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.naming import find_policy
from esper.simic.growth.play import ControllerDecider, Play, Progress
from esper.simic.growth.recording import FOLDER, EpisodeRecorder, about_of, going_on, rules_of
from esper.simic.plugins import plugin_hashes
from esper.simic.runs.work import machine, run_started, versions
from esper.simic.statistics import paired_difference
from esper.tamiyo import make as make_controller
from esper.tolaria.tasks import get as get_task

COMPARED = {"test_accuracy": False, "val_accuracy": False, "test_loss": True, "val_loss": True}
"""Figures in which hosts are compared with their twins, and whether lower is better."""


class ControllerRun:
    """Hosts, their twins and the controller. One round is an epoch of all that have not ended.

    hub: takes the events. folder: the run folder, where episodes are recorded; None to record none.
    """

    def __init__(self, config: ControllerRunConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        self.config, self.hub, self.command, self.folder = config, hub, command, folder
        seeds = range(config.seed, config.seed + config.hosts)
        require((Purpose.DEVELOPMENT, Purpose.TRAINING), (seeds[0], seeds[-1]), who="a run under a controller")
        self.growth = Growth(replace(config, control=False), test=config.test)
        controller = controller_for(config.controller, config.controller_config(), called="controller")
        policy = find_policy(config.controller)
        self.policy_hash = "" if policy is None else sha256(policy.path.read_bytes()).hexdigest()
        """Of the file of the policy that decides; empty where a rule does."""
        starts = [Start(config.task, seed) for seed in seeds]
        controllers = [controller] * config.hosts
        if config.control and config.controller != "wait":
            starts += [replace(start, twin_of=place) for place, start in enumerate(starts)]
            controllers += [make_controller("wait")] * config.hosts
        self.decider = ControllerDecider(controllers)
        self.recorders = {place: EpisodeRecorder() for place in range(config.hosts)}
        self.play = Play(self.growth, self.decider, starts, hub=hub, recorders=self.recorders)
        self.data = self.growth.data(get_task(config.task))

    @property
    def round(self) -> int:
        """Epochs done."""
        return self.play.epoch

    @property
    def rounds(self) -> int:
        """Epochs of the longest host."""
        return max(host.epochs for host in self.play.started)

    @property
    def done(self) -> bool:
        """Whether every host has ended."""
        return self.play.done

    def begin(self) -> None:
        """Tell what begins."""
        config, name = self.config, self.decider.controllers[0].name
        about: dict[str, int | str] = {"controller": name, "twins": len(self.play.started) - config.hosts, "round": self.round}
        about |= machine(self.growth.choice, self.growth.devices)
        self.hub.emit(run_started(self.command, config, task=config.task, hosts=config.hosts, rounds=self.rounds, **about))
        self.play.announce()

    def run_round(self, progress: Progress | None = None) -> None:
        """One epoch of every host that has not ended, and the decisions after it."""
        running = len(self.play.started) - len(self.play.results)
        self.play.run_epoch(None if progress is None else lambda done: progress(done / running))
        for place, recorder in self.recorders.items():
            if self.folder is not None and place in self.play.results and self.play.started[place].epochs == self.round:
                result, host = self.play.results[place], self.play.started[place]
                about = about_of(host, host.controller, rules_of(self.config), result)
                with going_on(self.hub):
                    recorder.save(self.folder / FOLDER / f"host-{place:04}.safetensors", **about)

    def end(self) -> dict[str, Any]:
        """What came out, host by host and against the control. No wall-clock times, so that equal runs have equal summaries."""
        rows = [
            {
                "seed": host.seed,
                "controller": host.controller,
                **asdict(self.play.results[place]),
                "val_accuracies": list(self.growth.hosts[place].course.accuracies),
            }
            for place, host in enumerate(self.play.started)
        ]
        grown, control = rows[: self.config.hosts], rows[self.config.hosts :]
        summary: dict[str, Any] = {
            "command": self.command,
            "task": self.config.task,
            "seed": self.config.seed,
            "data": {"origin": self.data.origin, "fingerprint": self.data.fingerprint},
            "versions": versions(),
            "hosts": grown,
        }
        if control:
            summary["control"] = control
            summary["against_control"] = {
                name: asdict(paired_difference([row[name] for row in grown], [row[name] for row in control], lower_is_better=lower))
                for name, lower in COMPARED.items()
                if self.config.test or not name.startswith("test")
            }
            summary["operations_x"] = operations_x(grown, control)
        return summary

    def close(self) -> None:
        """Let go of hosts and data."""
        self.growth.close()

    # Saving

    def state(self) -> dict[str, Any]:
        """The whole run between two epochs."""
        return {
            "config": to_toml(self.config.lasting()),
            "data": self.data.fingerprint,
            "policy": self.policy_hash,
            "plugins": plugin_hashes(self.config.plugins),
            "classes": self.data.classes,
            "epoch": self.play.epoch,
            "hosts": self.growth.state(),
            "engines": self.growth.engines(),
            "controllers": self.decider.memory,
            "recorders": {place: recorder.state() for place, recorder in self.recorders.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved run, bit for bit. Raises CheckpointError when config, data or policy are not those of the run."""
        if state["config"] != to_toml(self.config.lasting()):
            raise CheckpointError("the checkpoint was written under another config than the run's config.toml")
        if state["data"] != self.data.fingerprint:
            raise CheckpointError(f"the data differs from that of the checkpoint ({self.data.origin})")
        plugin_hashes(self.config.plugins, state["plugins"])
        if state["policy"] != self.policy_hash:
            raise CheckpointError(f"{self.config.controller} is not the policy that the run was started with")
        self.growth.load_state(state["hosts"])
        self.growth.load_engines(state["engines"])
        self.play.epoch = state["epoch"]
        self.play.results = {place: run.result for place, run in self.growth.hosts.items() if run.result is not None}
        self.decider.memory = dict(state["controllers"])
        for place, saved in state["recorders"].items():
            self.recorders[place].load_state(saved)


def operations_x(grown: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What hosts spent, as multiples of what their twins did: in all, and on counterfactuals, of which twins have none."""
    bare = sum(sum(row["flops"].values()) for row in control)
    spent = {name: sum(row["flops"][name] for row in grown) for name in grown[0]["flops"]}
    return {"all": sum(spent.values()) / bare, "counterfactual": spent["counterfactual"] / bare}
