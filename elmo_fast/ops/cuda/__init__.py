"""The ops on an NVIDIA GPU."""
