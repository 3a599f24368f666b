"""Benchmarks of elmo-fast. Run them from the repository root: python -m benchmarks.NAME --help."""
