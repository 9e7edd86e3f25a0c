"""The school: where body, hands and mind meet. Episodes, the Gardener, runs, environments, rewards, and policies that learn."""
