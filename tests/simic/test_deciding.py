"""Policies from files where other blueprints are registered than those they were made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from esper.simic.growth.deciding import policy_from_file
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_file import save_policy
from tests.simic.runs import opinionated


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
