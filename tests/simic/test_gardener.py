"""The Gardener in a plain training loop: what it grows, what it leaves alone, what it refuses, and going on after an interruption."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import esper
from esper.cli.display import PlainDisplay
from esper.kasmina.blueprints import unregister
from esper.leyline.actions import Decision, Op
from esper.leyline.errors import ConfigError, OptimizerError, PolicyError, RunError, StateError, UnknownNameError
from esper.leyline.events import Decided, EpochFinished, Event, HostStarted, RunFinished, RunStarted, StageChanged
from esper.leyline.reports import Topology
from esper.leyline.stages import Stage
from esper.nissa import read_events
from esper.simic.evaluation import Evaluation
from esper.simic.gardener import Gardener
from esper.simic.runs.runner import resume
from esper.tamiyo.policy.policy_controller import PolicyController
from esper.tamiyo.policy.policy_file import save_policy
from esper.tolaria.storage.runs import read_run, read_summary
from esper.tolaria.tasks import get
from tests.simic.runs import opinionated

SLOTS = ["1", "4"]
"""Behind the two activations of the network."""
GROW = Decision(op=Op.GERMINATE, slot="1", blueprint="conv_light", tempo=3)


@pytest.fixture(scope="module")
def digits():
    return get("digits").load(None, torch.device("cpu"))


def network(seed: int = 0) -> nn.Sequential:
    """378 parameters and no kernel larger than one pixel, so that there is something to gain."""
    torch.manual_seed(seed)
    first = (nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU())
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))


class Loop:
    """A practitioner's loop on the digits."""

    def __init__(self, data: Any, policy: Any = "heuristic", *, epochs: int = 25, images: int | None = None, **settings: Any) -> None:
        self.x, self.y = data.train.x[:images], data.train.y[:images]
        self.val = data.val
        net, slots = settings.pop("net", None) or network(settings.pop("seed", 0)), settings.pop("slots", SLOTS)
        # What happens to a seed that is grown by plan is not to depend on what it brings.
        gates = esper.GateConfig.permissive() if isinstance(policy, Plan) else None
        self.model = esper.Growable(net, slots, self.x[:2], isolation=settings.pop("isolation", "boost"), gates=gates)
        self.optimizer = optim.SGD(self.model.parameter_groups(), lr=0.05, momentum=0.9)
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 2 * epochs)
        evaluate = settings.pop("evaluate", self.accuracy)
        self.gardener = Gardener(self.model, self.optimizer, policy=policy, evaluate=evaluate, epochs=epochs, **settings)
        self.shuffle = torch.Generator().manual_seed(1)

    def accuracy(self, model: nn.Module) -> float:
        return 100 * (model(self.val.x).argmax(1) == self.val.y).float().mean().item()

    def train(self) -> None:
        for i in torch.randperm(len(self.x), generator=self.shuffle).split(64):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x[i]), self.y[i]).backward()
            self.optimizer.step()
        self.scheduler.step()

    def run(self, epochs: int, **figures: float) -> Loop:
        for _ in range(epochs):
            self.train()
            self.gardener.step(**figures)
        return self

    def harvested_accuracy(self) -> float:
        with torch.no_grad():
            return self.accuracy(self.model.harvest().eval())


def decisions(gardener: Gardener) -> list[str]:
    return [str(entry) for entry in gardener.history]


def two_seeds() -> Plan:
    """Grows one seed and then the other, whatever it sees."""
    first, second = (Decision(op=Op.GERMINATE, slot=slot, blueprint="conv_heavy", tempo=3) for slot in SLOTS)
    return Plan({1: first, 5: Decision(op=Op.ADVANCE, slot=SLOTS[0]), 6: second})


class Plan:
    """Decides what is written for an epoch, and waits otherwise."""

    name = "plan"

    def __init__(self, plan: dict[int, Decision]) -> None:
        self.plan = plan

    def start(self, seed: int) -> dict[str, Any]:
        return {}

    def decide(self, observation: Any, state: dict[str, Any]) -> tuple[Decision, dict[str, Any]]:
        return self.plan.get(observation.report.epoch, Decision(op=Op.WAIT)), state


