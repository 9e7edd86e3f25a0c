"""Policies in files: back bit by bit, for hosts with other slots, and never from a file that is not right."""

from __future__ import annotations

import json
import pickle

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from esper.leyline.errors import PolicyError
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy import policy_file
from esper.tamiyo.policy.policy_file import load_policy, read_policy_info, save_policy
from tests.tamiyo.test_policy import hosts, lively


def written(path, text=None, policy=None, **changes):
    """A policy file with other claims about itself, its checksum right."""
    save_policy(policy or lively(), path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["policy"]) | changes
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    text = json.dumps(about) if text is None else text
    metadata = {"format": policy_file.POLICY_FORMAT, "policy": text, "sha256": policy_file._digest(text, tensors)}
    path.write_bytes(safetensors.torch.save(tensors, metadata))
    return about


def test_a_policy_comes_back_bit_by_bit_with_what_was_told_about_it(tmp_path):
    made, path = lively(prior=Prior(wait=0.8)), tmp_path / "policy.safetensors"
    made.value_head.mean.fill_(3.25)
    trained = {"task": "digits", "rounds": 40, "score": 1.5, "seeds": [1, 2], "note": "é"}
    save_policy(made, path, trained)
    back, info = load_policy(path), read_policy_info(path)
    assert info.trained == trained
    assert back.config == info.config == made.config
    before, after = made.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert [each.name for each in tmp_path.iterdir()] == ["policy.safetensors"]


def test_a_loaded_policy_serves_a_host_with_another_number_of_slots(tmp_path):
    made, path = lively(), tmp_path / "p"
    save_policy(made, path)
    back = load_policy(path)
    for slots in (1, 6):
        batch = hosts(3, slots)
        assert torch.equal(back.act(batch, back.initial_state(3), None).actions, made.act(batch, made.initial_state(3), None).actions)


# Files that are not right


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "good"
    save_policy(lively(), path)
    return path.read_bytes()


@given(place=st.floats(0.0, 1.0, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(good, place, bit, tmp_path_factory):
    path = tmp_path_factory.mktemp("flipped") / "p"
    content = bytearray(good)
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(PolicyError):
        load_policy(path)


@pytest.mark.parametrize("place", [0, 3, 8, 9, 20, 60, 200, 400])
def test_no_flipped_bit_of_the_header_goes_unnoticed(good, place, tmp_path):
    content = bytearray(good)
    content[place] ^= 1
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(PolicyError):
        load_policy(tmp_path / "p")


@pytest.mark.parametrize("length", [0, 7, 100, 5000])
def test_a_file_cut_short_is_refused(good, length, tmp_path):
    (tmp_path / "p").write_bytes(good[:length])
    with pytest.raises(PolicyError, match="is not a policy, or is damaged"):
        load_policy(tmp_path / "p")


def test_what_is_no_policy_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(PolicyError, match="no policy at"):
        load_policy(tmp_path / "nothing")
    with pytest.raises(PolicyError, match="is a folder; expected a policy's file"):
        load_policy(tmp_path)
    save_policy(lively(), tmp_path / "policy.safetensors")
    with pytest.raises(PolicyError, match=r"is a folder; did you mean .*/policy.safetensors\?"):
        load_policy(tmp_path)
    (tmp_path / "pickle").write_bytes(pickle.dumps({"weights": [1, 2]}))
    with pytest.raises(PolicyError, match="is not a policy, or is damaged"):
        load_policy(tmp_path / "pickle")
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "tensors")
    with pytest.raises(PolicyError, match="holds tensors, but no policy"):
        load_policy(tmp_path / "tensors")


def test_a_policy_for_other_observations_is_refused(tmp_path):
    written(tmp_path / "p", schema="0123456789abcdef")
    with pytest.raises(PolicyError, match="trained on observations with the fingerprint 0123456789abcdef"):
        load_policy(tmp_path / "p")


NOT_A_TABLE = '{"version": 1, "schema": "", "config": {}, "trained": 3}'


@pytest.mark.parametrize("text", ["[]", "{}", "3", '"text"', '{"version": 1}', "{", NOT_A_TABLE])
def test_a_description_that_is_none_is_refused(text, tmp_path):
    written(tmp_path / "p", text)
    with pytest.raises(PolicyError, match="does not describe its policy"):
        load_policy(tmp_path / "p")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value, tmp_path):
    broken = lively()
    broken.state_dict()["heads.choices.blueprint.bias"][0] = value
    written(tmp_path / "p", policy=broken)
    with pytest.raises(PolicyError, match="bias' has values that are not finite"):
        load_policy(tmp_path / "p")


def test_a_policy_of_another_version_is_refused(tmp_path):
    written(tmp_path / "p", version=99)
    with pytest.raises(PolicyError, match="a policy of version 99; this version of Esper reads 3"):
        read_policy_info(tmp_path / "p")


def test_weights_that_do_not_fit_the_description_are_refused(tmp_path):
    about = written(tmp_path / "p")
    written(tmp_path / "p", config=about["config"] | {"hidden": 64})
    with pytest.raises(PolicyError, match="does not hold the policy that it describes"):
        load_policy(tmp_path / "p")
    written(tmp_path / "p", config=about["config"] | {"hiden": 64})
    with pytest.raises(PolicyError, match="unknown key 'hiden'; did you mean 'hidden'"):
        load_policy(tmp_path / "p")


def test_a_policy_that_cannot_be_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "p"
    save_policy(lively(), path)
    before = path.read_bytes()
    with pytest.raises(PolicyError, match="cannot be written as JSON"):
        save_policy(lively(1), path, {"when": object()})
    with pytest.raises(PolicyError, match="cannot be written to"):
        save_policy(lively(1), tmp_path / "no" / "such" / "folder")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["p"]
