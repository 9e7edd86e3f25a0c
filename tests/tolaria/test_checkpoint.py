"""Checkpoints: everything comes back bit for bit, and whatever happened to the files is noticed."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.leyline.errors import CheckpointError
from esper.tolaria.storage.checkpoint import CheckpointStore

DTYPES = [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
DTYPES += [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]
FILES = ["manifest.json", "state.json", "tensors.safetensors"]
DRIVER = Path(__file__).with_name("crashing.py")


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of any dtype and any bits (NaNs of all kinds included), whole or as a view that is not contiguous."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    content = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        content = bytearray(byte & 1 for byte in content)
    tensor = torch.frombuffer(content, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    match draw(st.sampled_from(["whole", "transposed", "strided", "expanded", "parameter"])):
        case "transposed" if tensor.dim() > 1:
            return tensor.transpose(0, -1)
        case "strided" if tensor.dim() > 0:
            return tensor[::2]
        case "expanded":
            return tensor.unsqueeze(0).expand(2, *shape)
        case "parameter" if dtype is torch.float32:
            return nn.Parameter(tensor)
    return tensor


KEYS = st.text(max_size=5) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.binary(max_size=10) | tensors()
STATES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=12,
    ),
    max_size=4,
)


def bits(value: Any) -> Any:
    """The value in a form in which `==` means the same types and the same bits."""
    if isinstance(value, Tensor):
        plain = value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
        return ("tensor", value.dtype, tuple(value.shape), bytes(plain.view(torch.uint8).tolist()) if plain.numel() else b"")
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, dict):
        return (type(value), [(bits(key), bits(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return (type(value), [bits(item) for item in value])
    return (type(value), value)


def round_trip(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    store = CheckpointStore(folder)
    store.save(1, state)
    return store.load(1)


def filled(folder: Path, steps: int = 3) -> CheckpointStore:
    store = CheckpointStore(folder, keep=steps)
    for step in range(1, steps + 1):
        store.save(step, {"step": step, "weights": torch.full((7,), float(step))})
    return store


def rewritten(path: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint and put its true size and hash into the manifest, as a forger would."""
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][name] = {"size": len(content), "sha256": sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


# What comes back


@given(state=STATES)
@settings(max_examples=150)
def test_any_nested_state_comes_back_with_its_types_and_its_bits(tmp_path_factory: pytest.TempPathFactory, state: dict[Any, Any]) -> None:
    assert bits(round_trip(tmp_path_factory.mktemp("state"), state)) == bits(state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scalars_and_empty_tensors_of_every_dtype_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {"scalar": torch.ones((), dtype=dtype), "empty": torch.empty((0, 3), dtype=dtype)}
    assert bits(round_trip(tmp_path, state)) == bits(state)


def test_two_names_of_one_tensor_come_back_as_one_tensor_and_overlapping_ones_as_two(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    found = round_trip(tmp_path, {"a": shared, "b": [shared.detach()], "head": shared[:3], "other": torch.arange(6.0)})
    assert found["a"] is found["b"][0]
    assert torch.equal(found["head"], torch.arange(3.0))
    found["a"].zero_()
    assert torch.equal(found["head"], torch.arange(3.0))
    assert torch.equal(found["other"], torch.arange(6.0))


def test_a_channels_last_tensor_keeps_its_layout(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    found = round_trip(tmp_path, {"image": image, "complex": torch.randn(3, 4, dtype=torch.complex64).t().conj()})
    assert found["image"].stride() == image.stride()
    assert torch.equal(found["image"], image)
    assert found["complex"].stride() == (1, 4)


def test_a_modules_state_dict_keeps_the_versions_of_its_modules(tmp_path: Path) -> None:
    state = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).state_dict()
    found = round_trip(tmp_path, {"model": state})["model"]
    assert isinstance(found, OrderedDict)
    assert found._metadata == state._metadata  # type: ignore[attr-defined]
    assert bits(found) == bits(state)


class Colour(IntEnum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("value", "kind"),
    [(np.float64(1), "numpy.float64"), (np.zeros(2), "numpy.ndarray"), (Colour.RED, "Colour"), (Pair(1, 2), "Pair"), ({1}, "builtins.set")],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_value_that_would_change_its_type_is_refused_with_its_place(tmp_path: Path, value: object, kind: str) -> None:
    with pytest.raises(CheckpointError, match=rf"state\.a\.0\.b is a .*{kind}; a checkpoint holds"):
        CheckpointStore(tmp_path).save(1, {"a": [{"b": value}]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.ones(2, dtype=torch.complex128),
        torch.ones(2).to(torch.float8_e8m0fnu),
    ],
    ids=["sparse", "meta", "complex128", "float8_e8m0fnu"],
)
def test_a_tensor_that_safetensors_cannot_write_and_read_is_refused(tmp_path: Path, tensor: Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"state\.a is a .*cannot be saved"):
        CheckpointStore(tmp_path).save(1, {"a": tensor})
    assert list(tmp_path.iterdir()) == []


def test_a_view_that_is_conjugated_or_negated_when_it_is_read_comes_back_as_what_it_shows(tmp_path: Path) -> None:
    base = torch.tensor([1 + 2j, 3 - 4j])
    state = {"base": base, "conjugate": base.conj(), "negative": base.conj().imag}
    assert (state["conjugate"].is_conj(), state["negative"].is_neg()) == (True, True)
    assert bits(round_trip(tmp_path, state)) == bits(state)


# Real payloads


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 1, 4, 4)), torch.randint(10, (8,))).backward()
        optimizer.step()


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-5),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), amsgrad=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_from_a_checkpoint_is_bit_identical_to_training_on(tmp_path: Path, kind: str) -> None:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    train(model, optimizer, 5)
    scheduler.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    assert bits(round_trip(tmp_path, state)) == bits(state)
    train(model, optimizer, 5)

    found = CheckpointStore(tmp_path).load(1)
    fresh = network()
    again = OPTIMIZERS[kind](fresh.parameters())
    following = torch.optim.lr_scheduler.CosineAnnealingLR(again, 10)
    fresh.load_state_dict(found["model"])
    again.load_state_dict(found["optimizer"])
    following.load_state_dict(found["scheduler"])
    torch.set_rng_state(found["rng"])
    train(fresh, again, 5)
    assert bits(fresh.state_dict()) == bits(model.state_dict())
    assert bits(again.state_dict()) == bits(optimizer.state_dict())


