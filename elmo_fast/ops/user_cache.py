"""The user's cache directory. A file of its own without torch: the help of the command imports it."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """For downloaded models and GPU measurements: `ELMO_FAST_CACHE`, or `elmo-fast` in the user's cache."""
    chosen = os.environ.get("ELMO_FAST_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmo-fast"
