"""Smaller problems of the kinds that the built-in tasks have, on which a host trains in seconds: for teaching policies on many of them.

Photographs averaged down to 8 x 8 pixels, text in short blocks with little to validate on, and digits as plain vectors.

esper train expert --plugins examples/small_tasks.py --task digits cifar10-small fashion-small stdlib-small    (ESPER_DATA names a folder)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

import esper
from esper.tolaria.data.text import Texts
from esper.tolaria.tasks import Family, Images, LanguageTask, Member, VisionTask, get

TRAIN, TEST = 2_500, 1_000
"""Images that are kept of each part, the first ones."""
HELD_OUT, EXCERPT = 8_192, 512
"""Characters of text that are kept of val, and of test, and how many of each document, from its middle."""


def shrunk(pixels: np.ndarray, by: int) -> np.ndarray:
    """Images (N, C, H, W) with one pixel for each square of so many, in a frame that makes up a whole number of them."""
    frame = [(0, 0), (0, 0), *((side // 2, side - side // 2) for side in (-pixels.shape[2] % (2 * by), -pixels.shape[3] % (2 * by)))]
    pixels = np.pad(pixels, frame)
    n, c, h, w = pixels.shape
    return pixels.reshape(n, c, h // by, by, w // by, by).mean(axis=(3, 5)).round().astype(np.uint8)


def read_images(published: str, by: int, source: Path | None) -> Images:
    """The first images of a task's own data, smaller."""
    task = get(published)
    assert isinstance(task, VisionTask)
    whole = task.read(source)
    return Images(
        x_train=shrunk(whole.x_train[:TRAIN], by),
        y_train=whole.y_train[:TRAIN],
        x_test=shrunk(whole.x_test[:TEST], by),
        y_test=whole.y_test[:TEST],
        origin=f"{whole.origin}, {by} x {by} pixels as one",
    )


def excerpts(documents: Sequence[str]) -> list[str]:
    """A piece of each document, until there is enough."""
    return [text[len(text) // 2 :][:EXCERPT] for text in documents[: HELD_OUT // EXCERPT]]


def read_text(source: Path | None) -> Texts:
    """The sources of Python's standard library, with less to validate on: most of the time of small hosts would go there."""
    whole = STDLIB.read(None)  # which is always there, whatever data lies beside it
    return Texts(
        train=whole.train, val=excerpts(whole.val), test=excerpts(whole.test), origin=f"{whole.origin}, excerpts for val and test"
    )


class VectorTask(VisionTask):
    """Images without their shape: layers of the member's widths, with a slot behind each."""

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        """An MLP."""
        sizes = (math.prod(self.shape), *member.widths)
        layers = [layer for i in range(len(member.widths)) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
        host = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))
        return host, {f"r0c{i}": str(2 + 2 * i) for i in range(len(member.widths))}


DIGITS, STDLIB = get("digits"), get("stdlib")
assert isinstance(STDLIB, LanguageTask)
assert isinstance(DIGITS, VisionTask)

for published, channels, size, by in (("cifar10", 3, 8, 4), ("fashion", 1, 8, 4)):
    esper.task(
        VisionTask(
            name=f"{published}-small",
            summary=f"{published} in {size} x {size} pixels",
            shape=(channels, size, size),
            classes=10,
            read=partial(read_images, published, by),
            val_share=0.16,
            shift=1,
            family=Family(standard=DIGITS.family.standard, ranges={**DIGITS.family.ranges, "train_size": (0, 0, 800, 300)}),
        )
    )
esper.task(
    VectorTask(
        name="digits-vectors",
        summary="digits as vectors of 64 numbers",
        shape=DIGITS.shape,
        classes=DIGITS.classes,
        read=DIGITS.read,
        val_share=DIGITS.val_share,
        shift=1,
        family=Family(
            standard=Member(widths=(8, 8), epochs=25, batch=64, learning_rate=0.05),
            ranges={
                **{name: values for name, values in DIGITS.family.ranges.items() if name not in ("widths", "kernels", "learning_rate")},
                "widths": ((4, 4), (8, 8), (3, 16), (16, 4), (32, 32), (8, 8, 8)),
                "learning_rate": (0.02, 0.05),
            },
        ),
    )
)
esper.task(
    LanguageTask(
        name="stdlib-small",
        summary="the sources of Python's standard library in short blocks",
        read=read_text,
        family=Family(
            standard=Member(
                width=32, heads=2, layers=2, block=32, train_size=1024, epochs=25, batch=32, optimizer="adamw", learning_rate=5e-3
            ),
            ranges={
                **STDLIB.family.ranges,
                "width": (16, 32),
                "train_size": (256, 1024),
                "learning_rate": (5e-3, 1e-2),
            },
        ),
    )
)
