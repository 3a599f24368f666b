"""Models on the C++ engine: batch mates, inference mode and forks."""

import os

import pytest
import torch

from elmo_fast import batch_to_ids
from tests.support.engines import needs_native
from tests.support.files import python
from tests.support.models import SENTENCES, bilm

pytestmark = needs_native


FORK = """
import multiprocessing
import numpy as np
import torch
from torch.nn.modules import module
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

def settings():
    hooks = [module._global_forward_hooks, module._global_forward_pre_hooks, _global_optimizer_post_hooks,
             _global_optimizer_pre_hooks]
    return [torch.get_num_threads(), torch.get_num_interop_threads(), *map(len, hooks),
            torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.get_default_dtype()]

def embed():
    vectors = list(elmo.embed(texts))
    return vectors, settings()

def load(precision):
    model = elmo_fast.load(precision=precision)
    return model.embed(texts[:2]), model.bilm.fingerprint()

torch.set_num_threads(2)
before = settings()
import elmo_fast
import elmo_fast.train.loop

elmo, texts = elmo_fast.load(), [" ".join(f"word{k * n % 997}" for k in range(30)) for n in range(30)]
expected, after = embed()  # on the threads of PyTorch, which the children lack
assert after == before
with multiprocessing.get_context("fork").Pool(2) as pool:
    calls = pool.apply_async(elmo.embed, (texts,)), pool.apply_async(embed)  # the first reads the model
    read, (inherited, in_child) = (call.get(timeout=200) for call in calls)
assert all(map(np.array_equal, read, expected)) and all(map(np.array_equal, inherited, expected))
assert in_child == before
for precision in ("highest", "low"):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        vectors, fingerprint = pool.apply_async(load, (precision,)).get(timeout=200)
    expected, of_parent = load(precision)
    assert all(map(np.array_equal, vectors, expected)) and fingerprint == of_parent
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_embeds_and_changes_no_setting_of_pytorch():
    """Uses the bundled model, since a small model does not start PyTorch's threads."""
    python("-c", FORK)


def test_inference_mode_does_not_affect_later_calls():
    model, ids = bilm(backend="native", state="zero"), batch_to_ids(SENTENCES)
    with torch.inference_mode():
        made_inside = bilm(backend="native", state="zero")
        inside = [torch.stack(network(ids).activations) for network in (model, made_inside, made_inside)]
    outside = torch.stack(model(ids).activations)
    assert all(torch.equal(layers, outside) for layers in inside)
    outside.add_(1)
