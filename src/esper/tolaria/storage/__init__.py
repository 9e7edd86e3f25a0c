"""What lies on the disk of a run: its folder, with a lock and a config, and its checkpoints, whole or not there."""
