"""What hosts are compared with: the training loop that anybody would write for the same network. No benchmark itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from esper.tolaria.data import Data, epoch_order, stream_seed
from esper.tolaria.tasks import Member, get

TASK = get("digits")
MEMBERS: dict[str, dict[str, Any]] = {
    "standard": {},
    "3x3": {"widths": (8, 16, 32), "kernel": 3},
    "deep": {"widths": (16, 32, 64), "kernel": 3, "depth": 2},
}
"""The digits' hosts that are measured, of 274, 6,274 and 72,666 parameters: what is changed of the standard one."""


def member_named(name: str) -> Member:
    """A host of MEMBERS whose budget is never spent."""
    return TASK.family.with_fixed(epochs=10_000, **MEMBERS[name]).standard


class PlainLoop:
    """A network with its optimiser, trained on the same batches as the host of the same seed."""

    def __init__(self, data: Data, member: Member, seed: int) -> None:
        self.data, self.member, self.seed, self.epoch = data, member, seed, 0
        self.network, _, _ = TASK.build_host(member, data.classes, seed)
        self.network.to(data.train.x.device)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=member.learning_rate, momentum=member.momentum, nesterov=True, weight_decay=member.weight_decay
        )

    def train(self) -> tuple[float, float]:
        """One epoch; its loss and its accuracy."""
        split, network, device = self.data.train, self.network, self.data.train.x.device
        network.train()
        loss_sum, correct = torch.zeros((), device=device), torch.zeros((), device=device)
        order = epoch_order(len(split), stream_seed("host", self.seed), self.epoch).to(device)
        for index in order.split(self.member.batch):
            x, y = split.x[index], split.y[index]
            self.optimizer.zero_grad()
            logits = network(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            self.optimizer.step()
            loss_sum += loss.detach() * len(x)
            correct += (logits.argmax(-1) == y).sum()
        self.epoch += 1
        return float(loss_sum) / len(split), float(correct) / len(split)

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Loss and accuracy on val."""
        split = self.data.val
        self.network.eval()
        logits = self.network(split.x)
        return float(F.cross_entropy(logits, split.y)), float((logits.argmax(-1) == split.y).sum()) / len(split)

    def run_epoch(self) -> None:
        """Train and validate."""
        self.train()
        self.validate()
