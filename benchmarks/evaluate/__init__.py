"""What a model's vectors are worth: tasks with published data, linear probes, baselines and published figures."""
