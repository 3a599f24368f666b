"""The ops in `torch.library`: one schema each, with its fake implementation and its gradient, on every device.

Implementations are registered under these names by `ops/cpu` and `ops/cuda`, so that `torch.compile` sees one op.
`weights` are [W_carry, b_carry, W_transform, b_transform] of a highway layer, [W, b] of a product, and forward then
backward W, B and, where there is one, W_P of an LSTM. On the CPU `packed` holds them as the engine reads them, and
`weights` are given for gradients only: they may hold no data.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from elmo_fast.ops import reference
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.precision import full_precision, numerics
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule

library = torch.library.Library("elmo_fast", "FRAGMENT")

_CHAR_CNN = ("Tensor ids, Tensor char_embed, Tensor[] weights, Tensor[] biases, str activation, str precision, "
             "bool bounded")
_LSTM = ("Tensor inputs, Tensor? rows, Tensor? slots, Tensor batch_sizes, Tensor? sequence_starts, Tensor h, Tensor c, "
         "Tensor[] weights, Tensor? initial_h, Tensor? initial_c, int width, float cell_clip, float proj_clip")
library.define(f"char_cnn({_CHAR_CNN}, bool save) -> (Tensor, Tensor)")
library.define(f"char_cnn_backward(Tensor grad, Tensor values, Tensor picks, {_CHAR_CNN}, bool[] needed) -> Tensor[]")
library.define("highway(Tensor x, Tensor[] weights, Tensor? packed, str precision, bool bounded) -> Tensor")
library.define("linear(Tensor x, Tensor[] weights, Tensor? packed, int outputs, str precision, bool bounded) -> Tensor")
library.define(f"projected_lstm({_LSTM}, Tensor? packed, bool precomputed, str precision, bool bounded, bool save) "
               "-> (Tensor, Tensor, Tensor, Tensor)")
library.define(f"projected_lstm_backward(Tensor? grad_out, Tensor? grad_h, Tensor? grad_c, Tensor saved, {_LSTM}, "
               "bool[] needed) -> Tensor[]")

RESULTS = {"ieee": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def operands_of(precision: str, bounded: bool) -> str:
    """The operand type of a GPU's products: `medium` is fp16 where every value is known to fit, else bf16."""
    return {"highest": "ieee", "high": "tf32", "medium": "fp16" if bounded else "bf16"}[precision]


def no_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """[0], in place of a gradient that is not needed."""
    return tensor.new_empty(0)


def _memory(tensors, needed) -> list[torch.Tensor]:
    return [tensor.new_empty(tensor.shape) if wanted else no_gradient(tensor)
            for tensor, wanted in zip(tensors, needed)]


def _wanted(gradients, needed) -> list[torch.Tensor | None]:
    return [gradient if wanted else None for gradient, wanted in zip(gradients, needed)]


# char_cnn: values [N, filters]; with `save`, on the CPU, also the window that each value was picked from.
def _fake_char_cnn(ids, char_embed, weights, biases, activation, precision, bounded, save):
    shape = ids.shape[0], sum(weight.shape[-1] for weight in weights)
    values = char_embed.new_empty(shape, dtype=RESULTS[operands_of(precision, bounded)])
    return values, ids.new_empty(shape if save else 0, dtype=torch.int32)


def _fake_char_cnn_backward(grad, values, picks, ids, char_embed, weights, biases, *settings_and_needed):
    return _memory((char_embed, *weights, *biases), settings_and_needed[-1])


def _save_char_cnn(ctx, inputs, output):
    ids, char_embed, weights, biases, *ctx.settings, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, ids, char_embed, *weights, *biases)


def _char_cnn_gradient(ctx, grad, _):
    values, picks, ids, char_embed, *parts = ctx.saved_tensors
    count = len(parts) // 2
    needed = [ctx.needs_input_grad[1], *ctx.needs_input_grad[2], *ctx.needs_input_grad[3]]
    if grad is None:
        return None, None, [None] * count, [None] * count, *[None] * 4
    found = torch.ops.elmo_fast.char_cnn_backward(grad, values, picks, ids, char_embed, parts[:count], parts[count:],
                                                  *ctx.settings, needed)
    char_embed, *parts = _wanted(found, needed)
    return None, char_embed, parts[:count], parts[count:], *[None] * 4


# highway and linear: on the CPU products with gradients run in torch.
def _save_product(ctx, inputs, output):
    x, weights, *settings = inputs
    ctx.precision, ctx.settings = settings[-2], len(settings)
    ctx.save_for_backward(x, *weights)


def _recomputed(run: Callable, ctx, grad):
    """Gradients of `run` at the saved tensors, recomputed in fp32, or in tf32 where the products had 16 bits."""
    needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[1]]
    leaves = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(ctx.saved_tensors, needed)]
    with torch.enable_grad(), gradient_numerics(ctx.precision, grad.device):
        value = run(*map(full_precision, leaves))
        found = iter(torch.autograd.grad(value, [leaf for leaf in leaves if leaf.requires_grad], grad.to(value.dtype)))
    x, *weights = (next(found) if wanted else None for wanted in needed)
    return x, weights, *[None] * ctx.settings


def gradient_numerics(precision: str, device: torch.device):
    """What gradients are computed in: tf32 for products of 16 bits, which stays close to the true values."""
    return numerics("highest" if precision == "highest" else "high", device)


def _fake_highway(x, weights, packed, precision, bounded):
    return torch.empty_like(x, dtype=torch.float32 if packed is not None else RESULTS[operands_of(precision, bounded)])


def _fake_linear(x, weights, packed, outputs, precision, bounded):
    return x.new_empty(x.shape[0], outputs, dtype=torch.float32)