# What it brings


def test_a_grown_network_beats_the_same_one_without_growth(digits):
    without, grown = Loop(digits, "wait").run(25), Loop(digits).run(25)
    assert grown.harvested_accuracy() >= without.harvested_accuracy() + 5.0
    assert Stage.FOSSILIZED in {report.stage for report in grown.model.reports()}
    told = "\n".join(decisions(grown.gardener))
    assert "GERMINATE 1 conv_" in told
    assert "points of error ahead" in told
    assert "G2 passed" in told
    assert "FOSSILIZE" in told
    assert all(entry.decision.reason for entry in grown.gardener.history)


def test_the_host_trains_as_if_alone_until_a_seed_is_blended_in(digits):
    """A validation that draws random numbers, as a DataLoader does, is no exception."""

    def evaluate(model: nn.Module) -> float:
        some = torch.randperm(len(digits.val))[:50]
        return 100 * (model(digits.val.x[some]).argmax(1) == digits.val.y[some]).float().mean().item()

    grown = Loop(digits, two_seeds(), epochs=9, images=200, evaluate=evaluate)
    alone = Loop(digits, "wait", epochs=9, images=200)
    for loop in (grown, alone):
        torch.manual_seed(5)
        loop.run(4)
    assert grown.model.report(SLOTS[0]).stage is Stage.TRAINING
    assert all(torch.equal(a, b) for a, b in zip(grown.model.host.parameters(), alone.model.host.parameters(), strict=True))
    grown_draw = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(grown_draw, torch.rand(1))


def test_every_configuration_is_evaluated_with_the_same_random_numbers(digits):
    drawn: list[Tensor] = []

    def evaluate(model: nn.Module) -> float:
        drawn.append(torch.rand(3))
        return 50.0

    loop = Loop(digits, two_seeds(), epochs=9, images=100, evaluate=evaluate).run(3)
    drawn.clear()
    loop.run(1)
    assert len(drawn) == 2, "once as it is and once with the seed tried out"
    assert torch.equal(drawn[0], drawn[1])


def test_a_learning_rate_schedule_reaches_the_seeds(digits):
    loop = Loop(digits, two_seeds(), epochs=9, images=100).run(4)
    host, first, _ = loop.optimizer.param_groups
    assert first["params"], "the seed is in the optimiser"
    assert host["lr"] == first["lr"] < 0.05


def test_epochs_beyond_the_plan_start_nothing_new(digits):
    loop = Loop(digits, epochs=2, images=100).run(6)
    assert [entry.decision.op for entry in loop.gardener.history] == [Op.WAIT] * 6


def test_max_seeds_is_kept(digits):
    loop = Loop(digits, epochs=16, images=400, max_seeds=1)
    for _ in range(16):
        loop.run(1)
        assert sum(report.stage.name in ("TRAINING", "BLENDING", "HOLDING", "FOSSILIZED") for report in loop.model.reports()) <= 1
    assert loop.gardener.germinated >= 1


# Evaluating


def test_evaluate_sees_eval_mode_and_no_gradients_and_no_mode_changes(digits):
    seen: list[tuple[bool, bool]] = []

    def evaluate(model: nn.Module) -> float:
        seen.append((any(module.training for module in model.modules()), torch.is_grad_enabled()))
        model.train()
        return 50.0

    loop = Loop(digits, two_seeds(), epochs=12, images=100, evaluate=evaluate)
    loop.model.host[2].eval()  # a user may keep some module in another mode than the rest
    modes = [module.training for module in loop.model.host.modules()]
    loop.run(8)
    assert set(seen) == {(False, False)}
    assert [module.training for module in loop.model.host.modules()] == modes
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("failing_call", [1, 2, 3])
def test_an_evaluation_that_raises_leaves_everything_as_it_was(digits, failing_call):
    calls = 0

    def evaluate(model: nn.Module) -> float:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise RuntimeError("the disk is full")
        return loop.accuracy(model)

    loop = Loop(digits, two_seeds(), epochs=12, images=200, evaluate=evaluate)
    twin = Loop(digits, two_seeds(), epochs=12, images=200)
    calls = 100
    loop.run(6)
    twin.run(6)
    assert [report.stage for report in loop.model.reports()] == [Stage.BLENDING, Stage.TRAINING]
    loop.train()
    twin.train()
    calls = 0
    output, reports = loop.model(loop.x[:4]), loop.model.reports()
    with pytest.raises(RuntimeError, match="the disk is full"):
        loop.gardener.step()
    assert torch.equal(loop.model(loop.x[:4]), output)
    assert loop.model.reports() == reports
    assert all(module.training for module in loop.model.host.modules())
    loop.gardener.step()
    twin.gardener.step()
    assert decisions(loop.gardener) == decisions(twin.gardener)


