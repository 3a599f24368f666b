"""How fast a model runs on this machine: what `elmo-fast bench` and the benchmarks of the project share."""
