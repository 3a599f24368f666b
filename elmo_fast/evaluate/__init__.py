"""What a model's vectors are worth: `elmo-fast evaluate`, tasks with published data, probes and baselines."""
