"""Hosts as one environment: an epoch of all, a decision for each, its reward, their twins, worker processes, and what is recorded."""
