"""Calls that type checkers accept and refuse: `make lint` has mypy read this file, and nothing runs it.

mypy reports an "ignore" that nothing needs, so that a call which it no longer refuses is an error.
"""

from typing import assert_type

import numpy as np
import torch

from elmo_fast import Elmo, batch_to_ids, compare, load

elmo = load("original", precision="medium")
load(precision="fp16")  # type: ignore[arg-type]

assert_type(elmo.embed(["A text."], layers="top", state="zero", pool="mean"), list[np.ndarray])
elmo.embed(["A text."], layers=1)
elmo.embed(["A text."], layers=[0.2, 0.5, 0.3])
elmo.embed(["A text."], layers="last")  # type: ignore[arg-type]
elmo.stream(["A text."], pool="avg")  # type: ignore[arg-type]
elmo.encode(["A text."], state="none")  # type: ignore[arg-type]
elmo.save_vectors("o.h5", ["A text."], pool="sum")  # type: ignore[arg-type]
compare(elmo, "A text.", "Another.", state="carry")  # type: ignore[arg-type]


def representations(module: Elmo) -> tuple[list[torch.Tensor], torch.Tensor]:
    output = module(batch_to_ids([["A", "text", "."]]))
    output["masks"]  # type: ignore[typeddict-item]
    return output["elmo_representations"], output["mask"]
