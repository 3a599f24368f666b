"""Implementations of the ops on NVIDIA GPUs."""
