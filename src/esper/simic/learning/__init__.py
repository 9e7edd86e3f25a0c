"""How a policy learns: by PPO from rounds of play, by imitation and by implicit Q-learning from recorded episodes."""
