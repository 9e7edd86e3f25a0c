"""Photographs averaged down to a few pixels: real problems that a small network learns in seconds, for teaching policies on many of them.

esper train expert --plugins examples/small_pictures.py --task digits cifar10-small fashion-small --data DIR
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

import esper
from esper.tolaria.tasks import Family, Images, VisionTask, get

TRAIN, TEST = 2_500, 1_000
"""Images that are kept of each part, the first ones."""


def shrunk(pixels: np.ndarray, by: int) -> np.ndarray:
    """Images (N, C, H, W) with one pixel for each square of so many, in a frame that makes up a whole number of them."""
    frame = [(0, 0), (0, 0), *((side // 2, side - side // 2) for side in (-pixels.shape[2] % (2 * by), -pixels.shape[3] % (2 * by)))]
    pixels = np.pad(pixels, frame)
    n, c, h, w = pixels.shape
    return pixels.reshape(n, c, h // by, by, w // by, by).mean(axis=(3, 5)).round().astype(np.uint8)


def read(published: str, by: int, source: Path | None) -> Images:
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


DIGITS = get("digits").family

for published, channels, size, by in (("cifar10", 3, 8, 4), ("fashion", 1, 8, 4)):
    esper.task(
        VisionTask(
            name=f"{published}-small",
            summary=f"{published} in {size} x {size} pixels",
            shape=(channels, size, size),
            classes=10,
            read=partial(read, published, by),
            val_share=0.16,
            shift=1,
            family=Family(standard=DIGITS.standard, ranges={**DIGITS.ranges, "train_size": (0, 0, 800, 300)}),
        )
    )