def test_a_growing_model_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    def growing() -> tuple[Growable, torch.optim.Optimizer]:
        model = Growable(network(), slots=["0"], example=torch.zeros(1, 1, 4, 4))
        return model, torch.optim.SGD(model.parameter_groups(), lr=0.1, momentum=0.9)

    def epoch(model: Growable, optimizer: torch.optim.Optimizer) -> None:
        train(model, optimizer, 2)
        model.tick()

    model, optimizer = growing()
    model.follow(optimizer)
    epoch(model, optimizer)
    model.germinate("0", "conv_small")
    epoch(model, optimizer)
    epoch(model, optimizer)
    CheckpointStore(tmp_path).save(3, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()})
    epoch(model, optimizer)

    found = CheckpointStore(tmp_path).load(3)
    fresh, again = growing()
    fresh.follow(again)
    fresh.load_state_dict(found["model"])
    again.load_state_dict(found["optimizer"])
    torch.set_rng_state(found["rng"])
    epoch(fresh, again)
    assert fresh.report("0").parameters > 0
    assert bits(fresh.state_dict()) == bits(model.state_dict())
    assert bits(again.state_dict()) == bits(optimizer.state_dict())


def test_the_random_streams_go_on_where_they_were(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a second number waiting inside
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    expected = (torch.rand(3), random.gauss(0, 1), random.random())
    found = round_trip(tmp_path, state)
    random.setstate(found["python"])
    torch.set_rng_state(found["torch"])
    again = (torch.rand(3), random.gauss(0, 1), random.random())
    assert bits(again) == bits(expected)


# Which checkpoints there are


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.latest() is None
    assert [store.save(step, {"step": step}) for step in (1, 5, 100_000_000)] == ["step-00000001", "step-00000005", "step-100000000"]
    assert store.steps() == [5, 100_000_000]
    assert sorted(os.listdir(store.folder)) == ["step-00000005", "step-100000000"]
    found = store.latest()
    assert found is not None
    assert (found.step, found.name, found.state) == (100_000_000, "step-100000000", {"step": 100_000_000})


@pytest.mark.parametrize("step", [-1, 2, 3])
def test_a_step_that_is_not_the_newest_is_refused(tmp_path: Path, step: int) -> None:
    store = filled(tmp_path)
    with pytest.raises(CheckpointError, match=f"step {step} cannot be saved"):
        store.save(step, {})
    assert store.steps() == [1, 2, 3]


def test_rewinding_removes_what_a_kill_left_beyond_those_to_keep(tmp_path: Path) -> None:
    many = CheckpointStore(tmp_path, keep=9)
    for step in range(5):
        many.save(step, {"step": step})
    CheckpointStore(tmp_path, keep=2).rewind(3)
    assert many.steps() == [2, 3]


def test_rewinding_removes_what_is_newer_and_then_those_steps_can_be_saved_again(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.rewind(1)
    assert sorted(os.listdir(tmp_path)) == ["step-00000001"]
    store.save(2, {"again": True})
    assert store.load(2) == {"again": True}


def test_leftovers_of_a_kill_are_ignored_by_readers_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for name in (".tmp-1234", ".trash-step-00000009-1234"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / name)
    found = CheckpointStore(tmp_path, keep=3).latest()
    assert found is not None
    assert (found.step, store.problems) == (3, [])
    assert (tmp_path / ".tmp-1234").exists()
    store.save(4, {})
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000003", "step-00000004"]


def test_a_missing_step_is_an_error_that_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 9 .*there are: 1, 2, 3"):
        filled(tmp_path).load(9)


def test_nothing_is_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="keep = 0"):
        CheckpointStore(tmp_path, keep=0)


# Damage


def check_that_the_one_before_is_used(store: CheckpointStore, mentions: str = "step-00000003") -> None:
    found = store.latest()
    assert found is not None
    assert found.step == 2
    assert bits(found.state) == bits({"step": 2, "weights": torch.full((7,), 2.0)})
    (problem,) = store.problems
    assert mentions in problem
    assert "step-00000003" in problem
    assert "\n" not in problem
    with pytest.raises(CheckpointError):
        store.load(3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> CheckpointStore:
    return filled(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_noticed(sound: CheckpointStore, name: str) -> None:
    path = sound.folder / "step-00000003" / name
    content = path.read_bytes()
    choices = [(offset, bit) for offset in range(len(content)) for bit in range(8)]
    try:
        for offset, bit in choices if len(choices) < 4000 else random.sample(choices, 4000):
            path.write_bytes(content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :])
            with pytest.raises(CheckpointError):
                sound.load(3)
        check_that_the_one_before_is_used(sound, mentions=str(path.parent))
    finally:
        path.write_bytes(content)
    found = sound.latest()
    assert found is not None
    assert found.step == 3


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_is_noticed(tmp_path: Path, name: str, share: float) -> None:
    store = filled(tmp_path)
    path = tmp_path / "step-00000003" / name
    os.truncate(path, int(path.stat().st_size * share))
    check_that_the_one_before_is_used(store, mentions=name)


@pytest.mark.parametrize("name", FILES)
def test_a_deleted_file_is_noticed(tmp_path: Path, name: str) -> None:
    store = filled(tmp_path)
    (tmp_path / "step-00000003" / name).unlink()
    check_that_the_one_before_is_used(store, mentions=f"it has no {name}")


def test_a_pipe_in_the_place_of_a_file_is_noticed_at_once(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (tmp_path / "step-00000003" / "manifest.json").unlink()
    os.mkfifo(tmp_path / "step-00000003" / "manifest.json")
    check_that_the_one_before_is_used(store, mentions="manifest.json cannot be read: Not a regular file")


def test_an_edited_state_is_noticed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = tmp_path / "step-00000003" / "state.json"
    path.write_text(path.read_text().replace('["step",3]', '["step",7]'))
    check_that_the_one_before_is_used(store, mentions="damaged or was edited")


@pytest.mark.parametrize(
    "edit", [{"run": "other"}, {"step": 4}, {"version": 4}, {"version": None}, {"format": "x"}, {"files": []}, {"files": {}}, {"x": 1}]
)
def test_an_edited_manifest_is_noticed(tmp_path: Path, edit: dict[str, Any]) -> None:
    store = filled(tmp_path)
    path = tmp_path / "step-00000003" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}, indent=1) + "\n")
    check_that_the_one_before_is_used(store)


