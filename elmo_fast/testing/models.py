"""Options of models for tests and benchmarks: the published sizes, a tiny model, and every shape of a model."""

import copy
from typing import Any

from elmo_fast.model.options import Options

FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
# LSTM cells, projection and highway layers of the published models, and of one for dry runs.
SIZES = {"tiny": (32, 16, 1), "small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}
TINY = {
    "lstm": {"dim": 8, "projection_dim": 4, "n_layers": 2, "use_skip_connections": True, "cell_clip": 3,
             "proj_clip": 3},
    "char_cnn": {"embedding": {"dim": 3}, "filters": [[1, 4], [2, 6]], "n_highway": 1, "n_characters": 262,
                 "max_characters_per_token": 50, "activation": "relu"},
}


def standard_options(size: str, **lstm) -> dict[str, Any]:
    """Content of a published model's `options.json`; keyword arguments replace entries of `lstm`."""
    if size not in SIZES:
        raise ValueError(f"size: expected one of {', '.join(SIZES)}, got {size!r}")
    cells, projection, highways = SIZES[size]
    return {
        "lstm": {"use_skip_connections": True, "n_layers": 2, "dim": cells, "projection_dim": projection,
                 "cell_clip": 3, "proj_clip": 3, **lstm},
        "char_cnn": {"activation": "relu", "filters": [[1, 4], [2, 8], [3, 12]] if size == "tiny" else FILTERS,
                     "n_highway": highways, "embedding": {"dim": 16}, "n_characters": 262,
                     "max_characters_per_token": 50},
    }


def tiny(**changes) -> dict[str, Any]:
    """Content of `TINY`'s `options.json`; `lstm__dim=16` changes `dim` in the section `lstm`."""
    content = copy.deepcopy(TINY)
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = content
        for name in sections:
            section = section[name]
        section[key] = value
    return content


def options(lstm: dict[str, Any] | None = None, char_cnn: dict[str, Any] | None = None) -> Options:
    """Options of a small model with odd sizes; the arguments replace keys of the two sections."""
    return Options.from_dict({
        "lstm": {"dim": 37, "projection_dim": 11, "n_layers": 2, "use_skip_connections": True, "cell_clip": 3,
                 "proj_clip": 3, **(lstm or {})},
        "char_cnn": {"embedding": {"dim": 5}, "filters": [[1, 3], [2, 6], [3, 9], [5, 7]], "n_highway": 2,
                     "n_characters": 262, "max_characters_per_token": 50, "activation": "relu", **(char_cnn or {})},
    })


SHAPES: dict[str, Options] = {
    "two layers": options(),
    "one layer": options({"n_layers": 1}),
    "four layers": options({"n_layers": 4}),
    "tanh": options(char_cnn={"activation": "tanh"}),
    "no highway": options(char_cnn={"n_highway": 0}),
    "no skip connections": options({"use_skip_connections": False}),
    "no projection": options({"dim": 11}),
    "no clips": options({"cell_clip": None, "proj_clip": None}),
    "filters as wide as the projection": options(char_cnn={"filters": [[1, 4], [4, 7]]}),
    "clips that fire": options({"cell_clip": 0.3, "proj_clip": 0.05}),
    "short tokens": options(char_cnn={"max_characters_per_token": 9}),
    "one filter as wide as a token": options(char_cnn={"filters": [[7, 8]], "max_characters_per_token": 7}),
}
