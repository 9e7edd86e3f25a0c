"""One host in training: what its result depends on, and what it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from esper.kasmina import growable
from esper.leyline.actions import WAIT, Decision, Op, Style
from esper.leyline.reports import EpochReport, LifecycleConfig
from esper.leyline.stages import Stage
from esper.simic.growth.episode import Episode
from esper.tamiyo import Rules, make
from esper.tolaria.data import epoch_order, stream_seed
from esper.tolaria.tasks import Task, get
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host
from tests.kasmina.garden import reads
from tests.tolaria.small import OPEN, bits, data, epoch, facts, fingerprint, germinate, grow_to, make_host, train_epoch

LOTS = {"wait": 0.1}
"""A random controller that seldom waits, so that much happens in a few epochs."""
UNMEASURED = TrainingConfig(gates=OPEN, recalibrate=0)
"""Takes no training batches but to train on."""


def play(hosts: list[Host], epochs: int) -> list[list[EpochReport]]:
    """Grow hosts side by side under a random controller; the reports of each."""
    controller = make("random", LOTS)
    episodes = [Episode(host, Rules()) for host in hosts]
    told: list[list[EpochReport]] = [[] for _ in hosts]
    for _ in range(epochs):
        for host, episode, report, reports in zip(hosts, episodes, SerialEngine().run_epoch(hosts), told, strict=True):
            observation = episode.look(report)
            episode.carry_out(observation, controller.decide(observation, controller.start(host.seed))[0])
            reports.append(report)
    return told


def test_a_host_in_a_batch_of_eight_is_the_host_alone_bit_for_bit() -> None:
    batch = [make_host(seed, widths=(2, 4)) for seed in range(8)]
    together = play(batch, 9)
    for seed in (0, 5):
        alone = make_host(seed, widths=(2, 4))
        reports = play([alone], 9)[0]
        assert [facts(report) for report in reports] == [facts(report) for report in together[seed]]
        assert bits(alone.state()) == bits(batch[seed].state())
    assert len({fingerprint(host.model.state_dict()) for host in batch}) == 8
    assert sum(host.germinated for host in batch) >= 8, "too little grew for this to show anything"
    assert {seed.stage for told in together for report in told for seed in report.seeds} >= {Stage.TRAINING, Stage.BLENDING}


def final_fingerprint(seed: int) -> str:
    """A hash of a grown host, its optimiser and all its reports."""
    host = make_host(seed, widths=(2, 4))
    reports = play([host], 4)[0]
    return fingerprint(host.state(), [facts(report) for report in reports])


def test_the_same_seed_gives_the_same_result_here_and_in_another_process() -> None:
    script = "from tests.tolaria.test_host import final_fingerprint; print(final_fingerprint(4))"
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    torch.manual_seed(99)
    assert final_fingerprint(4) == final_fingerprint(4) == elsewhere
    assert final_fingerprint(5) != elsewhere


def test_nothing_is_read_from_the_device_between_a_report_and_the_end_of_the_epoch() -> None:
    for stage, decision in (
        (Stage.TRAINING, Decision(op=Op.ADVANCE, slot="r0c1")),
        (Stage.HOLDING, Decision(op=Op.FOSSILIZE, slot="r0c1")),
        (Stage.TRAINING, Decision(op=Op.PRUNE, slot="r0c1")),
        (Stage.TRAINING, WAIT),
    ):
        host = make_host(0, epochs=60)
        grow_to(host, stage)
        train_epoch(host)
        host.snapshot, host._snapshot = host._snapshot(), lambda host=host: host.snapshot  # type: ignore[method-assign, misc]
        with reads() as found:
            host.model.act(decision)
            host.end_epoch()
        assert found == []


def test_what_is_true_of_an_architecture_is_found_out_at_its_first_host(monkeypatch: pytest.MonkeyPatch) -> None:
    first = final_fingerprint(3)
    get("digits").rehearsed.clear()
    get("digits").probed.clear()
    get("digits").counted.clear()
    assert final_fingerprint(3) == first, "whoever comes first"
    monkeypatch.setattr(Task, "_rehearse", None)
    monkeypatch.setattr(growable, "probe", None)
    assert final_fingerprint(3) == first
    with pytest.raises(TypeError):
        make_host(0, widths=(2, 3, 5))


def recorded(host: Host) -> list[tuple[Tensor, Tensor]]:
    """A list to which every batch that the host trains on is appended."""
    batches: list[tuple[Tensor, Tensor]] = []
    original = host.batch

    def batch(index: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        batches.append(original(index, epoch))
        return batches[-1]

    host.batch = batch  # type: ignore[method-assign]
    return batches


def test_growing_shifts_neither_order_nor_augmentation() -> None:
    waiting, growing = (make_host(0, UNMEASURED, augment=True, slots="both") for _ in range(2))
    told = [recorded(host) for host in (waiting, growing)]
    plans = [[germinate("r0c0")], [germinate("r1c1", "conv_heavy")], [Decision(op=Op.ADVANCE, slot="r0c0")], [], [], []]
    for decisions in plans:
        epoch(waiting)
        epoch(growing, *decisions)
    assert growing.model.report("r0c0").stage is Stage.HOLDING
    assert growing.model.report("r1c1").stage is Stage.TRAINING
    assert bits(told[0]) == bits(told[1])
    assert len(told[0]) == len(plans) * 4
    assert bits(told[0][0]) != bits(told[0][4]), "another epoch has another order"


def test_every_sample_is_seen_once_in_every_epoch() -> None:
    host = make_host(0, UNMEASURED, train_size=100, batch=32)
    batches = recorded(host)
    train_epoch(host)
    seen = torch.cat([x for x, _ in batches]).flatten(1)
    expected = host.split.x.flatten(1)
    assert [len(x) for x, _ in batches] == [32, 32, 32, 4]
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, expected.tolist()))
    train_epoch(host)
    again = torch.cat([x for x, _ in batches[4:]]).flatten(1)
    assert sorted(map(tuple, again.tolist())) == sorted(map(tuple, expected.tolist()))
    assert not torch.equal(again, seen), "each epoch has an order of its own"


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    host = make_host(0, UNMEASURED, train_size=97, batch=48)  # a batch norm over vectors could not work on a single sample
    batches = recorded(host)
    train_epoch(host)
    assert [len(x) for x, _ in batches] == [48, 49]


def bare_loop(host: nn.Module, optimizer: torch.optim.Optimizer, seed: int, rates: list[float], clip: float) -> list[tuple[float, float]]:
    """What anybody would write: an optimiser over shuffled batches, clipped. Returns loss and accuracy of each epoch."""
    split = data().train
    figures = []
    for number, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        host.train()
        loss_sum, correct = torch.zeros(()), torch.zeros(())
        for index in epoch_order(len(split), stream_seed("host", seed), number).split(64):
            x, y = split.x[index], split.y[index]
            optimizer.zero_grad()
            logits = host(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            nn.utils.clip_grad_norm_(host.parameters(), clip)
            optimizer.step()
            loss_sum += loss.detach() * len(x)
            correct += (logits.argmax(-1) == y).sum()
        figures.append((float(loss_sum) / len(split), 100.0 * float(correct) / len(split)))
    return figures


BARE_OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.2, weight_decay=5e-4),
}


@pytest.mark.parametrize(("optimizer", "clip"), [("sgd", 1.0), ("sgd", 0.05), ("adamw", 1.0)])
def test_a_host_that_does_not_grow_is_a_bare_loop_bit_for_bit(optimizer: str, clip: float) -> None:
    member = {"widths": (4, 4, 8), "train_size": 0, "batch": 64, "epochs": 2, "schedule": "linear", "decay": 1.0}
    host = make_host(3, TrainingConfig(clip=clip), **member, optimizer=optimizer)
    bare, _, _ = host.task.build_host(host.member, 10, 3)
    reports = [epoch(host)[0] for _ in range(2)]
    figures = bare_loop(bare, BARE_OPTIMIZERS[optimizer](bare.parameters()), 3, [0.2, 0.1], clip)
    assert bits(dict(host.model.host.state_dict())) == bits(dict(bare.state_dict()))
    assert [(report.train_loss, report.train_accuracy) for report in reports] == figures
    assert [report.learning_rate for report in reports] == [0.2, 0.1]


def test_training_leaves_the_global_random_streams_alone() -> None:
    host = make_host(augment=True)
    before = torch.get_rng_state()
    grow_to(host, Stage.HOLDING)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_a_matter_of_seed_and_epoch_alone() -> None:
    drawn: list[Tensor] = []

    def draw(module: nn.Module, args: tuple[Tensor]) -> None:
        drawn.append(F.dropout(torch.ones(8)))

    masks = []
    for seed, stream in ((1, 7), (1, 8), (2, 8)):
        torch.manual_seed(stream)
        host = make_host(seed, train_size=48)
        host.model.host.get_submodule("head").register_forward_pre_hook(draw)
        for _ in range(2):
            plan = host.begin_epoch()
            drawn.clear()
            host.train(plan)
            masks.append(torch.stack(drawn).tolist())
    assert masks[:2] == masks[2:4], "whatever the global stream is at"
    assert masks[0] != masks[1], "each epoch draws anew"
    assert masks[:2] != masks[4:], "and so does each seed"


def test_the_report_says_where_the_host_stands() -> None:
    host = make_host(train_size=100, batch=32, epochs=10)
    grow_to(host, Stage.BLENDING)
    report, _ = epoch(host)
    assert (report.epoch, report.budget, report.classes) == (host.epoch, 10, 10)
    assert report.steps == 4 * report.epoch
    assert report.parameters == host.model.parameter_count() > report.start_parameters
    assert report.germinated == 1
    assert report.rollbacks == 0
    assert report.anomaly == ""
    assert report.gradients is not None
    assert report.gradients.steps == 4
    assert len(report.seeds) == len(report.verdicts) == 3
    assert [verdict is not None for verdict in report.verdicts] == [False, True, False]


def test_a_host_is_done_when_its_budget_is_spent() -> None:
    host = make_host(epochs=2)
    epoch(host)
    assert not host.done
    epoch(host)
    assert host.done


def test_the_embargo_takes_no_more_than_a_tenth_of_the_budget() -> None:
    assert [make_host(epochs=epochs).model.lifecycle.embargo_epochs for epochs in (5, 19, 20, 40, 200)] == [1, 1, 2, 4, 5]


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED, Stage.EMBARGOED])
def test_a_saved_host_goes_on_bit_for_bit(stage: Stage) -> None:
    lifecycle = LifecycleConfig(auto_advance=stage is not Stage.GERMINATED)
    config = TrainingConfig(gates=OPEN, isolation="shadow", lifecycle=lifecycle)
    host, other = make_host(2, config, epochs=20), make_host(2, config, epochs=20)
    if stage is Stage.EMBARGOED:
        grow_to(host, Stage.BLENDING)
        epoch(host, Decision(op=Op.PRUNE, slot="r0c1"))
    else:
        grow_to(host, stage, style=Style.GATED)
    assert host.model.report("r0c1").stage is stage
    other.load_state(tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, host.state()))
    assert bits(other.state()) == bits(host.state())
    for _ in range(3):
        (report, events), (expected, told) = epoch(other), epoch(host)
        assert facts(report) == facts(expected)
        assert events == told
    assert bits(other.state()) == bits(host.state())
