"""What lies on the disk: run folders and checkpoints."""
