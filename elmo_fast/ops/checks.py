"""What an op's operands must be, checked before any kernel sees a pointer."""

import torch

from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule


def check_projected_lstm(inputs: torch.Tensor, rows: torch.Tensor | None, schedule: Schedule, state: State,
                         weights: tuple[LstmWeights, LstmWeights], cell_clip: float | None, proj_clip: float | None,
                         initial_state: State | None, precomputed: bool = False) -> None:
    """Raise `ValueError` naming the operand unless all fit together (see `reference.projected_lstm`)."""
    dim, projection, width = _check_weights(weights)
    slots, steps = schedule.slots.size, int(schedule.batch_sizes.sum())
    _check_shape("state[0]", state[0], (slots, 2 * projection))
    _check_shape("state[1]", state[1], (slots, 2 * dim))
    if initial_state is not None:
        _check_shape("initial_state[0]", initial_state[0], (2 * projection,))
        _check_shape("initial_state[1]", initial_state[1], (2 * dim,))
    if precomputed and rows is None:
        raise ValueError("rows: expected the row of inputs that each packed row reads, since inputs are precomputed; "
                         "got None")
    if rows is None:
        _check_shape("inputs", inputs, (steps, 2 * width))
    else:
        _check_shape("inputs", inputs, (inputs.shape[0], 8 * dim if precomputed else width))
        _check_rows(rows, steps, len(inputs))
    for name, clip in (("cell_clip", cell_clip), ("proj_clip", proj_clip)):
        if clip is not None and not clip > 0:
            raise ValueError(f"{name}: expected a number above 0, or None for no clipping, got {clip!r}")


def check_ids(ids: torch.Tensor, filters) -> None:
    """Raise `ValueError` unless `ids` are integers [N, C] with room for the widest filter."""
    widest = max(weight.shape[1] for weight, _ in filters)
    if ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] < widest:
        raise ValueError(f"ids: expected integers [tokens, characters], at least {widest} characters, "
                         f"got {ids.dtype} of shape {tuple(ids.shape)}")


def check_range(ids: torch.Tensor, largest: int) -> None:
    """Raise `ValueError` for ids on the CPU that are no characters; those on a GPU are not waited for."""
    if ids.device.type == "cpu" and ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) <= largest):
        raise ValueError(f"ids: expected character ids from 0 to {largest}, got {int(ids.min())} to {int(ids.max())}")


def check_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Raise `ValueError` unless x [N, K], weight [K, M] and bias [M] fit together."""
    if weight.dim() != 2:
        raise ValueError(f"weight: expected a matrix, got shape {tuple(weight.shape)}")
    _check_shape("x", x, (x.shape[0] if x.dim() else 0, weight.shape[0]))
    _check_shape("bias", bias, (weight.shape[1],))


def _check_weights(weights: tuple[LstmWeights, LstmWeights]) -> tuple[int, int, int]:
    """Sizes D, P and I of one layer, from weights whose shapes agree in both directions."""
    w, b, w_p = weights[0]
    dim = b.shape[0] // 4 if b.dim() == 1 else 0
    projection = dim if w_p is None else w_p.shape[-1]
    width = w.shape[0] - projection
    for direction, (w, b, w_p) in enumerate(weights):
        _check_shape(f"weights[{direction}] B", b, (4 * dim,))
        _check_shape(f"weights[{direction}] W", w, (width + projection, 4 * dim))
        if (w_p is None) != (weights[0][2] is None):
            raise ValueError("weights: expected W_P in both directions or in neither, got it in one")
        if w_p is not None:
            _check_shape(f"weights[{direction}] W_P", w_p, (dim, projection))
    return dim, projection, width


def _check_rows(rows: torch.Tensor, steps: int, count: int) -> None:
    _check_shape("rows", rows, (2, steps))
    if rows.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"rows: expected int32 or int64, got {rows.dtype}")
    if rows.device.type == "cpu" and rows.numel() and not (0 <= int(rows.min()) and int(rows.max()) < count):
        raise ValueError(f"rows: expected rows of inputs, 0 to {count - 1}, got {int(rows.min())} to {int(rows.max())}")


def _check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    if not tensor.is_floating_point() and name != "rows":
        raise ValueError(f"{name}: expected floating-point numbers, got {tensor.dtype}")
    if tuple(tensor.shape) != expected or min(expected) < 0:
        raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")
