"""Engines, and every option of training through a whole growth."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import torch

from esper.kasmina.slot import Form
from esper.leyline.errors import DeviceError
from esper.leyline.reports import EpochReport, Isolation
from esper.leyline.stages import Stage
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host
from tests.tolaria.small import OPEN, bits, epoch, facts, grow_to, make_host, train_epoch


def test_the_serial_engine_reports_in_order_and_tells_its_progress() -> None:
    hosts = [make_host(seed, epochs=budget) for seed, budget in ((3, 5), (1, 7))]
    told: list[int] = []
    reports = SerialEngine().run_epoch(hosts, told.append)
    assert [report.budget for report in reports] == [5, 7]
    alone = [train_epoch(make_host(seed, epochs=budget)) for seed, budget in ((3, 5), (1, 7))]
    assert [facts(report) for report in reports] == [facts(report) for report in alone]
    assert told == [1, 2]
    assert SerialEngine().run_epoch([]) == []


@cache
def whole_growth(config: TrainingConfig) -> tuple[Host, EpochReport]:
    """A seed through every stage to a fossil, another one into TRAINING, and the report after it. Tests may look, and change nothing."""
    host = make_host(5, config, widths=(2, 4), epochs=30)
    grow_to(host, Stage.FOSSILIZED, "r0c0")
    grow_to(host, Stage.TRAINING, "r0c1", "depthwise")
    return host, epoch(host)[0]


def is_sound(host: Host, report: EpochReport) -> bool:
    parameters = list(host.model.parameters())
    learned = report.train_loss < math.log(10)
    return learned and report.rollbacks == 0 and all(p.isfinite().all() for p in parameters)


@pytest.mark.parametrize("isolation", get_args(Isolation))
def test_a_host_grows_under_every_isolation(isolation: Isolation) -> None:
    host, report = whole_growth(TrainingConfig(gates=OPEN, isolation=isolation))
    assert is_sound(host, report)
    assert host.model.report("r0c1").gradients is not None


def test_the_kinds_of_isolation_differ_in_what_a_seed_learns() -> None:
    grown = [whole_growth(TrainingConfig(gates=OPEN, isolation=isolation))[0] for isolation in get_args(Isolation)]
    assert len({str(bits(dict(host.model.state_dict()))) for host in grown}) == len(grown)


def test_channels_last_grows_and_keeps_its_layout() -> None:
    host, report = whole_growth(TrainingConfig(gates=OPEN, channels_last=True))
    _, usual = whole_growth(TrainingConfig(gates=OPEN))
    assert is_sound(host, report)
    assert report.train_loss == pytest.approx(usual.train_loss, rel=0.05)
    images, _ = host.batch(torch.arange(2), 0)
    assert images.is_contiguous(memory_format=torch.channels_last)
    weight = host.model.host.get_parameter("blocks.1.features.0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert host.optimizer.state[weight]["momentum_buffer"].stride() == weight.stride()


def test_a_compiled_host_grows_as_the_plain_one_does() -> None:
    host, report = whole_growth(TrainingConfig(gates=OPEN, compile="eager"))
    _, usual = whole_growth(TrainingConfig(gates=OPEN))
    assert host.run is not host.model
    assert facts(report) == facts(usual)
    torch.compiler.reset()


def test_a_host_grows_through_the_compiler_s_own_autograd() -> None:
    host = make_host(5, TrainingConfig(gates=OPEN, compile="aot_eager"), widths=(2, 4), epochs=30)
    usual = make_host(5, widths=(2, 4), epochs=30)
    for each in (host, usual):
        grow_to(each, Stage.BLENDING, "r0c0", "conv_small")
    reports = [epoch(each)[0] for each in (host, usual)]
    assert host.model.slots["r0c0"].form is Form.BLENDED
    assert reports[0].train_loss == pytest.approx(reports[1].train_loss, rel=1e-3)
    torch.compiler.reset()


def test_a_compiler_that_is_not_there_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # or what was compiled before would do
    host = make_host(5, TrainingConfig(compile="inductor"), widths=(2,), kernel=1)
    message = r"the backend 'inductor' needs a C\+\+ compiler, and none was found"
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(DeviceError, match=message) as caught:
        train_epoch(host)
    assert "\n" not in str(caught.value)
    torch.compiler.reset()


BF16 = """
from tests.tolaria.test_engine import *
host, report = whole_growth(TrainingConfig(gates=OPEN, precision="bf16"))
dtypes = {p.dtype for p in host.model.parameters()}
first = train_epoch(make_host(5, TrainingConfig(precision="bf16")))
print(is_sound(host, report), dtypes == {torch.float32}, first.train_loss)
"""


def test_a_host_grows_in_bf16_with_its_weights_in_float32() -> None:
    # In a process of its own: on some virtual machines bf16 on the CPU ends the process.
    done = subprocess.run([sys.executable, "-c", BF16], capture_output=True, text=True)
    if done.returncode < 0:
        pytest.skip(f"bf16 on this CPU ends the process with signal {-done.returncode}")
    assert done.returncode == 0, done.stderr
    sound, plain, loss = done.stdout.split()
    assert (sound, plain) == ("True", "True")
    usual = train_epoch(make_host(5))
    assert float(loss) == pytest.approx(usual.train_loss, rel=0.02)
    assert float(loss) != usual.train_loss


def test_a_language_host_grows() -> None:
    host = make_host(0, task="stdlib", width=8, heads=2, layers=1, train_size=48, epochs=12, batch=16, learning_rate=0.5)
    first, _ = epoch(host)
    grow_to(host, Stage.BLENDING, "r0c0", "mlp_small")
    report, _ = epoch(host)
    assert report.per_class == ()
    assert report.classes == host.data.classes
    assert report.train_loss < first.train_loss < 2 * math.log(report.classes)
    assert host.model.report("r0c0").contribution is not None
    assert host.flops["counterfactual"] > 0
