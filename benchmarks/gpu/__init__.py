"""Measurements on an NVIDIA GPU (run.sh), and what can be said without one (read_sass)."""
