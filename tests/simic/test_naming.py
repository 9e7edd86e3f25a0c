"""Policies that ship are used by their names wherever a policy is taken; files, folders and controllers keep theirs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import esper
from esper.karn.evaluate_config import EvaluateConfig
from esper.karn.subjects import find_subjects
from esper.leyline.errors import CheckpointError, ConfigError, PolicyError, UnknownNameError
from esper.nissa import Hub
from esper.policies import POLICIES
from esper.simic.gardener import Entry
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.growth.deciding import controller_for, policy_for
from esper.simic.growth.naming import PolicyFile, anchored, find_policy
from esper.simic.plugins import load_plugins
from esper.simic.runs.compare import CompareRun
from esper.simic.runs.compare_config import CompareConfig, contenders
from esper.simic.runs.configs import read_config
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.runner import resume, start
from esper.tamiyo import CONTROLLERS, register
from esper.tamiyo.policy.policy import Policy
from tests.policies.sample import ship, shipping
from tests.simic.runs import Crash, CrashAfter, opinionated, small


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with tamiyo-1 and tamiyo-2, which ship; the tests are in another one, which is empty."""
    folder, here = tmp_path / "package", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    ship(folder, "tamiyo-1")
    ship(folder, "tamiyo-2", Policy(opinionated().config, torch.Generator().manual_seed(5)))
    with shipping(folder):
        yield folder


def same(one: Policy, other: Policy) -> bool:
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_a_name_is_that_of_a_file_in_the_package(package: Path) -> None:
    assert find_policy("tamiyo") == find_policy("tamiyo-2") == PolicyFile(package / "tamiyo-2.safetensors", "tamiyo-2")
    assert find_policy("tamiyo-1") == PolicyFile(package / "tamiyo-1.safetensors", "tamiyo-1")
    assert same(policy_for("tamiyo-1"), opinionated())
    assert not same(policy_for("tamiyo"), opinionated())
    assert controller_for("tamiyo").name == "tamiyo-2"


def test_files_and_controllers_are_found_as_ever(package: Path) -> None:
    assert [find_policy(name) for name in ("heuristic", "nobody", "", 3, None)] == [None] * 5
    for file in ("policy.safetensors", "runs/mine", "./tamiyo", "./tamiyo-1"):
        assert find_policy(file) == PolicyFile(Path(file))
    assert find_policy(Path("tamiyo")) == PolicyFile(Path("tamiyo"))
    shutil.copy(package / "tamiyo-1.safetensors", "mine")
    assert find_policy("mine") == PolicyFile(Path("mine"))
    assert controller_for("mine").name == "policy"


def test_what_is_anchored_means_the_same_from_any_folder_and_whatever_ships_later(package: Path, tmp_path: Path) -> None:
    Path("run").mkdir()
    assert [anchored(given) for given in ("heuristic", "nobody", "tamiyo", "tamiyo-1")] == ["heuristic", "nobody", "tamiyo-2", "tamiyo-1"]
    here = tmp_path / "here"
    assert [anchored(given) for given in ("run", "a.safetensors", "./tamiyo")] == [f"{here}/run", f"{here}/a.safetensors", f"{here}/tamiyo"]


def test_a_misspelt_name_gets_the_nearest_one_wherever_it_is_given() -> None:
    nearest = r"'tamyo'; did you mean 'tamiyo'\?"
    with pytest.raises(UnknownNameError, match=f"unknown policy {nearest}"):
        controller_for("tamyo")
    with pytest.raises(UnknownNameError, match=f"unknown controller {nearest}"):
        controller_for("tamyo", called="controller")
    with pytest.raises(UnknownNameError, match=f"unknown policy {nearest}"):
        policy_for("tamyo")
    with pytest.raises(UnknownNameError, match=f"unknown policy {nearest}"):
        contenders(CompareConfig(policies=("tamyo",)))
    with pytest.raises(UnknownNameError, match=f"unknown policy {nearest}"):
        find_subjects(["tamyo"], EvaluateConfig())
    with pytest.raises(UnknownNameError, match=r"unknown policy 'tamiyo-3'; did you mean 'tamiyo-[12]'"):
        policy_for("tamiyo-3")


def test_a_policy_has_no_settings_and_a_controller_no_weights() -> None:
    with pytest.raises(ConfigError, match="a trained policy has no settings; found tempo for tamiyo"):
        controller_for("tamiyo", {"tempo": 5})
    with pytest.raises(ConfigError, match=r"'heuristic' is a controller, which has no weights; .* \(tamiyo, tamiyo-1, tamiyo-2\)"):
        policy_for("heuristic")
    with pytest.raises(PolicyError, match=r"no policy at nowhere/policy\.safetensors"):
        policy_for("nowhere/policy.safetensors")


@dataclass(frozen=True)
class NoSettings:
    """Nothing can be set."""


@pytest.mark.parametrize("name", ["tamiyo", "tamiyo-2"])
def test_a_controller_cannot_take_the_name_of_a_policy_that_ships(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name!r} is the name of a policy that ships with Esper; expected another one"):
        register(name, NoSettings, lambda config: controller_for("wait"), purpose="none")
    Path("plugin.py").write_text(
        "from dataclasses import dataclass\nimport esper\n@dataclass(frozen=True)\nclass C: pass\n"
        f"esper.controller({name!r}, C, lambda config: None, purpose='none')\n"
    )
    with pytest.raises(ConfigError, match=rf"plugin\.py, line 5: {name!r} is the name of a policy that ships"):
        load_plugins(["plugin.py"])
    assert name not in CONTROLLERS


