"""A grown network comes out of its file as it was harvested, from a host of the same kind alone; anything else is refused in a sentence."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

import esper
from esper.kasmina import Growable
from esper.kasmina.grown_file import _digest
from esper.leyline.errors import BlueprintError, ConfigError, EsperError, StateError
from tests.kasmina.growing import (
    STYLES,
    assert_equal,
    fossilised,
    grow,
    grow_one,
    outputs,
    registered,
    to_blending,
    to_training,
    unlike_birth,
)
from tests.kasmina.test_harvest_odd import EXAMPLE, UNUSUAL, Bagged, Block, Inside, called, layers
from tests.kasmina.zoo import BY_NAME, ZOO, Specimen


def assert_same(found: nn.Module, expected: nn.Module, example: Any) -> None:
    """Names, values and outputs, bit for bit; and nothing of esper."""
    assert list(found.state_dict()) == list(expected.state_dict())
    pairs = zip(found.state_dict().values(), expected.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
    assert_equal(outputs(found, example), outputs(expected, example), tolerance=0.0)
    assert not any(type(module).__module__.startswith("esper") for module in found.modules())


@pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)
def test_what_is_loaded_is_what_was_harvested(specimen: Specimen, tmp_path: Path) -> None:
    net = fossilised(specimen, STYLES)
    esper.save_grown(net, tmp_path / "grown.safetensors")
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        loaded = esper.load_grown(specimen.factory, tmp_path / "grown.safetensors")
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(loaded, net.harvest(), specimen.example(5))


@pytest.mark.parametrize(("block", "way"), UNUSUAL.values(), ids=UNUSUAL.keys())
def test_so_it_is_around_modules_with_unusual_outputs(
    block: type[Block], way: Callable[[nn.Module, Tensor], Tensor], tmp_path: Path
) -> None:
    net = grow_one(Inside(block(), way), "block", EXAMPLE)
    esper.save_grown(net, tmp_path / "grown.safetensors")
    assert_same(esper.load_grown(Inside(block(), way), tmp_path / "grown.safetensors"), net.harvest(), EXAMPLE)


def test_seeds_that_are_still_alive_are_dropped_or_kept_as_they_are(tmp_path: Path) -> None:
    specimen = BY_NAME["residual"]
    net = unlike_birth(to_blending(to_training(grow(specimen), specimen, STYLES), specimen))
    for live in ("drop", "keep"):
        esper.save_grown(net, tmp_path / "grown.safetensors", live=live)
        assert_same(esper.load_grown(specimen.factory, tmp_path / "grown.safetensors"), net.harvest(live), specimen.example(5))
    with pytest.raises(ConfigError, match='live is "drop" or "keep"'):
        esper.save_grown(net, tmp_path / "other.safetensors", live="sell")
    with pytest.raises(ConfigError, match="saves a Growable, found ResidualNet"):
        esper.save_grown(net.host, tmp_path / "other.safetensors")  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["grown.safetensors"]


def test_tied_weights_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    specimen = BY_NAME["tied"]
    esper.save_grown(fossilised(specimen), tmp_path / "grown.safetensors")
    loaded = esper.load_grown(specimen.factory, tmp_path / "grown.safetensors")
    assert loaded.head.weight is loaded.embedding.weight
    with safe_open(tmp_path / "grown.safetensors", framework="pt") as file:
        names = list(file.keys())
    assert ("embedding.weight" in names) != ("head.weight" in names)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_comes_in_the_precision_that_it_was_saved_in(dtype: torch.dtype, tmp_path: Path) -> None:
    specimen = BY_NAME["tied"]
    net = fossilised(specimen).to(dtype)
    esper.save_grown(net, tmp_path / "grown.safetensors")
    loaded = esper.load_grown(specimen.factory, tmp_path / "grown.safetensors")
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    assert_same(loaded, net.harvest(), specimen.example(5))
    assert loaded.head.weight is loaded.embedding.weight


def test_a_host_that_is_given_as_it_is_stays_as_it_is(tmp_path: Path) -> None:
    specimen = BY_NAME["residual"]
    esper.save_grown(fossilised(specimen), tmp_path / "grown.safetensors")
    host = specimen.model()
    before = {name: value.clone() for name, value in host.state_dict().items()}
    loaded = esper.load_grown(host, tmp_path / "grown.safetensors")
    assert loaded is not host
    assert all(torch.equal(value, before[name]) for name, value in host.state_dict().items())
    assert list(host.state_dict()) == list(before)


class Told(nn.Module):
    """Keeps something besides tensors in its state dict, as a module may."""

    def __init__(self, told: Any = None) -> None:
        super().__init__()
        self.block, self.head, self.told = layers_of_one(), nn.Linear(4, 2), told

    def get_extra_state(self) -> Any:
        return {"told": self.told, "sizes": [1, 2]}

    def set_extra_state(self, state: Any) -> None:
        self.told = state["told"]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


def layers_of_one() -> nn.Sequential:
    return nn.Sequential(*layers())


TALES = ["a tale", (1, (2, "three")), {"a": None, 2: [True]}, {"!tuple": 1.5}, F.gelu, {"kind": nn.Linear, "as": (torch.float16,)}]


@pytest.mark.parametrize("tale", TALES, ids=["text", "tuples", "dicts", "a key like ours", "function", "class and type"])
def test_what_a_host_keeps_besides_tensors_is_kept(tale: Any, tmp_path: Path) -> None:
    net = grow_one(Told(tale), "block", EXAMPLE)
    esper.save_grown(net, tmp_path / "grown.safetensors")
    loaded = esper.load_grown(lambda: Told(tale), tmp_path / "grown.safetensors")
    assert loaded.told == tale
    assert_same(loaded, net.harvest(), EXAMPLE)


class Versioned(nn.Sequential):
    """Asks for the version of its state, as some networks of torchvision do."""

    _version = 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *args: Any) -> None:
        assert local_metadata["version"] == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_a_host_that_asks_for_the_version_of_its_state_is_told(tmp_path: Path) -> None:
    net = grow_one(Versioned(*layers()), "0", EXAMPLE)
    esper.save_grown(net, tmp_path / "grown.safetensors")
    assert_same(esper.load_grown(lambda: Versioned(*layers()), tmp_path / "grown.safetensors"), net.harvest(), EXAMPLE)


def test_what_changed_besides_tensors_comes_from_the_file_and_what_only_has_a_name_from_the_host(tmp_path: Path) -> None:
    net = grow_one(Told({"by": F.gelu, "steps": (1, 2)}), "block", EXAMPLE)
    esper.save_grown(net, tmp_path / "grown.safetensors")
    assert esper.load_grown(lambda: Told({"by": F.gelu, "steps": ()}), tmp_path / "grown.safetensors").told["steps"] == (1, 2)
    with pytest.raises(StateError, match=r"another host: '_extra_state'\['told'\]\['by'\] was .*gelu there and is .*relu here"):
        esper.load_grown(lambda: Told({"by": F.relu}), tmp_path / "grown.safetensors")


UNWRITABLE: list[tuple[Any, str]] = [(lambda: None, "function"), (math.nan, "the number nan"), ({1}, "class set")]


@pytest.mark.parametrize(("tale", "word"), UNWRITABLE, ids=["lambda", "nan", "set"])
def test_what_no_file_can_hold_is_refused_before_anything_is_written(tale: Any, word: str, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=f"cannot hold '_extra_state' of the host's state dict, which has in it .*{word}"):
        esper.save_grown(grow_one(Told(tale), "block", EXAMPLE), tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


# What is refused


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grown") / "grown.safetensors"
    esper.save_grown(grow_one(Inside(nn.Sequential(*layers()), called), "block", EXAMPLE), path)
    return path


def host(block: nn.Module | None = None) -> nn.Module:
    return Inside(nn.Sequential(*layers()) if block is None else block, called)


class Wider(Inside):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(*layers()), called)
        self.head = nn.Linear(4, 3)


class Longer(Inside):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(*layers()), called)
        self.tail = nn.Linear(2, 2)


class Shorter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(*layers())


HOSTS: dict[str, tuple[Callable[[], Any], str]] = {
    "another shape": (Wider, r"grown from another host: 'head.weight' has shape \(2, 4\) there and \(3, 4\) here"),
    "more": (Longer, r"grown from another host: it has no 'tail.weight'; did you mean 'head.weight'"),
    "less": (Shorter, r"grown from another host: it has 'head.bias', which this one does not"),
    "no such place": (lambda: nn.Sequential(nn.Linear(4, 2)), r"was grown at 'block', which this host does not have"),
    "no module": (lambda: 5, r"needs the host that it was grown from, an nn.Module; found int"),
    "a Growable": (lambda: Growable(host(), ["block"], EXAMPLE), r"needs the host that it was grown from, an nn.Module; found Growable"),
}


@pytest.mark.parametrize(("factory", "words"), HOSTS.values(), ids=HOSTS.keys())
def test_another_host_is_refused(saved: Path, factory: Callable[[], Any], words: str) -> None:
    with pytest.raises(StateError, match=words):
        esper.load_grown(factory, saved)


def rewritten(path: Path, into: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file with another header, whose checksum is right."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["esper"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(about)
    text = json.dumps(about)
    into.write_bytes(safetensors.torch.save(tensors, {"format": "pt", "esper": text, "sha256": _digest(text, tensors)}))
    return into


def test_files_that_are_none_are_told_in_words(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    flipped = bytearray(content)
    flipped[-5] ^= 1
    for name, made in {"cut": content[:-7], "flipped": bytes(flipped), "noise": b"no tensors at all", "empty": b""}.items():
        (tmp_path / name).write_bytes(made)
        with pytest.raises(StateError, match=f"{name} is (no grown network, or is damaged|damaged or was edited)"):
            esper.load_grown(host, tmp_path / name)
    (tmp_path / "tensors").write_bytes(safetensors.torch.save({"a": torch.zeros(2)}))
    with pytest.raises(StateError, match="holds tensors, but no grown network"):
        esper.load_grown(host, tmp_path / "tensors")
    with pytest.raises(StateError, match="no grown network at"):
        esper.load_grown(host, tmp_path / "nothing")
    with pytest.raises(StateError, match="is a folder"):
        esper.load_grown(host, tmp_path)
    newer = rewritten(saved, tmp_path / "newer", lambda about: about.update(version=2))
    with pytest.raises(StateError, match="is a grown network of version 2; this version of Esper reads 1"):
        esper.load_grown(host, newer)
    with pytest.raises(StateError, match="cannot be written to"):
        esper.save_grown(grow_one(host(), "block", EXAMPLE), tmp_path / "nowhere" / "grown.safetensors")


def test_a_blueprint_that_is_not_here_is_asked_for(tmp_path: Path) -> None:
    specimen = BY_NAME["in_place"]
    with registered("passing", lambda shape: nn.Conv2d(shape.width, shape.width, 1)) as name:
        esper.save_grown(grow_one(specimen.model(), "conv1", specimen.example(), name), tmp_path / "grown.safetensors")
        esper.load_grown(specimen.factory, tmp_path / "grown.safetensors")
    with pytest.raises(BlueprintError, match="blueprint 'passing' for map2d, which is not known here; import the plug-in or module"):
        esper.load_grown(specimen.factory, tmp_path / "grown.safetensors")


def test_a_file_names_only_classes_that_are_here_already(tmp_path: Path) -> None:
    esper.save_grown(grow_one(Inside(Bagged(), UNUSUAL["a tuple of one's own"][1]), "block", EXAMPLE), tmp_path / "grown.safetensors")
    for kind in ("tests.kasmina.nowhere:Bag", "antigravity:Bag", "builtins:int", "os:system"):

        def change(about: dict[str, Any], kind: str = kind) -> None:
            about["slots"][0]["output"] = json.dumps({"kind": kind, "length": 2, "parts": [[0, None]]})

        other = rewritten(tmp_path / "grown.safetensors", tmp_path / "other.safetensors", change)
        with pytest.raises(EsperError, match=f"returns a {kind}, which is not known here"):
            esper.load_grown(lambda: Inside(Bagged(), called), other)
    assert "antigravity" not in sys.modules


def test_another_process_loads_it_with_the_hosts_class_alone(tmp_path: Path) -> None:
    specimen = BY_NAME["encoder"]
    net = fossilised(specimen)
    esper.save_grown(net, tmp_path / "grown.safetensors")
    torch.save((specimen.example(5), outputs(net.harvest(), specimen.example(5))), tmp_path / "expected.pt")
    script = """
import sys, torch, esper
from tests.kasmina.networks import Encoder
example, expected = torch.load(sys.argv[2])
with torch.no_grad():
    found = esper.load_grown(Encoder, sys.argv[1]).eval()(**example)
assert torch.equal(found, expected[0])
"""
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(tmp_path / "grown.safetensors"), str(tmp_path / "expected.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=there)
    assert done.returncode == 0, done.stderr
