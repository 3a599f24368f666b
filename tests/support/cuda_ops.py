"""The CUDA implementations of the ops, called on tensors of any device."""

import contextlib
import functools
import inspect
import itertools
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from elmo_fast.ops.backend import needs_gradient, triton_version
from elmo_fast.ops.char_cnn import cuda as char_cnn_cuda
from elmo_fast.ops.linear import cuda as linear_cuda
from elmo_fast.ops.projected_lstm.arguments import LstmCall
from elmo_fast.ops.projected_lstm.cuda import lstm

OPS = {**char_cnn_cuda.OPS, **linear_cuda.OPS, "projected_lstm": lstm.run, "projected_lstm_backward": lstm.run_backward}
# The char encoder's operands: precision, and whether fp16 is known to fit.
PRECISIONS = {"ieee": ("highest", False), "tf32": ("high", False), "fp16": ("medium", True), "bf16": ("medium", False)}
MAY_BE_REGISTERED = "allow_override" in inspect.signature(torch.library.Library.impl).parameters  # by this torch
devices = itertools.count(1000)  # Triton caches kernels by device: every use has its own


def projected_lstm(*operands, path=None, **settings):
    """As `elmo_fast.ops.projected_lstm.projected_lstm`: outputs and the final state. `path` as in `choice.choose`.

    Gradients are recorded where the ops are `registered_on_cpu`, or on a GPU.
    """
    call = LstmCall(*operands, **settings)
    save = needs_gradient(call.tensors)
    run = torch.ops.elmo_fast.projected_lstm if save else functools.partial(lstm.run, path=path)
    out, h, c, _ = run(*call.arguments(save=save))
    return out, (h, c)


def in_models(patch, precision):
    """From here on LSTMs of models run as on a GPU, in `precision` whatever the models' own."""
    def run(*operands, backend, **settings):
        return projected_lstm(*operands, **settings | {"precision": precision})

    patch.setattr("elmo_fast.nn.layers.lstm.projected_lstm", run)
    patch.setattr("elmo_fast.nn.layers.lstm.ElmoLstm.can_write", lambda *_: False)


def on_backend(op, *operands, backend, precision):
    """Call an op of `elmo_fast.ops`; for one of `PRECISIONS`, with ops `registered_on_cpu`, as a GPU runs the op."""
    if backend not in PRECISIONS:
        return op(*operands, backend=backend, precision=precision)
    run, (x, *weights), settings = getattr(torch.ops.elmo_fast, op.__name__), operands, PRECISIONS[backend]
    if op.__name__ == "char_cnn":
        embed, filters, activation = weights
        return run(x, embed, *map(list, zip(*filters)), activation, *settings, False)[0]
    return run(x, weights, *settings)


@contextlib.contextmanager
def registered_on_cpu(of=""):
    """In the body CUDA ops whose names begin with `of` replace the CPU's implementations in `torch.ops.elmo_fast`."""
    if not MAY_BE_REGISTERED:
        pytest.skip("this torch does not replace an implementation")
    with (torch.library._scoped_library("elmo_fast", "FRAGMENT") as library,
          mock.patch("elmo_fast.nn.layers.encoder.CharacterEncoder.is_packed", return_value=False)):
        with warnings.catch_warnings(action="ignore"):  # torch warns of every one
            for name in filter(lambda name: name.startswith(of), OPS):
                library.impl(name, OPS[name], "CPU", allow_override=True)
        yield


def triton_driver(patch, generation, load):
    """Kernels run on CPU tensors through Triton with a stand-in for its driver, which is returned.

    `load`(source, target, options) returns the function that runs a variant; called once per variant and `device`.
    """
    triton = pytest.importorskip("triton")
    if triton_version() < (3, 4):
        pytest.skip("needs Triton 3.4 or newer")
    from elmo_fast.kernels import configs, lstm_pointwise

    driver = SimpleNamespace(
        device=next(devices), get_current_device=lambda: driver.device, get_current_stream=lambda device: 0,
        get_current_target=lambda: triton.backends.compiler.GPUTarget("cuda", generation, 32))
    active = "_active" if hasattr(triton.runtime.driver, "_active") else "active"  # the latter in 3.4
    patch.setattr(triton.runtime.driver, active, driver)

    def compile(source, target, options, **_):
        run = load(source, target, options)
        return SimpleNamespace(function=0, packed_metadata=None, launch_metadata=lambda *_: None, run=run)

    patch.setattr(triton.compiler, "compile", compile)
    patch.setattr(configs, "generation_of", lambda device: generation)
    patch.setattr(lstm, "pointwise_of", lambda device: lstm_pointwise)
    return driver
