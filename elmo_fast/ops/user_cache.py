"""The user's cache directory: downloaded models, and what was measured on a GPU. A file of its own for both floors."""

import os
from pathlib import Path

VARIABLE = "ELMO_FAST_CACHE"


def cache_directory() -> Path:
    """`ELMO_FAST_CACHE`, or `elmo-fast` in the user's cache; it need not exist."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmo-fast"
