"""What a setting does to learning: policies taught with and without it, from several seeds, examined on the same unseen hosts.

    python benchmarks/learning.py [--seeds 0 1 2] [--examined 40] [--jobs 2] [--json FILE] [--expert FLAGS] [-- FLAGS OF esper train ppo]

    python benchmarks/learning.py                         how the defaults do, and how much that depends on the seed
    python benchmarks/learning.py -- --no-control         rewards without the paired control
    python benchmarks/learning.py --expert "--hosts 6 --rounds 7"     PPO beside forked search, `esper train expert` with these flags

Prints the val score (accuracy minus rent) of each policy and the host-epochs that it was taught with, those of forks among them and those
of controls not, and the paired difference over hosts, each host's score being the mean over seeds. Every policy takes as long as `esper
train ppo` on one core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import shlex
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from esper.cli.flags import Parser, add_flags, changes
from esper.leyline.config import replace_fields
from esper.nissa import Hub
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.practice_config import PracticeConfig
from esper.simic.statistics import paired_difference

ARMS = ("wait", "random", "fixed", "heuristic")


def examined(task: tuple[PracticeConfig, str]) -> list[dict[str, float]]:
    """Teach a policy, or take a rule as it is, and examine it: a row for each host."""
    from esper.simic.runs.expert import ExpertRun
    from esper.simic.runs.ppo import PPORun

    config, arm = task
    run = ExpertRun(config, Hub()) if isinstance(config, ExpertRunConfig) else PPORun(config, Hub())
    try:
        while arm == "policy" and run.round < run.rounds:
            run.run_round()
        run.examine(arm)
        taught = sum(figures["rollout/host_epochs"] for figures in run.history)
        return [{"score": score, "taught": taught, **asdict(result)} for score, result in zip(run.scores(arm), run.arms[arm], strict=True)]
    finally:
        run.close()


def with_flags(config: PracticeConfig, method: str, flags: Sequence[str]) -> PracticeConfig:
    """The config with flags of `esper train METHOD`."""
    parser = Parser(prog=f"esper train {method}", allow_abbrev=False)
    add_flags(parser, type(config), everything=False)
    return replace_fields(config, changes(type(config), parser.parse_args(flags)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the policies")
    parser.add_argument("--examined", type=int, default=40, help="unseen hosts that each is examined on")
    parser.add_argument("--jobs", type=int, default=2, help="policies that are taught at the same time")
    parser.add_argument("--json", type=Path, help="write every row to this file")
    parser.add_argument("--expert", metavar="FLAGS", help="also teach policies by forked search, with these flags of esper train expert")
    parser.add_argument("flags", nargs="*", help="settings of esper train ppo that are to be compared with the defaults")
    arguments = parser.parse_args()
    plain = PPORunConfig(workers=1, examined=arguments.examined)
    settings: dict[str, PracticeConfig] = {"default": plain}
    if arguments.flags:
        settings[" ".join(arguments.flags)] = with_flags(plain, "ppo", arguments.flags)
    if arguments.expert is not None:
        expert = ExpertRunConfig(workers=1, examined=arguments.examined)
        settings[f"expert {arguments.expert}".strip()] = with_flags(expert, "expert", shlex.split(arguments.expert))
    tasks = {(name, seed): (replace(config, seed=seed), "policy") for name, config in settings.items() for seed in arguments.seeds}
    tasks |= {(arm, 0): (plain, arm) for arm in ARMS}
    with ProcessPoolExecutor(arguments.jobs, mp_context=mp.get_context("spawn")) as pool:
        found = dict(zip(tasks, pool.map(examined, tasks.values()), strict=True))
    if arguments.json:
        arguments.json.write_text(json.dumps([{"who": who, "seed": seed, "hosts": rows} for (who, seed), rows in found.items()], indent=1))
    show(found, list(settings))
    return 0


def show(found: dict[tuple[str, int], list[dict[str, Any]]], settings: list[str]) -> None:
    """The table, and the comparisons."""
    print(f"{'who':40} {'seed':>4} {'score':>7} {'accuracy':>9} {'fossils':>8} {'host-epochs':>12}")
    for (who, seed), rows in found.items():
        figures = [statistics.mean(row[name] for row in rows) for name in ("score", "accuracy", "fossilized")]
        taught = f"{rows[0]['taught']:12,.0f}" if who in settings else ""
        print(f"{who:40} {seed if who in settings else '':>4} {figures[0]:7.2f} {figures[1]:9.2f} {figures[2]:8.2f} {taught}")

    def by_host(who: str) -> list[float]:
        """Each host's score, the mean over seeds."""
        runs = [[row["score"] for row in rows] for (each, _), rows in found.items() if each == who]
        return [statistics.mean(scores) for scores in zip(*runs, strict=True)]

    for who in settings:
        for other in (*settings, *ARMS):
            if other != who and not (other in settings and settings.index(other) > settings.index(who)):
                print(f"{who} against {other}: {paired_difference(by_host(who), by_host(other))}")


if __name__ == "__main__":
    sys.exit(main())