@pytest.mark.parametrize("result", [np.float32(62.5), torch.tensor(62.5), 62.5, Evaluation(accuracy=62.5, loss=1.0)])
def test_any_kind_of_number_is_an_accuracy(digits, result):
    loop = Loop(digits, "wait", images=64, evaluate=lambda model: result)
    assert loop.run(1).gardener.history[0].accuracy == 62.5


@pytest.mark.parametrize("result", [None, "62.5", True, (62.5, 1.0), torch.ones(2), float("nan"), -1.0, 101.0, Evaluation(accuracy=1e9)])
def test_nonsense_from_evaluate_is_refused(digits, result):
    loop = Loop(digits, "wait", images=64, evaluate=lambda model: result)
    with pytest.raises(ConfigError, match="evaluate returns"):
        loop.run(1)
    assert loop.gardener.epoch == 0


def test_accuracy_as_a_fraction_warns_once(digits):
    loop = Loop(digits, "wait", images=64, evaluate=lambda model: 0.9)
    loop.run(2)
    with pytest.warns(UserWarning, match="not a fraction") as caught:
        loop.run(3)
    assert len(caught) == 1


# Isolation in a pass of its own


def test_seeds_in_shadow_learn_from_a_loss_that_feels_them(digits):
    loop = Loop(digits, two_seeds(), epochs=12, images=300, isolation="shadow")
    for _ in range(4):
        for i in torch.randperm(len(loop.x), generator=loop.shuffle).split(64):
            loop.optimizer.zero_grad()
            F.cross_entropy(loop.model(loop.x[i]), loop.y[i]).backward()
            loss = loop.gardener.shadow((loop.x[i], loop.y[i]), F.cross_entropy)
            loop.optimizer.step()
        loop.gardener.step()
    report = loop.model.report(SLOTS[0])
    assert report.stage is Stage.TRAINING
    assert loss is not None
    assert report.gradients is not None
    assert report.gradients.norm > 0


def test_a_shadow_that_nobody_casts_is_told_once(digits):
    loop = Loop(digits, two_seeds(), epochs=12, images=64, isolation="shadow").run(1)
    with pytest.warns(UserWarning, match=r"without a gradient.*gardener\.shadow") as caught:
        loop.run(3)
    assert len(caught) == 1


def test_a_shadow_on_top_of_another_isolation_is_refused(digits):
    loop = Loop(digits, images=64)
    with pytest.raises(ConfigError, match="this one has 'boost'"):
        loop.gardener.shadow((loop.x, loop.y), F.cross_entropy)


# Policies


@pytest.mark.parametrize("policy", ["wait", "random", "fixed", "heuristic"])
def test_every_named_policy_works(digits, policy):
    loop = Loop(digits, policy, epochs=6, images=64).run(6)
    assert len(loop.gardener.history) == 6
    assert loop.gardener.controller.name == policy


@pytest.fixture
def policy_file(tmp_path):
    save_policy(opinionated(), tmp_path / "policy.safetensors")
    return tmp_path / "policy.safetensors"


def losses(loop: Loop) -> Callable[[nn.Module], Evaluation]:
    return lambda model: Evaluation(accuracy=loop.accuracy(model), loss=F.cross_entropy(model(loop.val.x), loop.val.y).item())