# Where policies are taken


def test_a_gardener_takes_a_name_and_remembers_which_generation_it_was(package: Path) -> None:
    def gardener(policy: str) -> esper.Gardener:
        model = esper.Growable(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), slots=["1"], example=torch.zeros(2, 4))
        optimizer = torch.optim.SGD(model.parameter_groups(), lr=0.1)
        return esper.Gardener(model, optimizer, policy=policy, evaluate=lambda model: esper.Evaluation(accuracy=50.0, loss=0.7))

    named = gardener("tamiyo")
    assert named.config.policy == "tamiyo-2"
    assert isinstance(named.step(train_loss=0.7, train_accuracy=50.0), Entry)
    with pytest.raises(esper.EsperError, match="state is that of the controller 'tamiyo-2'; this gardener has 'tamiyo-1'"):
        gardener("tamiyo-1").load_state_dict(named.state_dict())


RUN = {"hosts": 1, "epochs": 4, "control": False}


def test_a_run_under_a_name_keeps_the_generation_and_goes_on_with_that_very_file(package: Path) -> None:
    whole = start(small(controller="tamiyo", **RUN), None, "test")
    run = Path(whole["run"])
    assert run.name == "digits-tamiyo-2-001"
    config = read_config(run / "config.toml")
    assert isinstance(config, ControllerRunConfig)
    assert config.controller == "tamiyo-2"
    assert whole["hosts"][0]["controller"] == "tamiyo-2"
    with pytest.raises(Crash):
        start(small(controller="tamiyo", **RUN), Path("parts"), "test", display=CrashAfter(3))
    shutil.copy(package / "tamiyo-1.safetensors", package / "tamiyo-3.safetensors")
    with shipping(package):  # what ships later changes nothing
        assert "tamiyo-3" in POLICIES
        parts = resume(Path("parts"))
    assert parts["hosts"] == whole["hosts"]
    shutil.rmtree("parts")
    with pytest.raises(Crash):
        start(small(controller="tamiyo", **RUN), Path("parts"), "test", display=CrashAfter(3))
    shutil.copy(package / "tamiyo-1.safetensors", package / "tamiyo-2.safetensors")
    with pytest.raises(CheckpointError, match="tamiyo-2 is not the policy that the run was started with"):
        resume(Path("parts"))


def test_learning_goes_on_from_a_name_or_a_file(package: Path, tmp_path: Path) -> None:
    few = PPORunConfig(rounds=1, hosts=1, pool=1, examined=2, epochs=2, workers=1, fix={"widths": "[2,2]", "train_size": "50"})
    shutil.copy(package / "tamiyo-1.safetensors", "mine.safetensors")
    for given, kept in {"tamiyo": "tamiyo-2", "mine.safetensors": f"{tmp_path}/here/mine.safetensors"}.items():
        run = Path(start(replace(few, from_policy=given), None, "test")["run"])
        config = read_config(run / "config.toml")
        assert isinstance(config, PPORunConfig)
        assert config.from_policy == kept
        assert policy_for(run / "policy.safetensors").config == opinionated().config


def test_a_comparison_takes_names_and_watches_their_files(package: Path) -> None:
    few = CompareConfig(policies=("tamiyo", "tamiyo-1"), seeds=2, epochs=3, fix={"widths": "[2,2]", "train_size": "50"}, workers=1)
    assert [(each.name, each.policy) for each in contenders(few)] == [
        (name, package / f"{name}.safetensors") for name in ("tamiyo-2", "tamiyo-1")
    ]
    summary = start(few, Path("compared"), "test")
    assert summary["policies"] == ["tamiyo-2", "tamiyo-1"]
    config = read_config(Path("compared/config.toml"))
    assert isinstance(config, CompareConfig)
    assert config.policies == ("tamiyo-2", "tamiyo-1")
    run = CompareRun(config, Hub())
    state = run.state()
    run.close()
    shutil.copy(package / "tamiyo-1.safetensors", package / "tamiyo-2.safetensors")
    other = CompareRun(config, Hub())
    with pytest.raises(CheckpointError, match=r"tamiyo-2\.safetensors is not what the comparison was started with"):
        other.load_state(state)
    other.close()


def test_an_evaluation_takes_names() -> None:
    one, two = find_subjects(["tamiyo", "tamiyo-1"], EvaluateConfig())
    assert (one.name, two.name) == ("tamiyo-2", "tamiyo-1")
    assert isinstance(two.decides, Policy)
    assert same(two.decides, opinionated())


def test_a_controller_of_a_plug_in_comes_before_a_file_of_its_name() -> None:
    Path("plugin.py").write_text(
        "from dataclasses import dataclass\nimport esper\nfrom esper.tamiyo import make\n@dataclass(frozen=True)\nclass C: pass\n"
        "esper.controller('idle', C, lambda config: make('wait'), purpose='none')\n"
    )
    Path("idle").touch()
    try:
        run = Path(start(small(controller="idle", plugins=(Path("plugin.py"),), **RUN), None, "test")["run"])
    finally:
        CONTROLLERS.pop("idle", None)
    config = read_config(run / "config.toml")
    assert isinstance(config, ControllerRunConfig)
    assert config.controller == "idle"