@dataclass(frozen=True)
class LstmCall:
    """One call of `reference.projected_lstm`, and what `elmo_fast.ops.projected_lstm` adds to it."""

    inputs: torch.Tensor
    rows: torch.Tensor | None
    schedule: Schedule
    state: State
    weights: tuple[LstmWeights, LstmWeights]
    cell_clip: float | None = None
    proj_clip: float | None = None
    initial_state: State | None = None
    precomputed: bool = False
    precision: str = "highest"
    bounded: bool = False

    @property
    def width(self) -> int:
        """Columns of x in x W + B."""
        return len(self.weights[0][0]) - self.state[0].shape[1] // 2

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The operands that hold floats."""
        return [self.inputs, *self.state, *flat_weights(self.weights), *(self.initial_state or ())]

    def arguments(self, packed: torch.Tensor | None = None, save: bool = False) -> tuple:
        """The arguments of the op, the schedule on the host; without `slots` where those are in the caller's order."""
        schedule, starts, initial = self.schedule, None, (None, None)
        if self.initial_state is not None:
            starts, initial = torch.from_numpy(schedule.sequence_starts), self.initial_state
        return (self.inputs, self.rows, None if schedule.is_in_order else torch.from_numpy(schedule.slots),
                torch.from_numpy(schedule.batch_sizes), starts, *self.state,
                flat_weights(self.weights) if save or packed is None else [], *initial, self.width,
                limit(self.cell_clip), limit(self.proj_clip), packed, self.precomputed, self.precision, self.bounded,
                save)


def flat_weights(weights: tuple[LstmWeights, LstmWeights]) -> list[torch.Tensor]:
    """W, B and, where there is one, W_P; forward then backward."""
    return [part for direction in weights for part in direction if part is not None]


def limit(clip: float | None) -> float:
    """A clip as a number: infinite for none."""
    return math.inf if clip is None else float(clip)


# projected_lstm: outputs [S, 2 P], h and c in the caller's order; with `save` what the backward reads, uint8.
def _fake_lstm(inputs, rows, slots, batch_sizes, sequence_starts, h, c, weights, initial_h, initial_c, width, cell_clip,
               proj_clip, packed, precomputed, precision, bounded, save):
    count, saved = inputs.shape[0] if rows is None else rows.shape[1], 0
    if save:
        size = functools.partial(native_module()[0].lstm_saved_size, int(width), c.shape[1] // 2, h.shape[1] // 2)
        saved = size(0) + (size(1) - size(0)) * count
    shapes = (count, h.shape[1]), h.shape, c.shape
    return *(h.new_empty(shape, dtype=torch.float32) for shape in shapes), h.new_empty(saved, dtype=torch.uint8)


def _fake_lstm_backward(grad_out, grad_h, grad_c, saved, inputs, rows, slots, batch_sizes, sequence_starts, h, c,
                        weights, initial_h, initial_c, width, cell_clip, proj_clip, needed):
    return lstm_gradients(inputs, h, c, weights, initial_h, initial_c, needed)


def lstm_gradients(inputs, h, c, weights, initial_h, initial_c, needed) -> list[torch.Tensor]:
    """Memory for the gradients in their order; [0] for those of inputs and weights that are not needed."""
    of_inputs, *of_weights = _memory((inputs, *weights), (needed[0], *needed[3:-2]))
    of_h, of_c, *of_initial = (h.new_empty(0 if tensor is None else tensor.shape)
                               for tensor in (h, c, initial_h, initial_c))
    return [of_inputs, of_h, of_c, *of_weights, *of_initial]


def _save_lstm(ctx, inputs, output):
    *tensors, weights, initial_h, initial_c, width, cell_clip, proj_clip = inputs[:13]
    ctx.settings = width, cell_clip, proj_clip
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[3], *tensors, initial_h, initial_c, *weights)


def _lstm_gradient(ctx, grad_out, grad_h, grad_c, _):
    saved, *tensors = ctx.saved_tensors
    need = ctx.needs_input_grad
    needed = [bool(wanted) for wanted in (need[0], need[5], need[6], *need[7], need[8], need[9])]
    found = torch.ops.elmo_fast.projected_lstm_backward(grad_out, grad_h, grad_c, saved, *tensors[:7], tensors[9:],
                                                        *tensors[7:9], *ctx.settings, needed)
    inputs, h, c, *weights, initial_h, initial_c = _wanted(found, needed)
    return inputs, *[None] * 4, h, c, weights, initial_h, initial_c, *[None] * 8


def _no_second_derivatives(op: str, ctx, *_):
    raise RuntimeError(f"{op}: the native backend has no second derivatives; backend='torch' has them")


_OPS = {  # name: fake implementation, gradient, and what saves tensors for it
    "char_cnn": (_fake_char_cnn, _char_cnn_gradient, _save_char_cnn),
    "char_cnn_backward": (_fake_char_cnn_backward, functools.partial(_no_second_derivatives, "char_cnn"), None),
    "highway": (_fake_highway, functools.partial(_recomputed, reference.highway), _save_product),
    "linear": (_fake_linear, functools.partial(_recomputed, lambda x, weight, bias: x @ weight + bias), _save_product),
    "projected_lstm": (_fake_lstm, _lstm_gradient, _save_lstm),
    "projected_lstm_backward": (_fake_lstm_backward, functools.partial(_no_second_derivatives, "projected_lstm"), None)}

for _name, (_fake, _gradient, _save) in _OPS.items():
    torch.library.register_fake(f"elmo_fast::{_name}", _fake, lib=library)
    torch.library.register_autograd(f"elmo_fast::{_name}", _gradient, setup_context=_save, lib=library)