def test_a_policy_file_decides_as_its_policy_does(digits, policy_file):
    told = []
    for policy in (str(policy_file), policy_file, PolicyController(opinionated())):
        loop = Loop(digits, policy, epochs=10, images=100)
        loop.gardener.evaluate = losses(loop)
        told.append(decisions(loop.run(10, train_loss=1.0, train_accuracy=60.0).gardener))
    assert told[0] == told[1] == told[2]
    assert any("GERMINATE" in line for line in told[0])
    assert all("probability" in line for line in told[0])


def test_a_policy_that_is_given_no_losses_says_so_once(digits, policy_file):
    with pytest.warns(UserWarning, match="val_loss, train_loss, train_accuracy") as caught:
        Loop(digits, policy_file, epochs=3, images=64).run(3)
    assert len(caught) == 1


def test_a_policy_works_on_where_a_blueprint_was_registered_after_it_was_made_and_says_so_once(digits, policy_file):
    @esper.blueprint("mirror", Topology.MAP2D, purpose="a convolution")
    def mirror(shape: esper.SlotShape) -> nn.Module:
        return nn.Conv2d(shape.width, shape.width, 1)

    try:
        with pytest.warns(UserWarning, match=r"policy\.safetensors: the policy will not grow mirror \(unknown to it\)$") as caught:
            loop = Loop(digits, policy_file, epochs=8, images=64)
        assert len(caught) == 1
        loop.gardener.evaluate = losses(loop)
        told = decisions(loop.run(8, train_loss=1.0, train_accuracy=60.0).gardener)
        assert any("GERMINATE" in line for line in told)
        assert not any("mirror" in line for line in told)
    finally:
        unregister("mirror", Topology.MAP2D)


