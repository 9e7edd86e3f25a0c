"""How fast fleets are, of which docs/performance.md tells: rounds of PPO all in, hosts of CIFAR-10, and growth under a controller.

    python benchmarks/fleet.py ppo [--device cuda] [--hosts 256] [--member family] [--epochs 10] [--rounds 3] [--workers 8] [--engine fleet]
    python benchmarks/fleet.py cifar10 [--device cuda] [--hosts 64] [--images 45000] [--epochs 4] [--precision bf16]
    python benchmarks/fleet.py growth [--hosts 16] [--epochs 12]
    python benchmarks/fleet.py episode [--device cuda] [--task cifar10] [--hosts 64] [--epochs 16] [--controller NAME] [--precision bf16]

`ppo` plays and learns rounds, and tells what each part of them took by the clock; in the first round most work is captured. With
--epochs 0 each host has its own budget. --workers: processes, by default as in a run.
`cifar10` trains standard hosts on random images, augmented, with 1,000 for val, without seeds in two epochs and with one seed in every
second host after that; the first epoch of each pays for what is captured, and on a new machine for kernels that are compiled.
`growth` compares the engines by processor time, under controllers, on one thread.
`episode` grows standard hosts of a task by a controller, on its own data: for each epoch how fast it was, and the seeds that there were.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from esper.kasmina.blueprints import names
from esper.leyline.reports import GateConfig, Topology
from esper.leyline.stages import Stage
from esper.nissa import Hub
from esper.nissa.jsonl import JsonlSink
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.runs.ppo import PPORun
from esper.simic.runs.ppo_config import PPORunConfig
from esper.tamiyo import make
from esper.tolaria.data import Data, Split
from esper.tolaria.tasks import Member, get
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.device import device_named
from esper.tolaria.training.engine import FleetEngine
from esper.tolaria.training.host import Host


def timed(owner: Any, method: str, name: str, spent: Counter[str]) -> None:
    """From here on, count the seconds that a method takes."""
    plain: Callable[..., Any] = getattr(owner, method)

    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - began  # type: ignore[assignment]

    setattr(owner, method, measured)


def ppo(arguments: argparse.Namespace) -> None:
    """Rounds of PPO, with everything that belongs to them."""
    config = PPORunConfig(
        hosts=arguments.hosts,
        pool=arguments.hosts,
        rounds=arguments.rounds + 1,
        workers=arguments.workers,
        member=arguments.member,
        epochs=arguments.epochs or None,
        device=arguments.device,
        engine=arguments.engine,
        control=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = PPORun(config, Hub(JsonlSink(Path(folder) / "events.jsonl"), []))
        hosts, spent = run.playing.environment, Counter[str]()
        watched: list[tuple[Any, str, str]] = [(hosts, "begin", "making hosts"), (hosts, "train", "training"), (hosts, "act", "acting")]
        watched += [(run.learner, "update", "update"), (PolicyDecider, "decide", "deciding")]
        if isinstance(hosts, Growth):
            watched += [(hosts.engine, "run_epoch", "the engine's part of training"), (hosts.engine, "score", "scoring, in acting")]
        for owner, method, name in watched:
            timed(owner, method, name, spent)
        try:
            for number in range(arguments.rounds):
                spent.clear()
                began = time.perf_counter()
                run.run_round()
                seconds, epochs = time.perf_counter() - began, sum(member.epochs for member in members(run, number))
                parts = ", ".join(f"{name} {value:.2f}" for name, value in spent.most_common())
                print(f"round {number + 1}: {seconds:.1f} s, {epochs / seconds:.0f} host-epochs/s all in; {parts}", flush=True)
        finally:
            run.close()


def members(run: PPORun, round: int) -> list[Member]:
    """What the hosts of a round are."""
    return [run.config.member_for(get(start.task).family, start.seed) for start in run._drawn(round)]


def cifar10(arguments: argparse.Namespace) -> None:
    """Images a second of standard hosts on random images."""
    device, task, draw = device_named(arguments.device), get("cifar10"), torch.Generator().manual_seed(0)

    def split(size: int) -> Split:
        return Split(torch.randn(size, 3, 32, 32, generator=draw).to(device), torch.randint(0, 10, (size,), generator=draw).to(device))

    train, val = split(arguments.images), split(1000)
    data = Data(classes=10, train=train, val=val, test=lambda: val, fingerprint="", origin="random images")
    config = TrainingConfig(precision=arguments.precision)
    hosts = [Host(task, data, task.family.standard, seed, config) for seed in range(arguments.hosts)]
    engine, blueprints = FleetEngine(), names(Topology.MAP2D)
    for epoch in range(arguments.epochs):
        began = time.perf_counter()
        engine.run_epoch(hosts)  # which ends with what it has read from the device
        rate = len(hosts) * arguments.images / (time.perf_counter() - began)
        print(f"epoch {epoch + 1}: {rate:,.0f} images/s, {'seeds in every second host' if epoch > 1 else 'no seeds'}", flush=True)
        for number, host in enumerate(hosts):
            if epoch == 1 and number % 2:
                host.model.germinate(host.model.slot_ids[number % 3], blueprints[number % len(blueprints)])
            host.end_epoch()


def growth(arguments: argparse.Namespace) -> None:
    """Both engines under controllers, on one thread."""
    torch.set_num_threads(1)
    usual = GrowthConfig(epochs=arguments.epochs, control=False, training=TrainingConfig(gates=GateConfig.permissive()))
    for controller in ("random", "heuristic"):
        for member in ("family", "standard"):
            for engine in ("serial", "fleet"):
                hosts = Growth(replace(usual, member=member, engine=engine))
                began = time.process_time()
                starts = [Start("digits", 100 + number) for number in range(arguments.hosts)]
                Play(hosts, ControllerDecider([make(controller)] * arguments.hosts), starts).through()
                rate = arguments.hosts * arguments.epochs / (time.process_time() - began)
                print(f"{controller}, {member} hosts, {engine}: {rate:.1f} host-epochs/s", flush=True)


def episode(arguments: argparse.Namespace) -> None:
    """One episode of standard hosts, epoch by epoch."""
    training = TrainingConfig(precision=arguments.precision)
    hosts = Growth(GrowthConfig(epochs=arguments.epochs, control=False, engine="fleet", device=arguments.device, training=training))
    starts = [Start(arguments.task, 100 + number) for number in range(arguments.hosts)]
    controllers = [make(arguments.controller) for _ in starts]
    play, samples, began = Play(hosts, ControllerDecider(controllers), starts), 0, time.perf_counter()
    run_epoch = hosts.engine.run_epoch

    def measured(running: Sequence[Host], *rest: Any) -> Any:
        nonlocal samples
        stages = Counter(slot.state.stage for host in running for slot in host.model.slots.values())
        count, start = sum(len(host.split) for host in running), time.perf_counter()
        found = run_epoch(running, *rest)
        samples += count
        seeds = ", ".join(f"{number} {stage.name}" for stage, number in stages.items() if stage is not Stage.DORMANT)
        print(f"epoch {running[0].epoch}: {count / (time.perf_counter() - start):,.0f} samples/s; {seeds or 'no seeds'}", flush=True)
        return found

    hosts.engine.run_epoch = measured  # type: ignore[method-assign]
    play.through()
    print(f"all in, with what is captured: {samples / (time.perf_counter() - began):,.0f} samples/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    usual = {
        ppo: {"hosts": 256, "epochs": 10, "rounds": 3},
        cifar10: {"hosts": 64, "images": 45000, "epochs": 4},
        episode: {"hosts": 64, "epochs": 16},
    }
    for command, sizes in usual.items():
        each = commands.add_parser(command.__name__)
        each.set_defaults(command=command)
        each.add_argument("--device", default="cuda")
        for name, size in sizes.items():
            each.add_argument(f"--{name}", type=int, default=size)
        if command is ppo:
            each.add_argument("--workers", type=int)
            each.add_argument("--engine", choices=("serial", "fleet"), default="fleet")
            each.add_argument("--member", choices=("family", "standard"), default="family")
        else:
            each.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
        if command is episode:
            each.add_argument("--task", default="cifar10")
            each.add_argument("--controller", default="heuristic")
    each = commands.add_parser("growth")
    each.set_defaults(command=growth)
    each.add_argument("--hosts", type=int, default=16)
    each.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    arguments.command(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
