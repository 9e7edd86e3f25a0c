"""A task: is a handwritten digit odd or even? With data and a host of its own.

esper train heuristic --plugins examples/my_task.py --task odd-or-even
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

import esper
from esper.tolaria.data.digits import read_digits
from esper.tolaria.tasks import Family, Images, Member, VisionTask


class OddOrEven(VisionTask):
    """Leave `make_host` out to have blocks of convolutions of the member's widths, kernel and depth."""

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        """Any module, its weights drawn by torch, and the paths of its slots by their ids."""
        (width,) = member.widths
        host = nn.Sequential(
            nn.Conv2d(1, width, member.kernel, padding="same"),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * width, classes),
        )
        return host, {"r0c0": "1"}


def read(source: Path | None) -> Images:
    """Pixels as uint8 (N, C, H, W), labels as uint8 (N,). `source` is what --data names, None without it."""
    digits = read_digits()
    return Images(
        x_train=digits.x_train,
        y_train=digits.y_train % 2,
        x_test=digits.x_test,
        y_test=digits.y_test % 2,
        origin="odd and even digits",
    )


esper.task(
    OddOrEven(
        name="odd-or-even",
        summary="odd and even digits",
        shape=(1, 8, 8),
        classes=2,
        read=read,
        family=Family(
            standard=Member(widths=(4,), kernel=1, epochs=15, batch=64, learning_rate=0.1),
            ranges={"widths": ((2,), (4,), (8,)), "label_noise": (0.0, 0.2)},
        ),
    )
)