# Refusals


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"policy": "heuristik"}, UnknownNameError, "did you mean 'heuristic'"),
        ({"policy": "no-such.safetensors"}, PolicyError, "no policy at no-such.safetensors"),
        ({"policy": 3}, ConfigError, "a policy file's path or a Controller, found int"),
        ({"evaluate": 3}, ConfigError, "evaluate is a function"),
        ({"epochs": 0}, ConfigError, "at least 1, or None when it is not known, found 0"),
        ({"epochs": 2.5}, ConfigError, "found 2.5"),
        ({"classes": 1}, ConfigError, "classes is a whole number of at least 2"),
        ({"max_seeds": 0}, ConfigError, "max_seeds"),
        ({"model": nn.Linear(2, 2)}, ConfigError, "an esper.Growable, and Linear neither is nor holds one"),
        ({"optimizer": "sgd"}, ConfigError, "the torch.optim.Optimizer that the loop steps, found str"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_changes(digits, change, error, message):
    model = esper.Growable(network(), SLOTS, digits.train.x[:2])
    optimizer = optim.SGD(model.host.parameters(), lr=0.1)
    settings = {"model": model, "optimizer": optimizer, "evaluate": lambda model: 50.0, **change}
    with pytest.raises(error, match=message):
        Gardener(settings.pop("model"), settings.pop("optimizer"), **settings)
    assert len(optimizer.param_groups) == 1, "no group for a slot was added"


def foreign(model: esper.Growable) -> optim.Optimizer:
    return optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def lbfgs(model: esper.Growable) -> optim.Optimizer:
    return optim.LBFGS(model.host.parameters())


def scheduled(model: esper.Growable) -> optim.Optimizer:
    optimizer = optim.SGD(model.host.parameters(), lr=0.1)
    optim.lr_scheduler.StepLR(optimizer, 5)
    return optimizer


@pytest.mark.parametrize(("make_optimizer", "message"), [(foreign, "none of the model's"), (lbfgs, "LBFGS"), (scheduled, "scheduler")])
def test_an_optimiser_that_cannot_follow_is_refused(digits, make_optimizer, message):
    model = esper.Growable(network(), SLOTS, digits.train.x[:2])
    with pytest.raises(OptimizerError, match=message):
        Gardener(model, make_optimizer(model), evaluate=lambda model: 50.0)


def test_a_plain_optimiser_follows(digits):
    model = esper.Growable(network(), SLOTS, digits.train.x[:2])
    optimizer = optim.Adam(model.parameters())
    Gardener(model, optimizer, evaluate=lambda model: 50.0)
    assert [group.get("slot") for group in optimizer.param_groups] == [None, *SLOTS]


# Saving


def saved(loop: Loop) -> io.BytesIO:
    file = io.BytesIO()
    parts = {"model": loop.model, "optimizer": loop.optimizer, "scheduler": loop.scheduler, "gardener": loop.gardener}
    torch.save({**{name: part.state_dict() for name, part in parts.items()}, "shuffle": loop.shuffle.get_state()}, file)
    file.seek(0)
    return file


def restored(loop: Loop, file: io.BytesIO) -> Loop:
    state = torch.load(file)  # with weights_only, torch's default: nothing in the file can run
    for name in ("model", "optimizer", "scheduler", "gardener"):
        getattr(loop, name).load_state_dict(state[name])
    loop.shuffle.set_state(state["shuffle"])
    return loop


def test_an_interrupted_loop_goes_on_bit_for_bit(digits):
    settings = {"epochs": 16, "images": 400}
    whole = Loop(digits, **settings)
    files = []
    for _ in range(16):
        files.append(saved(whole))
        whole.run(1)
    assert {"TRAINING", "BLENDING", "HOLDING"} <= {stage for entry in whole.gardener.history for stage in entry.stages.values()}
    for epoch in (0, 3, 6, 9, 12):
        again = restored(Loop(digits, **settings, seed=epoch), files[epoch]).run(16 - epoch)
        assert decisions(again.gardener) == decisions(whole.gardener)
        assert again.gardener.history == whole.gardener.history
        expected, found = whole.model.state_dict(), again.model.state_dict()
        assert expected.keys() == found.keys()
        assert all(torch.equal(a, found[name]) for name, a in expected.items() if isinstance(a, Tensor))


def test_a_policys_memory_is_saved_as_well(digits, policy_file):
    def loop() -> Loop:
        made = Loop(digits, policy_file, epochs=8, images=64)
        made.gardener.evaluate = losses(made)
        return made

    figures = {"train_loss": 1.0, "train_accuracy": 60.0}
    whole = loop().run(4, **figures)
    again = restored(loop(), saved(whole))
    assert decisions(again.run(4, **figures).gardener) == decisions(whole.run(4, **figures).gardener)


def test_a_foreign_state_is_refused_and_changes_nothing(digits):
    loop, other = Loop(digits, "wait", images=64).run(2), Loop(digits, "random", images=64)
    state = loop.gardener.state_dict()
    with pytest.raises(StateError, match="'wait'; this gardener has 'random'"):
        other.gardener.load_state_dict(state)
    fresh = Loop(digits, "wait", images=64)
    with pytest.raises(StateError, match="has the keys"):
        fresh.gardener.load_state_dict({"epoch": 2})
    with pytest.raises(StateError, match="Entry cannot be read"):
        fresh.gardener.load_state_dict({**state, "history": [{"epoch": 2}]})
    assert fresh.gardener.epoch == 0
    assert fresh.gardener.history == []


def test_a_refused_decision_is_in_the_history(digits):
    plan = {1: Decision(op=Op.FOSSILIZE, slot=SLOTS[0], reason="too soon")}
    entry = Loop(digits, Plan(plan), images=64).run(1).gardener.history[0]
    assert "FOSSILIZE 1: too soon (refused: " in str(entry)


# Batch norms


def normed(data: Any, policy: Any, **settings: Any) -> Loop:
    """The same loop, with a network whose batch norms lag behind."""
    torch.manual_seed(0)
    first = (nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
    net = nn.Sequential(*first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
    return Loop(data, policy, net=net, slots=["2", "6"], **settings)


def batches(data: Any) -> list[tuple[Tensor, Tensor]]:
    return list(zip(data.train.x.split(64), data.train.y.split(64), strict=True))


def test_a_gardener_with_training_batches_sees_the_network_and_not_the_lag_of_its_batch_norms(digits):
    lagging, settled = normed(digits, "wait"), normed(digits, "wait", recalibrate=batches(digits))
    seen = []
    for loop in (lagging, settled):
        loop.run(8)
        seen.append([entry.accuracy for entry in loop.gardener.history])
    steps = [sum(abs(a - b) for a, b in pairwise(curve)) for curve in seen]
    assert steps[1] < 0.8 * steps[0]
    assert same_bits(lagging.model, settled.model), "and training is the same, statistics included"
    assert abs(settled.harvested_accuracy() - seen[1][-1]) <= 2.0, "the harvest has the statistics of more samples"
    assert lagging.harvested_accuracy() == seen[0][-1] != seen[1][-1]


def same_bits(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))


def test_a_hint_is_given_once_when_a_model_with_batch_norms_grows_without_them(digits):
    loop = normed(digits, "fixed")
    with pytest.warns(UserWarning, match="the model has batch norms.*recalibrate=train_loader") as told:
        loop.run(5)
    assert len(told) == 1
    assert loop.gardener.germinated
    quiet = normed(digits, "fixed", recalibrate=batches(digits))
    quiet.run(5)  # a warning would be an error
    waiting = normed(digits, "wait")
    waiting.run(5)


def test_a_loader_is_read_once_in_a_step_whatever_the_number_of_seeds(digits):
    reads = []

    class Counting(list):
        def __iter__(self):
            reads.append(1)
            return super().__iter__()

    loop = normed(digits, "fixed", recalibrate=Counting(batches(digits)))
    loop.run(6)
    assert len(reads) == 6


def test_per_sample_results_tell_how_sure_a_contribution_is(digits):
    def evaluate(model: nn.Module) -> Evaluation:
        right = model(digits.val.x).argmax(1) == digits.val.y
        return Evaluation(accuracy=100.0 * right.float().mean().item(), correct=right)

    plain, sure = (normed(digits, "fixed", recalibrate=batches(digits), **more) for more in ({}, {"evaluate": evaluate}))
    for loop in (plain, sure):
        loop.run(6)
    known, unknown = (loop.model.report("2") for loop in (sure, plain))
    worth = known.trial_contribution if known.contribution is None else known.contribution
    error = known.trial_error if known.contribution is None else known.contribution_error
    assert worth is not None
    assert error is not None
    assert 0.0 < error < 5.0
    assert (unknown.trial_error, unknown.contribution_error) == (None, None)


@pytest.mark.parametrize(
    ("correct", "message"),
    [
        ([0.0, 2.0], "a value from 0 to 1 for each sample"),
        (torch.zeros(3, 2), r"found an array of shape \(3, 2\)"),
        ([], "found an array of shape"),
        (["yes"], "found list"),
    ],
)
def test_per_sample_results_that_make_no_sense_get_one_sentence(digits, correct, message):
    loop = normed(digits, "wait", evaluate=lambda model: Evaluation(accuracy=50.0, correct=correct))
    with pytest.raises(ConfigError, match=message):
        loop.gardener.step()
    assert loop.gardener.epoch == 0


@pytest.mark.parametrize(
    ("loader", "message"), [((x for x in ()), "a generator can be read once"), (7, "found int"), (torch.zeros(2), "found Tensor")]
)
def test_what_is_no_loader_is_refused_when_the_gardener_is_made(digits, loader, message):
    with pytest.raises(ConfigError, match=message):
        normed(digits, "wait", recalibrate=loader)


def test_other_samples_from_one_evaluation_to_the_next_are_refused_and_the_step_can_be_taken_again(digits):
    counts = iter([100, 100, 100, 90])

    def evaluate(model: nn.Module) -> Evaluation:
        return Evaluation(accuracy=50.0, correct=torch.zeros(next(counts, 360)))

    loop = normed(digits, "fixed", recalibrate=batches(digits), evaluate=evaluate)
    loop.run(2)
    with pytest.raises(ConfigError, match="correct has the same samples every time"):
        loop.run(1)  # now there is a seed on trial, and a second evaluation
    assert loop.gardener.epoch == 2
    loop.gardener.step()
    assert loop.gardener.epoch == 3


# The record of a loop of one's own


def events_of(run: Path) -> list[Event]:
    return [envelope.event for envelope in read_events(run / "events.jsonl")]


def test_a_loop_is_recorded_as_a_run_is(digits, tmp_path):
    loop = Loop(digits, Plan({1: GROW}), epochs=6, images=200, run=tmp_path / "mine")
    with loop.gardener:
        loop.run(6)
    events = events_of(tmp_path / "mine")
    assert [type(event) for event in events[:2]] == [RunStarted, HostStarted]
    assert isinstance(events[1], HostStarted)
    assert (events[1].slots, events[1].parameters, events[1].epochs) == (("1", "4"), 378, 6)
    assert sum(isinstance(event, EpochFinished) for event in events) == 6
    decisions = [event.decision for event in events if isinstance(event, Decided)]
    assert decisions == [entry.decision for entry in loop.gardener.history]
    assert next(event.after for event in events if isinstance(event, StageChanged)) is Stage.GERMINATED
    assert isinstance(events[-1], RunFinished)
    assert read_run(tmp_path / "mine").status == "finished"
    assert [entry["epoch"] for entry in read_summary(tmp_path / "mine")["history"]] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RunError, match="is finished"):
        Loop(digits, Plan({1: GROW}), epochs=6, images=200, run=tmp_path / "mine")


def test_a_record_goes_on_where_the_saved_state_was_and_begins_anew_without_one(digits, tmp_path):
    whole = Loop(digits, Plan({1: GROW}), epochs=6, images=200, run=tmp_path / "whole").run(6)
    whole.gardener.finish()
    first = Loop(digits, Plan({1: GROW}), epochs=6, images=200, run=tmp_path / "parts").run(3)
    saved = [copy.deepcopy(part.state_dict()) for part in (first.model, first.optimizer, first.scheduler, first.gardener)]
    shuffle = first.shuffle.get_state()
    first.run(2)  # what comes after the state was saved happens again
    first.gardener.close()
    second = Loop(digits, Plan({1: GROW}), epochs=6, images=200, run=tmp_path / "parts")
    for part, state in zip((second.model, second.optimizer, second.scheduler, second.gardener), saved, strict=True):
        part.load_state_dict(state)
    second.shuffle.set_state(shuffle)
    second.run(3)
    second.gardener.finish()
    records = [[e.identity() for e in read_events(tmp_path / name / "events.jsonl")] for name in ("whole", "parts")]
    assert records[0] == records[1]
    left = Loop(digits, Plan({1: GROW}), epochs=6, images=200, run=tmp_path / "left").run(2)
    left.gardener.close()
    again = Loop(digits, Plan({1: GROW}), epochs=6, images=200, run=tmp_path / "left").run(1)
    again.gardener.close()
    assert sum(isinstance(event, EpochFinished) for event in events_of(tmp_path / "left")) == 1
    with pytest.raises(ConfigError, match="recorded by a gardener with other settings; name a new folder"):
        Loop(digits, Plan({1: GROW}), epochs=7, images=200, run=tmp_path / "left")
    with pytest.raises(RunError, match="recorded by a Gardener"):
        resume(tmp_path / "left")


def test_an_error_leaves_a_record_that_can_go_on(digits, tmp_path):
    loop = Loop(digits, "wait", epochs=6, images=100, run=tmp_path / "run").run(1)
    loop.gardener.evaluate = lambda model: 1 / 0
    with pytest.raises(ZeroDivisionError), loop.gardener:
        loop.run(1)
    assert read_run(tmp_path / "run").status == "interrupted"


def test_sinks_see_a_loop_without_a_run(digits):
    seen = []

    class Kept:
        def write(self, envelope):
            seen.append(envelope.event.kind())

        def flush(self): ...

        def close(self): ...

    Loop(digits, "wait", epochs=3, images=100, sinks=[Kept()]).run(1).gardener.close()
    assert seen[:4] == ["run_started", "host_started", "hosts_trained", "epoch_finished"]


def test_a_tracker_of_a_loop_needs_a_folder_to_work_in(digits):
    with pytest.raises(ConfigError, match="the sink 'tensorboard' needs a run folder"):
        Loop(digits, "wait", images=100, sinks=["tensorboard"])


# Scores that are no accuracy


def test_a_loss_is_a_score_of_which_less_is_better(digits):
    def evaluate(model):
        return Evaluation(score=F.cross_entropy(model(digits.val.x), digits.val.y).item(), higher_is_better=False, unit="nats")

    loop = Loop(digits, "heuristic", evaluate=evaluate).run(20)
    first, last = loop.gardener.history[0], loop.gardener.history[-1]
    assert first.accuracy == 0.0, "points are per cent saved of the first score"
    losses = [float(entry.score.split()[0]) for entry in loop.gardener.history]
    assert last.accuracy == pytest.approx(100 * (1 - losses[-1] / losses[0]), abs=0.1)
    assert last.score.endswith(" nats")
    assert "FOSSILIZED" in last.stages.values(), "and it grows by that"
    again = Loop(digits, "heuristic", evaluate=evaluate)
    for part in ("model", "optimizer", "gardener"):
        getattr(again, part).load_state_dict(getattr(loop, part).state_dict())
    again.run(1)
    latest = again.gardener.history[-1]
    assert latest.accuracy == pytest.approx(100 * (1 - float(latest.score.split()[0]) / losses[0]), abs=0.1), "the scale goes on"


@pytest.mark.parametrize(
    ("given", "points"),
    [
        ({"score": 27.5}, 27.5),
        ({"score": 0.5, "scale": 1.0}, 50.0),
        ({"score": -1.0, "scale": 2.0}, -50.0),
        ({"score": 3.0, "higher_is_better": False, "scale": 4.0}, 25.0),
        ({"score": float("nan")}, 0.0),
    ],
)
def test_scores_are_points_of_their_scale(digits, given, points):
    loop = Loop(digits, "wait", images=100, evaluate=lambda model: Evaluation(**given)).run(1)
    assert loop.gardener.history[0].accuracy == points


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "one of the two"),
        ({"accuracy": 3.0, "score": 3.0}, "one of the two"),
        ({"score": "x"}, "evaluate returns an Evaluation's score, a number, found str"),
        ({"score": 1.0, "scale": 0.0}, "scale is what 100 points are, a number above 0, found 0.0"),
        ({"score": -1.0, "higher_is_better": False}, "begins above 0, found -1.0"),
        ({"accuracy": 130.0}, r"found 130.0; another score is Evaluation\(score=...\)"),
    ],
)
def test_scores_that_cannot_be_are_refused_and_nothing_has_happened(digits, given, words):
    loop = Loop(digits, "wait", images=100, evaluate=lambda model: Evaluation(**given))
    with pytest.raises(ConfigError, match=words):
        loop.run(1)
    assert loop.gardener.epoch == 0


