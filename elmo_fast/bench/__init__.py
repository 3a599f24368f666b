"""Measures how fast a model runs on this machine; shared by `elmo-fast bench` and the project's benchmarks."""
