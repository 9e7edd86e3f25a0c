"""An epoch's evaluation with its counterfactuals, by the seeds of a host, against that of the network as it is alone.

    python benchmarks/counterfactuals.py [--quick] [--device cuda]

A report needs the network without each seed, without each pair and without any; of a seed in training, the network with it. Batch norms
are made anew for each of these. The number of configurations is what the ratio would be if each cost the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from growing import KINDS, grown
from plain_loop import TASK

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import Evaluated, evaluate, wanted_of


def measure(settings: Settings) -> Iterator[Row]:
    """Two rows for each kind of host that has seeds."""
    data = TASK.load(None, torch.device(settings.device))
    for kind, (seeds, _) in KINDS.items():
        if not seeds:
            continue
        host = grown(data, 0, kind)
        alone, whole = f"as it is, {kind}", f"in {len(wanted_of(host.model))} configurations, {kind}"
        tasks = {alone: lambda host=host: _as_it_is(host), whole: lambda host=host: host.evaluate().read()}
        yield from compared(in_turns(settings, tasks), alone)


def _as_it_is(host: Host) -> object:
    evaluated: Evaluated = evaluate(
        host.model, host.run, host.task, host.data.val, host.config.eval_batch, wanted_of(host.model)[:1], host.reference()
    )
    return evaluated.read()


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
