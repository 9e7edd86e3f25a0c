"""What is harvested is a plain module: equal in what it computes, made of the user's own classes and torch's, and free of esper."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn, optim

from esper.kasmina import Growable
from esper.leyline.actions import Style
from esper.leyline.errors import ConfigError
from esper.leyline.stages import Stage
from tests.kasmina import networks
from tests.kasmina.growing import (
    STYLES,
    assert_equal,
    fingerprint,
    fossilised,
    grow,
    hook_count,
    outputs,
    to_blending,
    to_training,
    unlike_birth,
)
from tests.kasmina.zoo import BY_NAME, ZOO, Specimen, leaves, loss_of, run

everyone = pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)


def styles_for(specimen: Specimen) -> list[Style]:
    """All styles, beginning with another one for each network."""
    start = [s.name for s in ZOO].index(specimen.name)
    return [STYLES[(start + i) % len(STYLES)] for i in range(len(STYLES))]


def grown(specimen: Specimen, **settings: Any) -> Growable:
    return fossilised(specimen, styles_for(specimen), **settings)


@everyone
def test_the_harvest_computes_what_the_grown_network_does(specimen: Specimen) -> None:
    net = grown(specimen)
    plain = net.harvest()
    assert_equal(outputs(plain, specimen.example(5)), outputs(net, specimen.example(5)))
    bare = specimen.model()
    bare.load_state_dict(net.host.state_dict())
    changed = zip(outputs(bare, specimen.example(5)), outputs(net, specimen.example(5)), strict=True)
    assert any(not torch.allclose(a, b, atol=1e-4) for a, b in changed), "the fossils should make a difference"


@everyone
def test_the_harvest_trains_as_the_grown_network_does(specimen: Specimen) -> None:
    net = grown(specimen)
    plain = net.harvest()
    found = []
    for model, parameters in ((net, net.parameter_groups()), (plain, plain.parameters())):
        optimizer = optim.SGD(parameters, lr=0.01, momentum=0.9)
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss_of(run(model, specimen.example(step))).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        found.append(outputs(model, specimen.example(5)))
    assert_equal(found[1], found[0], tolerance=1e-4)


@everyone
def test_the_harvest_holds_the_users_classes_and_torchs_alone(specimen: Specimen) -> None:
    plain = grown(specimen).harvest()
    homes = {type(module).__module__ for module in plain.modules()}
    assert all(home.startswith(("torch.nn.", "torch.fx.", "tests.kasmina.networks")) for home in homes), homes
    assert type(plain) is type(specimen.model()) or isinstance(plain, fx.GraphModule)
    hooks = [hook for module in plain.modules() for hook in module._forward_hooks.values()]
    assert all(isinstance(hook, fx.GraphModule) for hook in hooks)
    assert len(hooks) == hook_count(plain)


@everyone
def test_the_harvest_keeps_every_name_of_the_host_and_adds_only_what_has_grown(specimen: Specimen) -> None:
    net = grown(specimen)
    plain, host = net.harvest(), specimen.model()
    added = [name for name in plain.state_dict() if name not in host.state_dict()]
    assert [name for name in plain.state_dict() if name not in added] == list(host.state_dict())
    assert [path for path, _ in host.named_modules() if path not in dict(plain.named_modules())] == []
    for slot in specimen.slots:
        mine = [name for name in added if name.startswith(f"{slot}.grown.")]
        assert len(mine) == len(net.slots[slot].seed_parameters())
        added = [name for name in added if name not in mine]
    assert added == []


@everyone
def test_the_harvest_leaves_the_grown_network_alone(specimen: Specimen) -> None:
    net = grown(specimen)
    before = fingerprint(net)
    expected = outputs(copy.deepcopy(net), specimen.example(5))
    plain = net.harvest()
    assert fingerprint(net) == before
    assert hook_count(net.host) == len(specimen.slots)
    assert {p.data_ptr() for p in net.parameters()}.isdisjoint({p.data_ptr() for p in plain.parameters()})
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.fill_(torch.nan)
    assert_equal(outputs(net, specimen.example(5)), expected, tolerance=0.0)


@everyone
def test_the_harvest_survives_copying_and_a_state_dict(specimen: Specimen) -> None:
    net = grown(specimen)
    plain = net.harvest()
    expected = outputs(plain, specimen.example(5))
    assert_equal(outputs(copy.deepcopy(plain), specimen.example(5)), expected, tolerance=0.0)
    other = unlike_birth(grown(specimen)).harvest()
    assert any(not torch.equal(a, b) for a, b in zip(outputs(other, specimen.example(5)), expected, strict=True))
    other.load_state_dict(plain.state_dict())
    assert_equal(outputs(other, specimen.example(5)), expected, tolerance=0.0)


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export speaks so of every LSTM
@everyone
def test_the_harvest_can_be_exported(specimen: Specimen) -> None:
    plain = grown(specimen).harvest().eval()
    example = specimen.example(5)
    args = () if isinstance(example, dict) else example if isinstance(example, tuple) else (example,)
    exported = torch.export.export(plain, args, example if isinstance(example, dict) else None)
    assert_equal(leaves(run(exported.module(), example)), outputs(plain, example))


@everyone
def test_each_module_of_the_harvest_is_in_the_mode_it_was_in(specimen: Specimen) -> None:
    net = grown(specimen)
    plain = net.harvest()
    modes = {path: module.training for path, module in plain.named_modules()}
    assert {path: mode for path, mode in modes.items() if ".grown" not in path} == {p: m.training for p, m in net.host.named_modules()}
    assert all(mode for path, mode in modes.items() if ".grown" in path)


def test_live_seeds_are_dropped_or_kept() -> None:
    specimen = BY_NAME["residual"]
    net = unlike_birth(to_training(grow(specimen), specimen, [Style.LINEAR_ADD, Style.GATED, Style.LINEAR_MULTIPLY]))
    to_blending(net, specimen)
    net.prune("stem")
    for _ in range(8):
        net.tick()
    net.germinate("stem", "norm")
    net.advance("stem")
    assert [net.report(slot).stage for slot in net.slot_ids] == [Stage.TRAINING, Stage.HOLDING, Stage.HOLDING]
    net.set_alpha_target("layer2", 0.3, speed=0)
    example = specimen.example(5)
    kept, dropped = net.harvest(live="keep"), net.harvest(live="drop")
    assert_equal(outputs(kept, example), outputs(net, example))
    with net.bare():
        assert_equal(outputs(dropped, example), outputs(net, example), tolerance=0.0)
    assert [slot for slot in net.slot_ids if hasattr(kept.get_submodule(slot), "grown")] == ["layer1", "layer2"]
    assert list(dropped.state_dict()) == list(specimen.model().state_dict())
    with pytest.raises(ConfigError, match='live is "drop" or "keep", found \'sell\''):
        net.harvest(live="sell")


def test_the_harvest_of_a_network_that_has_not_grown_is_the_host() -> None:
    specimen = BY_NAME["unet"]
    net = to_training(grow(specimen), specimen)
    plain = net.harvest()
    assert [type(m) for m in plain.modules()] == [type(m) for m in specimen.model().modules()]
    assert_equal(outputs(plain, specimen.example(5)), outputs(specimen.model(), specimen.example(5)), tolerance=0.0)


def test_seeds_that_recompute_their_activations_are_harvested_too() -> None:
    specimen = BY_NAME["conv_host"]
    net = grown(specimen, checkpoint=True)
    assert_equal(outputs(net.harvest(), specimen.example(5)), outputs(net, specimen.example(5)))


# Without esper

LOADER = """
import sys
sys.path += sys.argv[2:]  # appended by hand: under -S no .pth file is read, so an editable install is not seen
try:
    import esper
