"""The school: environment, rewards, rollouts, PPO, imitation and offline learning of growth policies."""
