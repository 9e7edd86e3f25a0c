"""Every policy that ships on eight hosts of the digits family, played as a comparison plays them, and what came of it in rows.json.

./go python -m tests.policies.make_rows        after a policy came, or after a change that is meant to move what policies do
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from esper.karn.evaluation import Recorded
from esper.leyline.seeds import Purpose
from esper.nissa import Hub
from esper.policies import POLICIES
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.deciding import policy_for
from esper.simic.growth.environment import Start
from esper.simic.growth.play import Play
from esper.simic.growth.workers import environment
from esper.simic.runs.practice_config import permissive

ROWS = Path(__file__).with_name("rows.json")
HOSTS, EPOCHS = 8, 20


def machine() -> dict[str, str]:
    """What rows depend on beside the code: where it is another one, they are another rounding's."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.is_file() else []
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    processor = ", ".join(sorted(models)) or platform.processor()
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(), "processor": processor}


def rows(name: str) -> list[dict[str, Any]]:
    """What a policy makes of hosts that it has not practised on, one row for each.

    `value` is what its critic expected, on average over the epochs: whatever a policy sees otherwise than before moves it, where the
    decisions may happen to stay.
    """
    config = GrowthConfig(member="family", epochs=EPOCHS, control=False, training=permissive(), threads=1)
    starts = [Start("digits", seed) for seed in Purpose.DEVELOPMENT.seeds(HOSTS)]
    hosts = environment(config, workers=0)
    decider = Recorded(policy_for(name).eval(), 0, deterministic=True)
    try:
        results = Play(hosts, decider, starts, hub=Hub()).through()
    finally:
        hosts.close()
    assert decider.buffer is not None, "made when the hosts began"
    played = decider.buffer.rollout()
    return [
        {
            "seed": start.seed,
            "val_accuracy": result.val_accuracy,
            "parameters": result.parameters,
            "fossils": result.fossilized,
            "decisions": result.decisions,
            "value": float(played.value[place, : int(steps)].mean()),
        }
        for place, (start, result, steps) in enumerate(zip(starts, results, played.lengths(), strict=True))
    ]


def main() -> None:
    """Write the rows of all policies."""
    torch.set_num_threads(1)
    found = {"machine": machine(), "rows": {name: rows(name) for name in POLICIES}}
    ROWS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{ROWS}: {', '.join(POLICIES) or 'no policy ships'}")


if __name__ == "__main__":
    main()
