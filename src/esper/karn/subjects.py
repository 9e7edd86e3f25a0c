"""Who is evaluated: a controller or a policy that ships by its name, the policy in a file or in a run folder, or a run's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esper.karn.evaluate_config import EvaluateConfig
from esper.leyline.errors import ConfigError, RunError
from esper.nissa import Hub
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.deciding import controller_for, policy_from_file
from esper.simic.growth.naming import find_policy
from esper.simic.learning.offline_config import BCConfig, IQLConfig
from esper.simic.learning.ppo_config import PPOConfig
from esper.simic.runs.compare_config import TABLES, from_table
from esper.simic.runs.configs import Config, read_config
from esper.simic.runs.expert import ExpertRun
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.simic.runs.ppo import PPORun
from esper.simic.runs.ppo_config import PPORunConfig
from esper.tamiyo import CONTROLLERS, Controller
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_header import POLICY_FILE
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import read_run

SAME = ("reward", "slots", "max_seeds", "control")
"""Settings that what a critic learned to expect depends on."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One policy or controller to evaluate."""

    name: str
    decides: Policy | Controller
    gamma: float
    gae_lambda: float
    """What its critic was taught with."""
    course: tuple[dict[str, float], ...] = ()
    """The figures of each round that it learned in, where they are known; by their names in simic/learning/ppo_metrics.py."""
    remarks: tuple[str, ...] = ()
    """What whoever reads its figures has to know."""


def find_subjects(given: Sequence[object], config: EvaluateConfig) -> list[Subject]:
    """Everybody who is meant, each with a name of its own. Raises an EsperError for what is none."""
    if not given:
        expected = "the name of a controller or policy, a run folder or a policy file: esper evaluate heuristic"
        raise ConfigError(f"no policy to evaluate; expected {expected}")
    found = [subject for each in given for subject in _subjects(each, config)]
    names = [subject.name for subject in found]
    again = {name: 0 for name in names if names.count(name) > 1}
    numbered = []
    for subject in found:
        if subject.name in again:
            again[subject.name] += 1
            subject = replace(subject, name=f"{subject.name} ({again[subject.name]})")
        numbered.append(subject)
    return numbered


def _subjects(given: object, config: EvaluateConfig) -> list[Subject]:
    usual = PPOConfig()
    gamma = usual.gamma if config.gamma is None else config.gamma
    if isinstance(given, Policy):
        return [Subject("policy", given, gamma, usual.gae_lambda)]
    if isinstance(given, str) and given in CONTROLLERS:
        return [Subject(given, controller_for(given), gamma, usual.gae_lambda)]
    policy = find_policy(given)
    if policy is not None and policy.name:
        return [_subject(policy.name, policy_from_file(policy.path), config, None)]
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        path = next((path / name for name in TABLES if (path / name).is_file()), path)
        if path.suffix == ".toml":
            found = from_table(path, path.parent.resolve().name if path.name in TABLES else path.stem)
            return [Subject(found.name, controller_for(found.controller, found.settings), gamma, usual.gae_lambda)]
        if path.is_dir():
            return _of_run(path, config)
        if policy is not None:
            beside = path.parent / "config.toml" if path.name == POLICY_FILE else None
            name = path.parent.resolve().name if beside is not None else path.stem
            known = None if beside is None or not beside.exists() else read_config(beside)
            return [_subject(name, policy_from_file(path), config, known)]
    controller = controller_for(given)
    return [Subject(controller.name, controller, gamma, usual.gae_lambda)]


def _of_run(path: Path, config: EvaluateConfig) -> list[Subject]:
    """The policy of a run; when they are asked for, those of its checkpoints instead, the last of which is the same."""
    run = read_run(path)
    known = read_config(path / "config.toml")
    if not isinstance(known, PPORunConfig | ExpertRunConfig | BCConfig | IQLConfig):
        raise RunError(f"{path} holds no policy: its hosts grew under a controller; name that controller instead")
    name = path.resolve().name
    if config.checkpoints:
        if not isinstance(known, PPORunConfig | ExpertRunConfig):
            raise RunError(f"{path} was taught from recordings; --checkpoints is for runs of esper train ppo and esper train expert")
        found = _checkpoints(CheckpointStore(path / "checkpoints", run=run.id), known, name, config)
        if not found:
            raise RunError(f"{path} has no checkpoint; without --checkpoints its policy is evaluated, once it is finished")
        return found
    if not (path / POLICY_FILE).exists():
        raise RunError(f"{path} has no {POLICY_FILE} yet: it is {run.status}; --checkpoints looks at what it has learned so far")
    return [_subject(name, policy_from_file(path / POLICY_FILE), config, known)]


def _checkpoints(store: CheckpointStore, known: PPORunConfig | ExpertRunConfig, name: str, config: EvaluateConfig) -> list[Subject]:
    """What a run had learned at each checkpoint that it keeps."""
    found = []
    for step in store.steps():
        work: dict[str, Any] = store.load(step)["work"]
        here = replace(known, device="cpu", devices=())
        run = PPORun(here, Hub()) if isinstance(here, PPORunConfig) else ExpertRun(here, Hub())
        run.learner.load_state(work["learner"])
        subject = _subject(f"{name} round {work['round']}", run.policy, config, known)
        found.append(replace(subject, course=tuple(work["history"])))
    return found


def _subject(name: str, policy: Policy, config: EvaluateConfig, known: Config | None) -> Subject:
    """A policy with what is known of how it was taught."""
    gamma = gae_lambda = None
    remarks: tuple[str, ...] = ()
    if isinstance(known, PPORunConfig):
        gamma, gae_lambda = known.ppo.gamma, known.ppo.gae_lambda
        remarks = _otherwise(known, config)
    elif isinstance(known, ExpertRunConfig):
        gamma, remarks = known.expert.gamma, _otherwise(known, config)
    elif isinstance(known, BCConfig | IQLConfig):
        gamma = known.gamma
    usual = PPOConfig()
    if config.gamma is not None:
        gamma = config.gamma
    return Subject(
        name,
        policy,
        usual.gamma if gamma is None else gamma,
        usual.gae_lambda if gae_lambda is None else gae_lambda,
        remarks=remarks,
    )


def _otherwise(known: GrowthConfig, config: EvaluateConfig) -> tuple[str, ...]:
    """A sentence when a policy learned under other rules than it is evaluated under."""
    differ = [name for name in SAME if getattr(known, name) != getattr(config, name)]
    differ += [f"training.{name}" for name in ("gates", "lifecycle") if getattr(known.training, name) != getattr(config.training, name)]
    if not differ:
        return ()
    return (f"it was trained under another {' and '.join(differ)} than here, which its values and habits are of",)
