"""Evaluation: policies and controllers play the same hosts, and every diagnostic looks at what they did.

Hosts are those for development, and the untouched split stays untouched: what is seen here may be chosen by. Claims are for a comparison.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from esper.karn.diagnostics.actions import action_distribution, head_entropies
from esper.karn.diagnostics.gates import gate_audit
from esper.karn.diagnostics.gradients import gradient_flow
from esper.karn.diagnostics.lives import seed_success, timing
from esper.karn.diagnostics.outcomes import chance, outcomes, reward_by_action
from esper.karn.diagnostics.response import responses
from esper.karn.diagnostics.values import value_calibration
from esper.karn.episodes import Episode, Mind, Watcher
from esper.karn.evaluate_config import EvaluateConfig
from esper.karn.red_flags import red_flags
from esper.karn.report import Diagnosis, Memory, Report
from esper.karn.subjects import Subject, find_subjects
from esper.leyline.events import HostStarted
from esper.leyline.score import score
from esper.leyline.seeds import Purpose, require
from esper.nissa import EVERYTHING, Hub
from esper.simic.growth.config import processes
from esper.simic.growth.environment import Environment, Start
from esper.simic.growth.play import ControllerDecider, Play, Progress
from esper.simic.growth.workers import environment
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.learning.rollout import Rollout, RolloutBuffer, discounted
from esper.simic.plugins import load_plugins
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.data.streams import stream_seed
from esper.tolaria.tasks import get as get_task
from esper.tolaria.training.device import device_named

ENTROPY = "train/entropy/"
"""Names of the figures of a round that tell the entropy of a head."""


def evaluate(policies: Sequence[object], config: EvaluateConfig | None = None, *, progress: Progress | None = None) -> Report:
    """Let each of these play the same hosts, and report on it.

    policies: names of controllers, policy files, run folders, or a Policy or Controller ready-made.
    progress: told what share of the whole is done.
    """
    config = config or EvaluateConfig()
    load_plugins(config.plugins)
    for task in config.task:
        get_task(task)
    starts = [Start(config.task[place % len(config.task)], config.seed + place) for place in range(config.hosts)]
    require([Purpose.DEVELOPMENT], (start.seed for start in starts), who="esper evaluate")
    device = device_named(config.every_device[0])
    subjects = find_subjects(policies, config)
    torch.set_num_threads(config.threads or 1)
    workers = processes(config.workers, config.hosts, gpu=device.type == "cuda")
    hosts = environment(config, workers if workers > 1 else 0)
    plays = [(subject, draw) for subject in subjects for draw in range(_draws(subject, config))]
    played: dict[str, list[Episode]] = {subject.name: [] for subject in subjects}
    try:
        for number, (subject, draw) in enumerate(plays):
            played[subject.name] += _play(subject, draw, starts, hosts, config, device, _part(progress, number, len(plays)))
    finally:
        hosts.close()
    return Report(
        tasks=config.task,
        member=config.member,
        hosts=config.hosts,
        first_seed=config.seed,
        draws=config.draws if config.stochastic else 1,
        diagnoses=tuple(diagnose(subject, played[subject.name], config) for subject in subjects),
        memory=_memory(device),
    )


def diagnose(subject: Subject, episodes: Sequence[Episode], config: EvaluateConfig) -> Diagnosis:
    """Every diagnostic of whoever played these episodes, and the red flags."""
    is_policy = isinstance(subject.decides, Policy)
    absent = {} if is_policy else {"entropy": "a rule has no probabilities", "values": "a rule expects nothing"}
    calibration = value_calibration(episodes)
    if is_policy and calibration is None:
        absent["values"] = "all returns, or all values, are the same, so that nothing can be told of the critic"
    if config.stochastic and not is_policy:
        absent["chance"] = "what a rule does on a host is always the same"

    def points(episode: Episode) -> float:
        result = episode.result
        return score(result.val_accuracy, result.parameters, result.host_parameters, result.rent)

    found = Diagnosis(
        name=subject.name,
        kind="policy" if is_policy else "controller",
        gamma=subject.gamma,
        outcomes=outcomes(episodes, points),
        actions=action_distribution(episodes),
        entropies=head_entropies(episodes) if is_policy else None,
        timing=timing(episodes),
        calibration=calibration,
        responses=responses(episodes),
        seeds=seed_success(episodes),
        rewards=reward_by_action(episodes),
        audit=gate_audit(episodes),
        gradients=gradient_flow(episodes),
        chance=chance(episodes, points),
        course=tuple(
            {name.removeprefix(ENTROPY): value for name, value in each.items() if name.startswith(ENTROPY)} for each in subject.course
        ),
        absent=absent,
        remarks=subject.remarks,
    )
    return replace(found, flags=tuple(red_flags(found, config)))


# Playing


def _draws(subject: Subject, config: EvaluateConfig) -> int:
    return config.draws if config.stochastic and isinstance(subject.decides, Policy) else 1


def _play(
    subject: Subject,
    draw: int,
    starts: Sequence[Start],
    hosts: Environment,
    config: EvaluateConfig,
    device: torch.device,
    progress: Progress | None,
) -> list[Episode]:
    """The episodes of all hosts, with what a policy thought in them."""
    if isinstance(subject.decides, Policy):
        policy = subject.decides.to(device).eval()
        seed = stream_seed("evaluate", config.seed, draw) % (1 << 31)
        decider: PolicyDecider | ControllerDecider = Recorded(policy, seed, deterministic=not config.stochastic)
    else:
        decider = ControllerDecider([subject.decides] * len(starts))
    watcher = Watcher(decider)
    playing = Play(hosts, watcher, starts, hub=Hub(sinks=[watcher], config=EVERYTHING))
    results = playing.through(progress)
    episodes = [watcher.episode(place, draw, playing.started[place], result) for place, result in enumerate(results)]
    if isinstance(decider, PolicyDecider):
        assert decider.buffer is not None, "a policy's play is recorded"
        minds = read_minds(decider.policy, decider.buffer.rollout(), subject.gamma, subject.gae_lambda)
        episodes = [replace(episode, mind=mind) for episode, mind in zip(episodes, minds, strict=True)]
    return episodes


class Recorded(PolicyDecider):
    """A policy whose play is kept whole, in a buffer of the size that its hosts turn out to need."""

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """Make room, and begin."""
        steps, slots = max(host.epochs for host in started.values()), max(len(host.slots) for host in started.values())
        self.buffer = RolloutBuffer(len(started), steps, slots, len(self.policy.config.blueprints))
        return super().begin(started)


@torch.no_grad()
def read_minds(policy: Policy, rollout: Rollout, gamma: float, gae_lambda: float) -> list[Mind]:
    """What a policy thought at every step of a round, host by host, and what followed."""
    observed = rollout.to(policy.device)
    distribution = policy.replay(observed.observations, rollout.exploration)
    scores = distribution.score(observed.actions)
    figures = {
        "op_probability": distribution.op_probabilities(),
        "entropy": scores.normalised_entropies,
        "value": rollout.value,
        "returns": discounted(rollout.reward * rollout.weight, gamma),
        "targets": rollout.advantages(gamma, gae_lambda) + rollout.value,
    }
    arrays = {name: values.double().cpu().numpy() for name, values in figures.items()}
    legal, lengths = scores.legal.cpu().numpy(), rollout.lengths().long().tolist()
    return [
        Mind(legal=legal[row, :steps], **{name: values[row, :steps] for name, values in arrays.items()})
        for row, steps in enumerate(lengths)
    ]


def _part(progress: Progress | None, number: int, parts: int) -> Callable[[float], None] | None:
    """The progress of one part of several, told as that of the whole."""
    return None if progress is None else lambda share: progress((number + share) / parts)


def _memory(device: torch.device) -> Memory:
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there and in KiB elsewhere
    own, workers = (unit * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    gpu = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return Memory(process=own, worker=workers, gpu=gpu, machine=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
