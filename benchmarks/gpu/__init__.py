"""Stages of benchmarks/gpu/run.sh, each a program of its own: python -m benchmarks.gpu.STAGE --help."""
