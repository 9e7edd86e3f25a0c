"""What slots cost: a training step with dormant slots (and with a live seed) against the bare model's, measured side by side.

    python benchmarks/slots.py [--steps 200] [--compiled] [--json FILE]

Steps of the two models alternate, so that a busy machine slows both; the ratio of medians is what counts.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import esper
from esper.kasmina.hosts import ConvHost, GPTHost


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    logits = model(x)
    nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
    optimizer.step()


def timed(models: dict[str, tuple[nn.Module, torch.optim.Optimizer]], x: Tensor, y: Tensor, steps: int) -> dict[str, float]:
    """Median seconds of a step of each model; the models take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for step in range(steps + 5):
        for name, (model, optimizer) in models.items():
            start = time.perf_counter()
            one_step(model, optimizer, x, y)
            if step >= 5:  # the first steps warm caches up, and compile
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def compare(
    name: str, host: nn.Module, paths: dict[str, str], x: Tensor, y: Tensor, blueprint: str, steps: int, compiled: bool
) -> dict[str, Any]:
    """Step times of a host bare, with dormant slots, and with one seed in TRAINING."""
    bare = copy.deepcopy(host)
    again = copy.deepcopy(host)
    dormant = esper.Growable(copy.deepcopy(host), paths, x)
    live = esper.Growable(copy.deepcopy(host), paths, x)
    live.germinate(live.slot_ids[0], blueprint)
    live.tick()
    models: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}
    for key, model in {"bare": bare, "bare again": again, "dormant": dormant, "one seed training": live}.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        models[key] = (torch.compile(model) if compiled else model, optimizer)  # type: ignore[assignment]
    medians = timed(models, x, y, steps)
    ratios = {key: value / medians["bare"] for key, value in medians.items()}
    return {"host": name, "compiled": compiled, "bare_ms": 1e3 * medians["bare"], "ratios": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="timed steps of each model")
    parser.add_argument("--compiled", action="store_true", help="also measure under torch.compile (needs a C++ compiler)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    conv = ConvHost()
    gpt = GPTHost(128, block=64, width=64, heads=4, layers=3)
    tokens = torch.randint(0, 128, (8, 65))
    rows = []
    for compiled in (False, True) if args.compiled else (False,):
        images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
        rows.append(compare("CNN", conv, conv.slot_paths(), images, labels, "conv_light", args.steps, compiled))
        rows.append(compare("GPT", gpt, gpt.slot_paths(), tokens[:, :-1], tokens[:, 1:], "mlp", args.steps, compiled))
    print(f"{'host':5} {'compiled':9} {'bare step':>10}  ratio to the bare model")
    for row in rows:
        ratios = "  ".join(f"{key} {value:.3f}" for key, value in row["ratios"].items() if key != "bare")
        print(f"{row['host']:5} {row['compiled']!s:9} {row['bare_ms']:8.2f}ms  {ratios}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
