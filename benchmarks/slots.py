"""A training step of a model with dormant slots, and with a live seed, against that of the bare model.

    python benchmarks/slots.py [--quick] [--device cuda]

`bare again` is a second bare model: what the measurement cannot tell apart. `compiled.py` measures the same under torch.compile.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import esper
from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.kasmina.hosts import ConvHost, GPTHost

ROUNDS = 60


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by host."""
    yield from steps(settings, compiled=False)


def steps(settings: Settings, *, compiled: bool) -> Iterator[Row]:
    """Rows by host, of the models as they are or under torch.compile."""
    torch.manual_seed(0)
    conv, gpt = ConvHost(), GPTHost(128, block=64, width=64, heads=4, layers=3)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    tokens = torch.randint(0, 128, (8, 65))
    cases = {
        "CNN": (conv, conv.slot_paths(), images, labels, "conv_light"),
        "GPT": (gpt, gpt.slot_paths(), tokens[:, :-1], tokens[:, 1:], "mlp"),
    }
    for name, (host, paths, x, y, blueprint) in list(cases.items())[: 1 if compiled and settings.quick else None]:
        x, y = x.to(settings.device), y.to(settings.device)
        host.to(settings.device)
        dormant, live = (esper.Growable(copy.deepcopy(host), paths, x) for _ in range(2))
        live.germinate(live.slot_ids[0], blueprint)
        live.tick()
        models = {"bare": copy.deepcopy(host), "bare again": copy.deepcopy(host), "dormant slots": dormant, "one seed in training": live}
        tasks: dict[str, Callable[[], object]] = {}
        for kind, model in models.items():
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
            run = torch.compile(model) if compiled else model
            tasks[f"{name}, {kind}"] = partial(_step, run, optimizer, x, y)
        yield from compared(in_turns(settings, tasks, ROUNDS), f"{name}, bare")


def _step(run: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(run(x).flatten(0, -2), y.flatten()).backward()
    optimizer.step()


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
