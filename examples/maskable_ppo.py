"""Train MaskablePPO of sb3-contrib, as it is, to grow hosts; then let it grow one that it has not met.

pip install "esper-lite[rl]" sb3-contrib
python examples/maskable_ppo.py --steps 4000
"""

from __future__ import annotations

import argparse

import gymnasium
from sb3_contrib import MaskablePPO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="digits", help="what the hosts learn (default: digits)")
    parser.add_argument("--epochs", type=int, default=20, help="budget of each host, the steps of an episode (default: 20)")
    parser.add_argument("--steps", type=int, default=4000, help="steps of training, an epoch of a host each (default: 4000)")
    parser.add_argument("--hosts", type=int, default=16, help="different hosts to train on (default: 16)")
    options = parser.parse_args()

    env = gymnasium.make(
        "esper.simic.environment:esper/GrowthFlat-v0", task=options.task, epochs=options.epochs, seeds=range(options.hosts)
    )
    # Eight episodes an update; the discount is the one that the reward is shaped for.
    model = MaskablePPO("MlpPolicy", env, n_steps=8 * options.epochs, batch_size=options.epochs, gamma=0.995, seed=0, verbose=1)
    model.learn(options.steps)

    observation, info = env.reset(options={"host_seed": options.hosts})
    terminated = False
    while not terminated:
        masks = env.get_wrapper_attr("action_masks")()
        action, _ = model.predict(observation, action_masks=masks, deterministic=True)
        print(env.get_wrapper_attr("decision")(action))
        observation, _, terminated, _, info = env.step(action)
    final = info["final"]
    print(f"host {options.hosts}: accuracy {final['val_accuracy']:.2f} with {final['parameters']:,.0f} parameters, ", end="")
    print(f"without growth {final['control_accuracy']:.2f} with {final['host_parameters']:,.0f}")


if __name__ == "__main__":
    main()
