"""`esper slots`: where a model of one's own could grow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from esper.cli.main import main

MODEL = """\
import sys, torch
from torch import nn
from beside import WIDTH

def make_net():
    return nn.Sequential(nn.Conv2d(1, WIDTH, 3), nn.ReLU(), nn.Conv2d(WIDTH, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))

def with_text():
    return make_net(), "text"

def with_example():
    return make_net(), torch.randn(2, 1, 8, 8)

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 50)
    def forward(self, ids, mask):
        return self.head(self.block(self.table(ids)) * mask[..., None])

    @staticmethod
    def small():
        return Tokens()

def prints():
    print("building")
    return make_net().double()

def wide(width):
    return make_net()

def leaves():
    sys.exit(0)

class Leaves(nn.Module):
    def forward(self, x):
        sys.exit(0)

ready = make_net()
NUMBER = 3

def number():
    return NUMBER

def fails():
    raise KeyError("a bug")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a model and what it imports; what is loaded from it is forgotten afterwards."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "package/inner").mkdir(parents=True)
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/inner/__init__.py").touch()
    (tmp_path / "package/inner/part.py").write_text("from ..model import make_net\n")
    (tmp_path / "package/model.py").write_text("import beside\n" + MODEL)
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("model", "beside", "broken", "package", "package.inner", "package.inner.part", "package.model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["model.py:make_net", "--input", "2x1x8x8"],
        ["model:make_net", "--input", "2x1x8x8"],
        ["model:ready", "--input", "2x1x8x8"],
        ["model.py:with_example"],
        ["package.inner.part:make_net", "--input", "2x1x8x8"],
        ["package/inner/part.py:make_net", "--input", "2x1x8x8"],
    ],
)
def test_places_are_shown_wherever_the_model_comes_from(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slots", *arguments]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Sequential, 1,626 parameters: 2 places to grow\n")
    assert told.count("the end of a layer (ReLU)") == 2
    assert "\nmodel = esper.Growable(model, slots=['1', '3'], example=example)\n" in told


def test_inputs_may_be_tokens_by_keyword_and_rejected_places_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["model.py:Tokens", "--input", "ids=2x5:50", "--input", "mask=2x5", "--no-causal", "--rejected"]
    assert main(["slots", *arguments]) == 0
    told = capsys.readouterr().out
    assert "tokens" in told
    assert "\nrejected:\n" in told
    assert any(line.split()[:1] == ["head"] for line in told.partition("rejected:")[2].splitlines())


def test_a_model_may_be_in_a_class_and_of_any_precision_and_what_it_prints_is_not_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slots", "model.py:Tokens.small", "--input", "2x5:50", "--input", "2x5"]) == 0
    capsys.readouterr()
    assert main(["slots", "model.py:prints", "--input", "2x1x8x8", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["parameters"] == 1626
    assert told.err == "building\n"


def test_everything_as_json_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slots", "model.py:with_example", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["path"] for each in found["slots"]] == ["1", "3"]
    assert found["slots"][0]["topology"] == "map2d"
    assert found["rejected"]
    assert {check["name"] for check in found["checks"]} >= {"dormant", "harvest", "export"}


def test_a_model_without_a_place_says_why_and_fails_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slots", "torch.nn:Identity", "--input", "2x3", "--check"]) == 1
    assert capsys.readouterr().out == "Identity, 0 parameters: no place for a slot was found among 0 modules\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["model.py"], "'model.py' names no model; expected MODULE:FACTORY"),
        (["modle.py:make_net"], "there is no file modle.py; did you mean 'model.py'?"),
        (["modle:make_net"], "there is no module modle; did you mean 'model'?"),
        (["model.py:with_text"], "the model does not run on the example input: TypeError: conv2d() received an invalid"),
        (["torchvison_models:resnet"], "there is no module torchvison_models; expected a module in the present folder or of an installed"),
        (["model.py::make_net"], "'model.py::make_net' names no model; expected MODULE:FACTORY"),
        (["folder.py:make_net"], "folder.py is a folder; expected a .py file"),
        (["missing/model.py:make_net"], "there is no folder missing"),
        (["package:make_net"], "package has no 'make_net' and only modules: inner, model; expected one of them, as package.inner:make_net"),
        (["torch.nn:qqqq"], "unknown name in torch.nn 'qqqq'; expected a function or class that gives the model"),
        (["torch.nn:Linear"], "torch.nn:Linear needs arguments (in_features, out_features); expected a function that gives the model"),
        (["model.py:wide"], "model.py:wide needs arguments (width); expected"),
        (["model.py:leaves"], "model.py:leaves failed when it was called without arguments: HERE/model.py, line 35: SystemExit: 0"),
        (["model.py:Leaves", "--input", "2x3"], "model.py:Leaves ends the program when it runs on the example input (exit code 0)"),
        (["model.py:make_net", "--input", "9999999999999x8"], "--input '9999999999999x8' is more than this machine can hold"),
        (["model.py:Tokens", "--input", f"2x5:{10**30}"], f"--input '2x5:{10**30}' is more than this machine can hold"),
        (["torch.nnn:Linear"], "there is no module torch.nnn; did you mean 'nn'?"),
        (["model.py:make_nte"], "unknown name in model.py 'make_nte'; did you mean 'make_net'?"),
        (["broken.py:make"], "the model's file cannot be loaded: HERE/broken.py, line 1: SyntaxError"),
        (["model.py:NUMBER"], "model.py:NUMBER is of type int; expected a function that gives the model"),
        (["model.py:number"], "model.py:number gives an object of type int; expected an nn.Module"),
        (["model.py:fails"], "model.py:fails failed when it was called without arguments: HERE/model.py, line 48: KeyError: 'a bug'"),
        (["model.py:make_net"], "model.py:make_net gives a model without an example input; say its shape, such as --input"),
        (["model.py:make_net", "--input", "2,1,8,8"], "--input '2,1,8,8' is not understood; expected [NAME=]SHAPE[:BELOW]"),
        (["model.py:make_net", "--input", "2x0x8"], "--input '2x0x8' has a 0 in it"),
        (["model.py:Tokens", "--input", "ids=2x5:50", "--input", "2x5"], "--input: some have a name (ids) and some have none"),
        (["model.py:Tokens", "--input", "ids=2x5", "--input", "ids=2x5"], "--input: a name is there twice"),
        (["model.py:make_net", "--input", "2x3x8x8"], "the model does not run on the example input: RuntimeError"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(arguments: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slots", *arguments]) == 2
    error = capsys.readouterr().err.replace(str(folder), "HERE")
    assert error.startswith(f"esper: {told}"), error
    assert error.count("\n") == 1, error
