"""The controller that learns: its network, its distribution over decisions, the prior it is kept near, and its file."""