except ModuleNotFoundError:
    pass
else:
    sys.exit("esper can be imported here")
import torch
for name, (model, args, kwargs, expected) in torch.load(sys.argv[1], weights_only=False).items():
    with torch.no_grad():
        found = model.eval()(*args, **kwargs)
    found = list(found) if isinstance(found, tuple) else [found]
    assert len(found) == len(expected), name
    for a, b in zip(found, expected):
        assert (a - b).abs().max() <= 1e-6 * max(1.0, b.abs().max()), name
    assert not any(module == "esper" or module.startswith("esper.") for module in sys.modules), name
    print(name)
"""


def test_the_harvest_loads_and_runs_where_esper_is_not_installed(tmp_path: Path) -> None:
    saved = {}
    for specimen in ZOO:
        plain = grown(specimen).harvest()
        example = specimen.example(5)
        args = () if isinstance(example, dict) else example if isinstance(example, tuple) else (example,)
        saved[specimen.name] = (plain, args, example if isinstance(example, dict) else {}, outputs(plain, example))
    torch.save(saved, tmp_path / "harvest.pt")
    home = tmp_path / "tests" / "kasmina"
    home.mkdir(parents=True)
    shutil.copy(str(networks.__file__), home)
    packages = str(Path(torch.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", LOADER, str(tmp_path / "harvest.pt"), str(tmp_path), packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [specimen.name for specimen in ZOO]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch warns of torch, from modules of all kinds
@pytest.mark.parametrize("name", ["residual", "gpt_host"])
def test_the_harvest_runs_in_onnx(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    specimen = BY_NAME[name]
    plain = grown(specimen).harvest().eval()
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    torch.onnx.export(plain, (specimen.example(),), tmp_path / "net.onnx", dynamo=True, dynamic_shapes=dynamic, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    example = torch.cat([specimen.example(5), specimen.example(6)])
    found = session.run(None, {session.get_inputs()[0].name: example.numpy()})
    assert_equal([torch.from_numpy(array) for array in found], outputs(plain, example), tolerance=1e-5)
