"""One layer of the two-direction projected LSTM: chooses the backend."""

import torch

from elmo_fast.ops import reference
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.checks import check_projected_lstm
from elmo_fast.ops.cpu import on_cpu, projected_lstm as native_lstm
from elmo_fast.ops.cuda import lstm as cuda_lstm
from elmo_fast.ops.device import to_device
from elmo_fast.ops.linear import linear
from elmo_fast.ops.precision import full_precision
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule
from elmo_fast.ops.torch import projected_lstm as torch_projected_lstm


def projected_lstm(
    inputs: torch.Tensor,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    initial_state: State | None = None,
    precomputed: bool = False,
    backend: str = "auto",
    precision: str = "highest",
    bounded: bool = False,
) -> tuple[torch.Tensor, State]:
    """See `reference.projected_lstm`; `backend` as in `elmo_fast.ops.backend`. Operands of 16 bits
    compute in fp32. `rows` may lie on the host.

    `bounded` where `inputs` are outputs of such a layer with the same `proj_clip`, which a GPU's fp16 need not scale.
    `precision` is what the native engines compute in, where this machine has it; the torch operations of the other
    backends follow `elmo_fast.ops.precision.numerics`. Where gradients are recorded the native engine computes in
    `highest`; it has none of second order.
    """
    check_projected_lstm(inputs, rows, schedule, state, weights, cell_clip, proj_clip, initial_state, precomputed)
    inputs, state = full_precision(inputs), tuple(map(full_precision, state))
    initial_state = None if initial_state is None else tuple(map(full_precision, initial_state))
    operands = inputs, *state, *weights[0], *weights[1], *(initial_state or ())
    chosen = resolve("projected_lstm", backend, *operands)
    clips = {"cell_clip": cell_clip, "proj_clip": proj_clip, "initial_state": initial_state}
    chosen = _able(chosen, backend, weights, precomputed and needs_gradient(operands), precomputed)
    if chosen == "native" and needs_gradient(operands):
        return native_lstm.projected_lstm_train(inputs, rows, schedule, state, weights, **clips)
    if chosen == "native" and inputs.device.type == "cuda":
        return cuda_lstm.projected_lstm(inputs, rows, schedule, state, weights, precision=precision, bounded=bounded,
                                        **clips)
    clips["precomputed"] = precomputed
    if chosen == "native":
        return native_lstm.projected_lstm(inputs, rows, schedule, state, weights, precision=on_cpu(precision), **clips)
    run = reference.projected_lstm if chosen == "reference" else torch_projected_lstm.projected_lstm
    full = tuple(tuple(map(full_precision, direction)) for direction in weights)
    return run(inputs, None if rows is None else to_device(rows, inputs.device), schedule, state, full, **clips)


def _able(chosen: str, backend: str, weights: tuple[LstmWeights, LstmWeights], products_with_gradients: bool,
          products: bool) -> str:
    """`chosen`, or `torch` for what the native engine does not know, unless it was asked for by name."""
    square = any(w_p is not None and w_p.shape[0] == w_p.shape[1] for _, _, w_p in weights)
    reason = "a projection to as many values as there are cells" if square else (
        "gradients of inputs that were precomputed before" if products_with_gradients else
        "inputs that were precomputed before on a GPU" if products and weights[0][0].device.type == "cuda" else None)
    if chosen != "native" or reason is None:
        return chosen
    if backend == "native":
        raise RuntimeError(f"backend: 'native' was asked for projected_lstm and is not available: it knows no {reason}")
    return "torch"


def input_projections(x: torch.Tensor, weights: tuple[LstmWeights, LstmWeights], *, backend: str = "auto") -> torch.Tensor:
    """x [R, I] -> x W + B of both directions, [R, 8 D], forward half first: `inputs` where they are `precomputed`.

    In the native engine's `highest` they have the bits that it computes from `x` itself.
    """
    width = x.shape[1]
    return torch.cat([linear(x, w[:width], b, backend=backend, precision="highest") for w, b, _ in weights], dim=1)


def accepts_input_projections(backend: str, precision: str, weights: tuple[LstmWeights, LstmWeights]) -> bool:
    """Whether `precomputed` inputs are of use: where no gradient is wanted, and products are fp32 in any case."""
    operands = [each for direction in weights for each in direction if each is not None]
    if any(each.is_meta for each in operands) or (
            torch.is_grad_enabled() and any(each.requires_grad for each in operands)):
        return False
    chosen = resolve("projected_lstm", backend, *operands)
    on_host = operands[0].device.type == "cpu"
    return on_host if chosen == "torch" else chosen == "native" and on_host and on_cpu(precision) == "highest"
