"""Triton kernels: tensors in, tensors out. Installed as `elmo_fast.kernels`; imported by `elmo_fast.ops` only."""
