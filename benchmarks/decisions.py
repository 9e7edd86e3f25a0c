"""How long a decision takes: by controller, and by a policy for many hosts at once, against a policy for one host.

    python benchmarks/decisions.py [--quick]

From observations to decisions, on the CPU, where policies are. The hosts have grown under the heuristic for some epochs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.kasmina.blueprints import names
from esper.leyline.events import HostStarted
from esper.leyline.reports import Topology
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider
from esper.simic.learning.policy_decider import PolicyDecider
from esper.tamiyo import CONTROLLERS, Observation
from esper.tamiyo import make as make_controller
from esper.tamiyo.policy.policy import Policy, PolicyConfig

HOSTS = (1, 16, 256)
EPOCHS = 8
ROUNDS = 30


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by size under a policy, then by controller for one host."""
    started, seen = _observed()
    policy = Policy(PolicyConfig(blueprints=tuple(sorted({name for topology in Topology for name in names(topology)}))))
    first, tasks = "policy, 1 host", dict[str, Callable[[], object]]()
    for hosts in HOSTS:
        decider = PolicyDecider(policy, seed=0)
        decider.begin(dict.fromkeys(range(hosts), started))
        tasks[f"policy, {hosts} host{'s' if hosts > 1 else ''}"] = partial(decider.decide, dict.fromkeys(range(hosts), seen))
    for name in CONTROLLERS:
        tasks[f"{name}, 1 host"] = _decide(name, started, seen)
    yield from compared(in_turns(settings, tasks, ROUNDS), first, unit="µs", value_of=lambda taken: 1e6 * taken)


def _decide(name: str, started: HostStarted, seen: Observation) -> Callable[[], object]:
    decider = ControllerDecider([make_controller(name)])
    decider.begin({0: started})
    return partial(decider.decide, {0: seen})


def _observed() -> tuple[HostStarted, Observation]:
    """A host, and what is seen of it after some epochs of growing."""
    growth = Growth(GrowthConfig(control=False))
    started = growth.begin({0: Start("digits", 0)})
    decider = ControllerDecider([make_controller("heuristic")])
    decider.begin(started)
    for _ in range(EPOCHS):
        seen = {0: growth.train()[0].observation}
        growth.act(decider.decide(seen))
    observation = growth.train()[0].observation
    growth.close()
    return started[0], observation


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
