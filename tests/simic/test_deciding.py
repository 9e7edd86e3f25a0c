"""Policies that decide: from files where other blueprints are registered than those they were made with, and beyond finite numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper.leyline.errors import LearningError
from esper.simic.growth.deciding import policy_from_file
from esper.simic.learning.policy_decider import PolicyDecider
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_file import save_policy
from tests.simic.runs import opinionated
from tests.tamiyo.samples import report, seed, tracker


def test_a_policy_with_all_blueprints_that_are_registered_is_loaded_without_a_word(tmp_path: Path) -> None:
    save_policy(opinionated(), tmp_path / "policy.safetensors")
    assert policy_from_file(tmp_path / "policy.safetensors").config == opinionated().config


def test_blueprints_that_only_the_policy_or_only_this_program_knows_are_named_in_one_warning(tmp_path: Path) -> None:
    config = opinionated().config
    kept = tuple(name for name in config.blueprints if name not in ("norm", "conv_light"))
    save_policy(Policy(replace(config, blueprints=(*kept, "gone"))), tmp_path / "policy.safetensors")
    words = r"policy\.safetensors: the policy will not grow conv_light, norm \(unknown to it\) and gone \(not registered here\)$"
    with pytest.warns(UserWarning, match=words) as caught:
        policy = policy_from_file(tmp_path / "policy.safetensors")
    assert len(caught) == 1
    assert policy.config.blueprints == (*kept, "gone")


def test_a_policy_that_has_grown_beyond_finite_numbers_ends_the_round_in_a_sentence() -> None:
    decider, observation = PolicyDecider(opinionated(), seed=0), tracker(("r0c0",)).observe(report(seed("r0c0")))
    decider.state = decider.policy.initial_state(1)
    decider.decide({0: observation})
    with torch.no_grad():
        decider.policy.heads.op.weight.fill_(3e38)
    with pytest.raises(LearningError, match="policy gives is not finite at step 2; go on from a checkpoint before, with a lower learning"):
        decider.decide({0: observation})
