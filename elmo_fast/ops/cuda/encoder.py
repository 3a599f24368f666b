"""The char encoder on an NVIDIA GPU, in Triton kernels: packs weights once, chooses operand types, gives gradients.

The kernels are registered with `torch.library` as `torch.ops.elmo_fast.char_cnn`, `.highway` and `.product`, so that
`torch.compile` sees one op each. `operands` says what their products run on: `ieee` is fp32 throughout, `tf32` lets the
tensor cores round fp32 operands, `fp16` and `bf16` are the types of operands and results. Sums are fp32 always.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence

import torch

from elmo_fast.ops import reference
from elmo_fast.ops.precision import active_precision, full_precision, numerics
from elmo_fast.ops.torch import char_cnn as torch_char_cnn
from elmo_fast.ops.weight_cache import cached

RESULTS = {"ieee": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_library.define("char_cnn(Tensor ids, Tensor char_embed, Tensor[] weights, Tensor[] biases, str activation, "
                "str operands) -> Tensor")
_library.define("char_cnn_gradient(Tensor grad, Tensor ids, Tensor char_embed, Tensor[] weights, Tensor[] biases, "
                "str activation, str operands, bool[] needed) -> Tensor[]")
_library.define("highway(Tensor x, Tensor w_carry, Tensor b_carry, Tensor w_transform, Tensor b_transform, "
                "str operands) -> Tensor")
_library.define("product(Tensor x, Tensor weight, Tensor bias, str operands) -> Tensor")


def char_cnn(ids: torch.Tensor, char_embed: torch.Tensor, filters: Sequence[tuple[torch.Tensor, torch.Tensor]],
             activation: str, precision: str | None = None, bounded: bool = False) -> torch.Tensor:
    """As `reference.char_cnn`, the result in the type of the operands (`operands_of`)."""
    weights, biases = ([pair[k] for pair in filters] for k in (0, 1))
    operands = operands_of(precision, bounded)
    return torch.ops.elmo_fast.char_cnn(ids, char_embed, weights, biases, activation, operands)


def highway(x: torch.Tensor, w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
            b_transform: torch.Tensor, precision: str | None = None, bounded: bool = False) -> torch.Tensor:
    """As `reference.highway`, the result in the type of the operands (`operands_of`)."""
    operands = operands_of(precision, bounded)
    return torch.ops.elmo_fast.highway(x, w_carry, b_carry, w_transform, b_transform, operands)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, precision: str | None = None,
           bounded: bool = False) -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] -> x W + b, fp32 [N, M]."""
    return torch.ops.elmo_fast.product(x, weight, bias, operands_of(precision, bounded))


def operands_of(precision: str | None, bounded: bool) -> str:
    """What products run on in a precision, by default that of `precision.numerics` around the call.

    `medium` is fp16 where the caller knows that every value fits (`operands.fits_fp16`), else bf16.
    """
    precision = active_precision() if precision is None else precision
    return {"highest": "ieee", "high": "tf32", "medium": "fp16" if bounded else "bf16"}[precision]


# ---- forward -------------------------------------------------------------------------------


def _run_char_cnn(ids, char_embed, weights, biases, activation, operands):
    from elmo_fast.kernels import char_cnn as kernel

    def pack(tensors):
        return kernel.PackedFilters(tensors[0], tensors[1:][:len(weights)], tensors[1:][len(weights):], operands)

    filters = cached((char_embed, *weights, *biases), f"char_cnn {operands}", pack)
    out = torch.empty(len(ids), sum(filters.counts), dtype=RESULTS[operands], device=ids.device)
    with _on(ids.device):
        kernel.char_cnn(ids.long().contiguous(), filters, activation, torch_char_cnn.PADDING_ID, out)
    return out


def _run_highway(x, w_carry, b_carry, w_transform, b_transform, operands):
    from elmo_fast.kernels import highway as kernel

    matrices = [_packed_matrix(each, operands) for each in (w_carry, w_transform)]
    x = x.to(RESULTS[operands]).contiguous()
    out = torch.empty_like(x)
    with _on(x.device):
        kernel.highway(x, matrices[0], b_carry.float(), matrices[1], b_transform.float(), operands, out)
    return out


def _run_product(x, weight, bias, operands):
    from elmo_fast.kernels import highway as kernel

    if operands == "ieee":  # PyTorch's own fp32 product is the fastest there is
        with numerics("highest", x.device):
            return torch.addmm(bias.float(), x.float(), weight.float())
    matrix = _packed_matrix(weight, operands)
    x = x.to(RESULTS[operands]).contiguous()
    out = torch.empty(len(x), weight.shape[1], dtype=torch.float32, device=x.device)
    with _on(x.device):
        kernel.linear(x, matrix, bias.float(), operands, out)
    return out


