"""The digits, and text, in double precision: what rounding alone makes of two engines stays far below what a mistake does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from esper.tolaria.data import Data, Split
from esper.tolaria.tasks import LanguageTask, Member, VisionTask, get
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.device import device_named
from esper.tolaria.training.host import Host
from tests.tolaria.small import EASY
from tests.tolaria.small import data as text_data

DIGITS, STDLIB = get("digits"), get("stdlib")
assert isinstance(DIGITS, VisionTask)
assert isinstance(STDLIB, LanguageTask)


class DoubleDigits(VisionTask):
    """The digits, with hosts and inputs in float64."""

    __slots__ = ()

    def load(self, source: Any, device: torch.device) -> Data:
        data = VisionTask.load(self, source, device)
        return Data(
            classes=data.classes,
            train=Split(data.train.x.double(), data.train.y),
            val=Split(data.val.x.double(), data.val.y),
            test=lambda: data.val,
            fingerprint="",
            origin=data.origin,
        )

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        host, slots = VisionTask.make_host(self, member, classes)
        return host.double(), slots

    def example(self, member: Member) -> Tensor:
        return VisionTask.example(self, member).double()


def variant(kind: type[DoubleDigits], name: str) -> DoubleDigits:
    """Such a task, which is not registered."""
    names = ("summary", "shape", "classes", "read", "val_share", "shift", "mirror", "family")
    return kind(name=name, **{name: getattr(DIGITS, name) for name in names})


@cache
def task() -> DoubleDigits:
    """The digits themselves."""
    return variant(DoubleDigits, DIGITS.name)


@cache
def data(device: str = "cpu") -> Data:
    """Its data, loaded once for all tests of a process."""
    return task().load(None, device_named(device))


class DoubleText(LanguageTask):
    """Text, with hosts in float64."""

    __slots__ = ()

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        host, slots = LanguageTask.make_host(self, member, classes)
        return host.double(), slots


@cache
def text() -> DoubleText:
    """The task, which is not registered."""
    return DoubleText(**{name: getattr(STDLIB, name) for name in ("name", "summary", "classes", "read", "family")})


@cache
def few_texts() -> Data:
    """Its data, with a small val split."""
    whole = text_data(STDLIB.name)
    val = Split(whole.val.x[:48], whole.val.y[:48])
    return Data(classes=whole.classes, train=whole.train, val=val, test=lambda: val, fingerprint="", origin=whole.origin)


def double_text_host(seed: int, config: TrainingConfig = EASY, **member: Any) -> Host:
    """A host of the text in float64."""
    torch.set_num_threads(1)
    small = {"width": 8, "heads": 2, "layers": 2, "train_size": 32, "epochs": 12, "batch": 16}
    return Host(text(), few_texts(), replace(STDLIB.family.standard, **{**small, **member}), seed, config)


def double_host(seed: int, config: TrainingConfig = EASY, device: str = "cpu", of: DoubleDigits | None = None, **member: Any) -> Host:
    """A host of the digits in float64, or of a variant of them."""
    torch.set_num_threads(1)
    standard = replace(DIGITS.family.standard, **{"widths": (2, 4), "kernel": 3, "train_size": 120, "epochs": 12, "batch": 48, **member})
    return Host(of or task(), data(device), standard, seed, config)
