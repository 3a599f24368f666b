"""Floor 1: options and weights to layers of representations, in PyTorch."""

from elmo_fast.environment import extra

with extra("torch"):
    import torch  # noqa: F401
