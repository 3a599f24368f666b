"""Embedding on many machines, with Ray Data: docs/scaling.md."""
