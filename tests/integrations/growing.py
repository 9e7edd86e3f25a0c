"""What the tests of the frameworks share: a small network on real data, and a controller that grows at known epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.leyline.actions import WAIT, Decision, Op
from esper.tamiyo import Observation, State
from esper.tolaria import tasks

OPEN = esper.GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0, min_contribution=-100.0)
DIGITS = tasks.get("digits").load(None, torch.device("cpu"))
X, Y = DIGITS.train.x[:160], DIGITS.train.y[:160]
BATCH = 32
MAX_NORM = 0.05
"""Below every norm that occurs, so that each step is clipped."""


@dataclass(frozen=True, slots=True)
class Eager:
    """Takes what may be taken first, and remembers how often it was asked: a memory that a resumed training has to have."""

    name: str = "eager"
    blueprint: str = "conv_small"

    def start(self, seed: int) -> State:
        return {"asked": 0}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        masks, state = observation.masks, {"asked": state["asked"] + 1}
        for op in (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE):
            if masks.slots(op).any():
                slot = masks.slot_names[int(masks.slots(op).argmax())]
                chosen = {"blueprint": self.blueprint, "tempo": 3} if op is Op.GERMINATE else {}
                return Decision(op=op, slot=slot, reason=f"asked {state['asked']} times", **chosen), state
        return WAIT, state


def network() -> nn.Module:
    """A network that is too small, the same every time."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))


def growable(**settings: Any) -> esper.Growable:
    return esper.Growable(network(), ["1", "4"], X[:4], **{"gates": OPEN, **settings})


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return 100 * (model(DIGITS.val.x[:64]).argmax(1) == DIGITS.val.y[:64]).float().mean().item()


def loader() -> DataLoader[tuple[Tensor, ...]]:
    """In the same order every time: what differs between two trainings is not the data."""
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH)


def same(found: nn.Module, expected: nn.Module) -> None:
    """Every tensor and every record, bit for bit."""
    mine, its = found.state_dict(), expected.state_dict()
    assert list(mine) == list(its)
    assert not (other := [name for name in mine if not torch.equal(mine[name], its[name])]), other


def told(gardener: esper.Gardener | None) -> list[str]:
    assert gardener is not None
    return [str(entry) for entry in gardener.history]


def by_hand(epochs: int, *, accumulate: int = 1, max_norm: float | None = MAX_NORM, **settings: Any) -> tuple[esper.Growable, list[str]]:
    """A loop of one's own: what a framework does has to be the same."""
    model = growable(**settings)
    optimizer = torch.optim.Adam(model.parameter_groups(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    gardener = esper.Gardener(model, optimizer, policy=Eager(), evaluate=accuracy, epochs=epochs)
    for _ in range(epochs):
        for batches in _chunks(loader(), accumulate):
            optimizer.zero_grad()
            for x, y in batches:
                (nn.functional.cross_entropy(model(x), y) / accumulate).backward()
            if max_norm is not None:
                model.clip_gradients(max_norm)
            optimizer.step()
        gardener.step()
        scheduler.step()
    return model, told(gardener)


def _chunks(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for batch in batches:
        chunk.append(batch)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
