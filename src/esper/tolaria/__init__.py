"""The hands: tasks, data, training many hosts one epoch at a time, counterfactuals, governor, checkpoints."""
