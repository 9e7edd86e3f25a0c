"""What the paired control does to returns: the same random episodes, rewarded with and without their hosts' twins.

    python benchmarks/control.py [--hosts 16]

Prints the spread of returns over hosts of the digits family, and how closely a return follows what growing brought to its host.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np

from esper.leyline.reports import GateConfig
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.tamiyo import make
from esper.tolaria.training.config import TrainingConfig


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    arguments = parser.parse_args()
    config = GrowthConfig(member="family", training=TrainingConfig(gates=GateConfig.permissive()))
    starts = [Start("digits", seed) for seed in range(arguments.hosts)]
    played = {}
    for control in (True, False):
        decider = ControllerDecider([make("random")] * len(starts))
        played[control] = Play(Growth(replace(config, control=control)), decider, starts).through()
    gains = np.array([each.val_accuracy - each.control_accuracy for each in played[True] if each.control_accuracy is not None])
    for control, name in ((True, "with the control"), (False, "without")):
        returns = np.array([each.reward for each in played[control]])
        follows = np.corrcoef(returns, gains)[0, 1]
        print(f"{name:>16}: mean {returns.mean():+.3f}, spread {returns.std():.3f}, correlation with the gain by growing {follows:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
