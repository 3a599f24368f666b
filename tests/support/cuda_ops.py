"""The CUDA implementations of the ops, called on tensors of any device."""

import contextlib
import inspect
import warnings

import pytest
import torch

from elmo_fast.ops.cuda import encoder, lstm
from elmo_fast.ops.schemas import LstmCall

IMPLEMENTATIONS = {**encoder.OPS, "projected_lstm": lstm.run}


def projected_lstm(*operands, **settings):
    """As `elmo_fast.ops.projected_lstm.projected_lstm`: outputs and the final state."""
    out, h, c, _ = lstm.run(*LstmCall(*operands, **settings).arguments())
    return out, (h, c)


def char_cnn(ids, char_embed, filters, activation, precision, bounded=False):
    weights, biases = ([pair[k] for pair in filters] for k in (0, 1))
    return torch.ops.elmo_fast.char_cnn(ids, char_embed, weights, biases, activation, precision, bounded, False)[0]


def highway(x, *weights_and_settings):
    *weights, precision, bounded = weights_and_settings
    return torch.ops.elmo_fast.highway(x, weights, None, precision, bounded)


def linear(x, weight, bias, precision, bounded=False):
    return torch.ops.elmo_fast.linear(x, [weight, bias], None, weight.shape[1], precision, bounded)


@contextlib.contextmanager
def registered_on_cpu():
    """In the body they replace the CPU's implementations in `torch.ops.elmo_fast`."""
    if "allow_override" not in inspect.signature(torch.library.Library.impl).parameters:
        pytest.skip("this torch does not replace an implementation")
    library = torch.library.Library("elmo_fast", "FRAGMENT")
    with warnings.catch_warnings(action="ignore"):  # torch warns of each one
        for name, implementation in IMPLEMENTATIONS.items():
            library.impl(name, implementation, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
