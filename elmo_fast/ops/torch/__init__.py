"""Implementations of the ops in plain PyTorch, on any device."""
