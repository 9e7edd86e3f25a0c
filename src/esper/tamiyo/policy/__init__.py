"""The learned controller: its network, its distribution over decisions, and its file."""
