"""The built-in tasks: each a standard member and a family around it, of hosts that gain much by growing and hosts that gain nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from esper.leyline.errors import DataError
from esper.tolaria.data.digits import read_digits
from esper.tolaria.data.formats import CIFAR10_SHA256, FASHION_SHA256, Images, read_cifar, read_idx_set, read_npz
from esper.tolaria.data.sources import CIFAR10, FASHION_MNIST, TINYSTORIES
from esper.tolaria.data.stdlib import read_stdlib
from esper.tolaria.data.text import Texts, read_tinystories
from esper.tolaria.tasks.family import Choices, Family, Member
from esper.tolaria.tasks.language import LanguageTask
from esper.tolaria.tasks.registry import register
from esper.tolaria.tasks.vision import VisionTask

T = TypeVar("T")


def _own(task: str, read: Callable[[], T], source: Path | None) -> T:
    """Data that is always there is never looked for, so a folder that somebody names for it is a mistake."""
    if source is not None:
        raise DataError(f"task {task!r} brings its own data and reads none from {source}; leave --data out")
    return read()


def _cifar10(source: Path | None) -> Images:
    found = CIFAR10.locate(source)
    if found.suffix == ".npz":
        return read_npz(found)
    return read_cifar(found if found.name.endswith(".tar.gz") else found.parent, CIFAR10_SHA256)


def _fashion(source: Path | None) -> Images:
    found = FASHION_MNIST.locate(source)
    return read_npz(found) if found.suffix == ".npz" else read_idx_set(found.parent, FASHION_SHA256)


def _tinystories(source: Path | None) -> Texts:
    return read_tinystories(TINYSTORIES.locate(source))


_BUDGETS: Choices = {
    "epochs": (15, 25, 40),
    "schedule": ("cosine", "linear", "step"),
    "decay": (0.2, 0.4, 1.0),
}
"""How long a host trains and how its learning rate falls, in every family."""
_RENTS: Choices = {"rent": (0.0, 5.0, 20.0, 60.0)}
"""What size costs a host's user, from nothing to more than growth can bring."""

register(
    VisionTask(
        name="digits",
        summary="small handwritten digits, always there: first runs, tests, CI",
        shape=(1, 8, 8),
        classes=10,
        read=partial(_own, "digits", read_digits),
        # 360 of the 1,437 that are not for test.
        val_share=360 / 1437,
        # The digits fill their frame, and a mirrored one is another sign.
        shift=1,
        mirror=False,
        family=Family(
            # Convolutions of size 1 see no shapes, so this host ends near 45 % where one grown convolution brings it above 90 %.
            standard=Member(widths=(8, 8, 8), kernel=1, epochs=25, batch=64, learning_rate=0.2),
            # A block may be too narrow, or see no shapes, at the front, in the middle, behind or nowhere.
            ranges={
                "widths": ((8, 8, 8), (2, 8, 8), (8, 2, 8), (4, 4, 8), (8, 16, 32)),
                "kernels": ((1, 1, 1), (1, 3, 3), (3, 1, 1), (3, 3, 3)),
                "train_size": (0, 0, 400, 150),
                "label_noise": (0.0, 0.0, 0.2, 0.5),
                "learning_rate": (0.1, 0.2),
                **_RENTS,
                **_BUDGETS,
            },
        ),
    )
)

register(
    LanguageTask(
        name="stdlib",
        summary="the sources of Python's standard library, always there: text without a download",
        read=partial(_own, "stdlib", read_stdlib),
        family=Family(
            standard=Member(
                width=32, heads=2, layers=2, block=64, train_size=2048, epochs=25, batch=16, optimizer="adamw", learning_rate=3e-3
            ),
            # Without attention a block sees one token at a time, without an MLP it only mixes them: what is missing, and where, differs.
            ranges={
                "width": (16, 32, 64),
                "parts": (("mlp", "mlp"), ("attention", "attention"), ("mlp", "attention"), ("both", "both")),
                "train_size": (256, 1024, 4096),
                "learning_rate": (3e-3, 5e-3),
                **_RENTS,
                **_BUDGETS,
            },
        ),
    )
)

_PHOTOGRAPHS = Family(
    standard=Member(widths=(8, 16, 32), epochs=40, batch=128, learning_rate=0.2, augment=True),
    ranges={
        "widths": ((8, 16, 32), (2, 16, 32), (8, 2, 32), (16, 32, 64)),
        "kernels": ((1, 1, 1), (1, 3, 3), (3, 1, 1), (3, 3, 3)),
        "train_size": (0, 5000, 1500),
        "label_noise": (0.0, 0.0, 0.2, 0.5),
        "learning_rate": (0.1, 0.2),
        "augment": (True, False),
        **_RENTS,
        **_BUDGETS,
    },
)


def _cifar_task(name: str, summary: str, family: Family) -> VisionTask:
    return VisionTask(name=name, summary=summary, shape=(3, 32, 32), classes=10, published=CIFAR10, read=_cifar10, family=family)


register(_cifar_task("cifar10", "photographs in ten classes: the main task", _PHOTOGRAPHS))
register(_cifar_task("cifar10-impaired", "rescue of a host that sees no shapes", _PHOTOGRAPHS.with_fixed(widths=(1, 2, 4), kernel=1)))
register(_cifar_task("cifar10-deep", "a deep host with five slots", _PHOTOGRAPHS.with_fixed(widths=(8, 16, 32, 64, 128), kernel=3)))

register(
    VisionTask(
        name="fashion",
        summary="photographs of clothes: does what was learnt on cifar10 carry over?",
        shape=(1, 28, 28),
        classes=10,
        published=FASHION_MNIST,
        read=_fashion,
        shift=2,
        family=_PHOTOGRAPHS,
    )
)

register(
    LanguageTask(
        name="tinystories",
        summary="short stories for children: the language task",
        published=TINYSTORIES,
        read=_tinystories,
        threads=0,
        family=Family(
            standard=Member(
                width=384, heads=6, layers=6, block=256, train_size=8192, epochs=25, batch=32, optimizer="adamw", learning_rate=1e-3
            ),
            ranges={
                "width": (192, 384),
                "layers": (2, 4, 6),
                "train_size": (4096, 8192),
                "learning_rate": (5e-4, 1e-3),
                **_RENTS,
                **_BUDGETS,
            },
        ),
    )
)