def test_the_display_of_runs_shows_a_loop_too(digits, capsys):
    Loop(digits, Plan({1: GROW}), epochs=3, images=100, sinks=[PlainDisplay()]).run(3).gardener.finish()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "plan grows 1 host on Sequential for 3 epochs"
    assert [line.split(":")[0] for line in lines[1:]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert "1 live seed" in lines[2]


def test_entries_are_logged_as_libraries_do_and_nothing_is_printed(digits, caplog, capsys):
    with caplog.at_level(logging.DEBUG, logger="esper"):
        history = Loop(digits, Plan({2: GROW}), epochs=3, images=100).run(3).gardener.history
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("esper.simic.gardener", "INFO" if entry.epoch == 2 else "DEBUG", str(entry)) for entry in history
    ]
    assert capsys.readouterr() == ("", "")
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("esper").handlers)


def test_a_sink_that_fails_is_dropped_with_a_warning(digits):
    class Broken:
        def write(self, envelope):
            raise OSError("no room")

        def flush(self): ...

        def close(self): ...

    loop = Loop(digits, "wait", epochs=3, images=100, sinks=[Broken()])
    with pytest.warns(UserWarning, match="sink Broken failed and is dropped; the run goes on without it .OSError: no room"):
        loop.run(2).gardener.close()
    assert len(loop.gardener.history) == 2
