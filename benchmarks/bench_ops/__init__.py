"""Micro-benchmarks of single ops, run by pytest-benchmark."""