def test_a_renamed_checkpoint_is_noticed(tmp_path: Path) -> None:
    store = filled(tmp_path, steps=2)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000003")
    check_that_the_one_before_is_used(store, mentions="was saved as step 1")


def test_a_checkpoint_of_another_run_is_noticed(tmp_path: Path) -> None:
    store = filled(tmp_path / "a", steps=2)
    other = CheckpointStore(tmp_path / "b", run="other")
    other.save(3, {})
    (tmp_path / "b" / "step-00000003").rename(tmp_path / "a" / "step-00000003")
    check_that_the_one_before_is_used(store, mentions="belongs to another run ('other'")


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = tmp_path / "step-00000003" / "manifest.json"
    path.write_text(path.read_text().replace('"version": 3', '"version": 4'))
    check_that_the_one_before_is_used(store, mentions="format version 4; this version of Esper reads 3")


def test_when_none_can_be_used_the_error_says_why_for_each(tmp_path: Path) -> None:
    store = filled(tmp_path, steps=2)
    for step in (1, 2):
        (tmp_path / f"step-0000000{step}" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*step-00000002.*step-00000001"):
        store.latest()


def test_what_is_not_a_checkpoint_is_reported_and_left_alone(tmp_path: Path) -> None:
    store = filled(tmp_path, steps=2)
    (tmp_path / "notes").mkdir()
    torch.save({"a": 1}, tmp_path / "model.pt")
    found = store.latest()
    assert found is not None
    assert found.step == 2
    assert [problem.split(" is ", 1)[1] for problem in store.problems] == [
        "a pickle, which can run code when it is loaded; Esper never loads one",
        "not a checkpoint of Esper",
    ]


class Trap:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch sprung",))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "torch"])
def test_a_pickle_is_refused_by_its_first_bytes_even_with_a_forged_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, protocol: int | str
) -> None:
    monkeypatch.chdir(tmp_path)
    store = filled(tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-00000003"
    if protocol == "torch":
        torch.save({"trap": Trap(), "weights": torch.zeros(3)}, tmp_path / "trap.pt")
        content = (tmp_path / "trap.pt").read_bytes()
    else:
        content = pickle.dumps(Trap(), protocol=int(protocol))
    if name == "manifest.json":
        (path / name).write_bytes(content)
    else:
        rewritten(path, name, content)
    check_that_the_one_before_is_used(store, mentions=f"{name} is a pickle")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("as_file", [True, False])
def test_a_pickle_in_the_place_of_a_checkpoint_is_refused(tmp_path: Path, as_file: bool) -> None:
    store = filled(tmp_path)
    shutil.rmtree(tmp_path / "step-00000003")
    (tmp_path / "step-00000003").write_bytes(pickle.dumps(1) if as_file else b"hello")
    check_that_the_one_before_is_used(store, mentions="is a pickle" if as_file else "is not a checkpoint of Esper")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_tensor_file_whose_first_bytes_look_like_a_pickle_is_accepted(tmp_path: Path, protocol: int) -> None:
    # The length of the header comes first in the file, and grows with the names of the tensors.
    store = CheckpointStore(tmp_path)
    store.save(1, {"x": torch.ones(1)})
    length = int.from_bytes((tmp_path / "step-00000001" / "tensors.safetensors").read_bytes()[:8], "little")
    state = {"x" * (1 + int.from_bytes(bytes([0x80, protocol]), "little") - length): torch.ones(1)}
    store.save(2, state)
    assert (tmp_path / "step-00000002" / "tensors.safetensors").read_bytes().startswith(bytes([0x80, protocol]))
    assert bits(store.load(2)) == bits(state)


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{}", b'{"tensor":"1","stride":null}', b'{"float":"00"}', b'{"dict":[[[],1]]}', b"[" * 100_000, b"\xff"],
    ids=lambda content: content[:8].decode(errors="replace"),
)
def test_a_forged_state_that_makes_no_sense_is_refused(tmp_path: Path, content: bytes) -> None:
    store = filled(tmp_path)
    rewritten(tmp_path / "step-00000003", "state.json", content)
    check_that_the_one_before_is_used(store)


@pytest.mark.parametrize("content", [b"", b"\x00" * 8, b"\xff" * 64, b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_forged_tensor_file_that_makes_no_sense_is_refused(tmp_path: Path, content: bytes) -> None:
    store = filled(tmp_path)
    rewritten(tmp_path / "step-00000003", "tensors.safetensors", content)
    check_that_the_one_before_is_used(store)


# Kills and full disks, in processes of their own


def drive(folder: Path, *what: str, wrapper: Sequence[str] = ()) -> Any:
    done = subprocess.run([*wrapper, sys.executable, str(DRIVER), *what, str(folder)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drive(tmp_path_factory.mktemp("driven"), "kill_at_random", "kill_at_each_operation", "limit_file_size")


def test_a_kill_at_any_moment_leaves_the_last_checkpoint_or_the_next_one_whole(driven: Any) -> None:
    rounds = driven["kill_at_random"]["rounds"]
    assert len(rounds) == 20
    assert all(each["whole"] and each["ahead"] in (0, 1) for each in rounds)


def test_a_kill_at_each_file_operation_loses_nothing_and_the_next_save_cleans_up(driven: Any) -> None:
    found = driven["kill_at_each_operation"]
    assert all(each["whole"] and each["clean"] for rounds in found.values() for each in rounds)
    steps = {action: [each["step"] for each in rounds] for action, rounds in found.items()}
    assert steps["save"] == sorted(steps["save"])
    assert steps["rewind"] == sorted(steps["rewind"], reverse=True)
    assert ({*steps["save"]}, {*steps["rewind"]}) == ({3, 4}, {3, 2})
    assert (len(steps["save"]) > 15, len(steps["rewind"]) > 7) == (True, True)


def check_full(found: dict[str, Any], reason: str) -> None:
    assert found["checkpoint"].endswith(f"{reason}; the last one, step-00000001, is intact")
    assert (found["left"], found["step"], found["whole"]) == (["step-00000001"], 1, True)
    assert [reason in text for text in found["events"]] == [True, True]
    assert "wait in memory" in found["events"][0]
    assert "are lost" in found["events"][1]
    assert found["readable"] > 1
    assert found["events_afterwards"] == 2
    assert found["afterwards"] == [3, True]


def test_a_file_that_may_not_grow_is_told_of_clearly_and_leaves_the_last_checkpoint_intact(driven: Any) -> None:
    check_full(driven["limit_file_size"], "File too large")


def test_a_full_disk_is_told_of_clearly_and_leaves_the_last_checkpoint_intact(tmp_path: Path) -> None:
    small_disk = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"', str(tmp_path))
    try:
        subprocess.run([*small_disk, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    check_full(drive(tmp_path, "fill_the_disk", wrapper=small_disk)["fill_the_disk"], "No space left on device")
