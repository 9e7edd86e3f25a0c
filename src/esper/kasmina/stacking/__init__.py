"""Many models of one structure as one program: their tensors stacked, their samples in one batch."""
