"""Chooses the LSTM's path on a GPU, graph or persistent, by a rule (docs/gpu.md)."""

import torch

from elmo_fast.arguments import check_choice
from elmo_fast.engine.backend import log_once
from elmo_fast.ops.projected_lstm.cuda import persistent
from elmo_fast.ops.projected_lstm.cuda.blocks import Operands

GRAPH, PERSISTENT = PATHS = "graph", "persistent"


def choose(device: torch.device, layer: Operands, slots: int, path: str | None = None) -> str:
    """The path of a call: persistent for up to 64 slots where its kernel can run the layer, else graph.

    A `path` that is given is taken; `RuntimeError` if it is the persistent path and cannot run.
    """
    if path:
        check_choice("path", path, PATHS)
    if path == GRAPH or (path is None and slots > persistent.MOST_SLOTS):
        return GRAPH
    reason = persistent.why_not(device, layer, slots)
    if reason and path:
        raise RuntimeError(f"path: the persistent path was asked for and does not run here: {reason}")
    if reason:
        log_once(f"projected_lstm: the persistent path is passed over: {reason}")
        return GRAPH
    return PERSISTENT
