"""Batcher: trajectories become groups, and groups become training batches."""