def _packed_matrix(weight: torch.Tensor, operands: str) -> torch.Tensor:
    from elmo_fast.kernels import highway as kernel

    return cached((weight,), f"product {operands}",
                  lambda tensors: kernel.pack_product(tensors[0], operands, RESULTS[operands]))


def _on(device: torch.device):
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


# ---- gradients -----------------------------------------------------------------------------


def _save_char_cnn(ctx, inputs, output):
    ids, char_embed, weights, biases, ctx.activation, ctx.operands = inputs
    ctx.count = len(weights)
    ctx.save_for_backward(ids, char_embed, *weights, *biases)


def _char_cnn_gradient(ctx, grad):
    ids, *tensors = ctx.saved_tensors
    needed = [ctx.needs_input_grad[1], *ctx.needs_input_grad[2], *ctx.needs_input_grad[3]]
    weights, biases = tensors[1:][:ctx.count], tensors[1:][ctx.count:]
    given = iter(torch.ops.elmo_fast.char_cnn_gradient(grad, ids, tensors[0], weights, biases, ctx.activation,
                                                       ctx.operands, needed))
    found = [next(given) if each else None for each in needed]
    return None, found[0], found[1:][:ctx.count], found[1:][ctx.count:], None, None


def _run_char_cnn_gradient(grad, ids, char_embed, weights, biases, activation, operands, needed):
    filters = list(zip(weights, biases))
    with _autograd_enabled():
        return torch_char_cnn.gradients(ids, char_embed, filters, activation, grad, needed,
                                        lambda: _gradient_numerics(operands, ids.device))


def _autograd_enabled():
    """Enable autograd inside an op of our own, which torch runs below it."""
    below = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView"):
        below = below.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), below)


def _no_second_derivatives(ctx, *_):
    raise RuntimeError("char_cnn: the native backend has no second derivatives; backend='torch' has them")


def _save_tensors(ctx, inputs, output):
    *tensors, ctx.operands = inputs
    ctx.save_for_backward(*tensors)


def _recomputed(run: Callable, ctx, grad):
    """Gradients of `run` at what was saved, computed again in fp32; none of `operands`."""
    leaves = [each.detach().requires_grad_(needed) for each, needed in zip(ctx.saved_tensors, ctx.needs_input_grad)]
    with torch.enable_grad(), _gradient_numerics(ctx.operands, grad.device):
        value = run(*map(full_precision, leaves))
        found = iter(torch.autograd.grad(value, [each for each in leaves if each.requires_grad], grad.to(value.dtype)))
    return *(next(found) if each.requires_grad else None for each in leaves), None


def _gradient_numerics(operands: str, device: torch.device):
    """Gradients of 16-bit products are computed in tf32: what is recomputed then stays close to the true values."""
    return numerics("highest" if operands == "ieee" else "high", device)


# ---- registration --------------------------------------------------------------------------


def _fake_char_cnn(ids, char_embed, weights, biases, activation, operands):
    return char_embed.new_empty(ids.shape[0], sum(each.shape[-1] for each in weights), dtype=RESULTS[operands])


def _fake_char_cnn_gradient(grad, ids, char_embed, weights, biases, activation, operands, needed):
    return [torch.empty_like(each) for each, wanted in zip([char_embed, *weights, *biases], needed) if wanted]


# name: kernel, fake implementation, gradient, and what saves tensors for it
OPS = {"char_cnn": (_run_char_cnn, _fake_char_cnn, _char_cnn_gradient, _save_char_cnn),
       "char_cnn_gradient": (_run_char_cnn_gradient, _fake_char_cnn_gradient, _no_second_derivatives, None),
       "highway": (_run_highway, lambda x, *weights: x.new_empty(x.shape, dtype=RESULTS[weights[-1]]),
                   functools.partial(_recomputed, reference.highway), _save_tensors),
       "product": (_run_product, lambda x, weight, *_: x.new_empty(len(x), weight.shape[1], dtype=torch.float32),
                   functools.partial(_recomputed, lambda x, weight, bias: x @ weight + bias), _save_tensors)}

for _name, (_run, _fake, _gradient, _save) in OPS.items():
    _library.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"elmo_fast::{_name}", _fake, lib=_library)
    torch.library.register_autograd(f"elmo_fast::{_name}", _gradient, setup_context=_save, lib=_library)
