import copy
import importlib
import io
import logging

import pytest
import torch

from elmo_fast import Elmo, ScalarMix, batch_to_ids, remove_boundaries
from elmo_fast.testing import SAME_MODEL
from tests.support.files import python
from tests.support.models import SENTENCES, bilm, options
from tests.support.models import files as model_files

IDS = batch_to_ids(SENTENCES)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tuple(map(str, model_files(tmp_path_factory.mktemp("model"), options())))


def first(elmo, *inputs):
    """The first representation and the mask."""
    output = elmo(*inputs)
    return output["elmo_representations"][0], output["mask"]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_output_is_the_mix_of_the_layers(files, norm, keep):
    elmo = Elmo(*files, 2, dropout=0, do_layer_norm=norm, keep_sentence_boundaries=keep)
    with torch.no_grad():
        elmo.scalar_mix_1.scalar_parameters[0].fill_(2.0)
        elmo.scalar_mix_1.gamma.fill_(0.3)
    output = elmo(IDS)
    assert set(output) == {"elmo_representations", "mask"} and output["mask"].dtype == torch.int64
    assert elmo.get_output_dim() == 22 and elmo._elmo_lstm.num_layers == 3
    activations, mask = bilm()(IDS)
    assert len(output["elmo_representations"]) == 2
    for k, actual in enumerate(output["elmo_representations"]):
        expected = getattr(elmo, f"scalar_mix_{k}")(activations, mask)
        expected, expected_mask = (expected * mask[..., None], mask) if keep else remove_boundaries(expected, mask)
        assert torch.allclose(actual, expected, atol=SAME_MODEL)
        assert torch.equal(output["mask"], expected_mask.long()) and not actual[~expected_mask].any()


def test_four_dimensions(files):
    ids = torch.stack([batch_to_ids(SENTENCES[:3]), batch_to_ids([*SENTENCES[3:5], SENTENCES[0]])], dim=1)
    flat, flat_mask = first(Elmo(*files, 1, dropout=0), ids.view(6, -1, 50))
    actual, mask = first(Elmo(*files, 1, dropout=0), ids)
    assert actual.shape == (3, 2, 11, 22) and torch.equal(actual.view(6, 11, 22), flat)
    assert torch.equal(mask.view(6, 11), flat_mask)


def test_dropout_comes_after_the_mix(files):
    torch.manual_seed(0)
    elmo = Elmo(*files, 1, dropout=0.5, state="zero")
    dropped, whole = first(elmo, IDS[:1])[0], first(elmo.eval(), IDS[:1])[0]
    nonzero = dropped != 0
    assert 0.3 < nonzero.float().mean() < 0.7
    assert torch.allclose(dropped[nonzero], 2 * whole[nonzero], atol=1e-5)


def test_module_argument(files):
    class Doubled(torch.nn.Module):
        num_layers = 3

        def forward(self, inputs, word_inputs):
            assert word_inputs is words
            mask = torch.ones(inputs.shape[0], inputs.shape[1] + 2, dtype=torch.int64)
            return {"activations": [torch.full((*mask.shape, 4), float(k)) for k in range(3)], "mask": mask}

    for words, cached in ((None, None), (torch.tensor([[1, 2]]), ["a", "b"])):
        elmo = Elmo(None, None, 1, dropout=0, module=Doubled(), vocab_to_cache=cached)
        assert torch.equal(first(elmo, IDS[:1, :2], words)[0], torch.ones(1, 2, 4))
    assert torch.equal(first(Elmo(None, None, 1, dropout=0, module=bilm()), IDS)[0],
                       first(Elmo(*files, 1, dropout=0), IDS)[0])


def test_word_inputs_without_a_cache_give_a_warning(files, caplog):
    with caplog.at_level(logging.WARNING):
        actual, _ = first(Elmo(*files, 1, dropout=0), IDS[:1], torch.ones(1, 11, dtype=torch.int64))
    assert "no vocabulary is cached" in caplog.text
    assert torch.equal(actual, first(Elmo(*files, 1, dropout=0), IDS[:1])[0])


def test_copies_pickles_and_moves(files):
    elmo = Elmo(*files, 1, dropout=0)
    elmo(IDS)
    stored = io.BytesIO()
    torch.save(elmo, stored)
    stored.seek(0)
    clones = [copy.deepcopy(elmo), torch.load(stored, weights_only=False)]
    expected, _ = first(elmo, IDS)
    for clone in clones:
        assert torch.equal(first(clone, IDS)[0], expected)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        actual, _ = first(copy.deepcopy(clones[0]).to("cpu", dtype), IDS)
        assert actual.dtype == dtype and torch.isfinite(actual).all()


def random_layers(count=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 4, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("norm", [False, True])
def test_mixture(norm):
    """Layer norm uses one mean and one deviation over the unmasked elements of all sentences."""
    mix, tensors = ScalarMix(3, do_layer_norm=norm and "scalar_norm_reg"), random_layers()
    with torch.no_grad():
        for parameter, value in zip(mix.parameters(), [0.5, 0.1, -0.2, 0.7]):
            parameter.fill_(value)
    assert mix.gamma == 0.5
    shares = torch.softmax(torch.tensor([0.1, -0.2, 0.7]), 0)
    real = [tensor[MASK.bool()].double() for tensor in tensors]
    normed = [(tensor - x.mean()) / (x.var(unbiased=False) + 1e-12).sqrt() for tensor, x in zip(tensors, real)]
    expected = 0.5 * sum(share * tensor for share, tensor in zip(shares, normed if norm else tensors))
    for mask in (MASK, MASK.bool(), MASK.int(), MASK.float(), *[None] * (not norm)):
        assert torch.allclose(mix(tensors, mask), expected.float(), atol=1e-6 if norm else 1e-8)


def test_replicas_of_data_parallel(files, monkeypatch):
    """DataParallel's own `replicate`, with a broadcast that copies tensors on the CPU."""
    replicate = importlib.import_module("torch.nn.parallel.replicate")
    monkeypatch.setattr(replicate, "_broadcast_coalesced_reshape",
                        lambda tensors, devices, detach=False: [[t.clone() for t in tensors] for _ in devices])
    alone, copied = (Elmo(*files, 1, requires_grad=True, dropout=0) for _ in range(2))
    parts = [first(replica, ids)[0] for replica, ids in zip(replicate.replicate(copied, [0, 1]), IDS.split(3))]
    expected, _ = first(alone, IDS)
    assert torch.allclose(torch.cat(parts), expected, atol=SAME_MODEL)
    for output in (torch.cat(parts), expected):
        output.sin().sum().backward()
    for (name, value), copied_value in zip(alone.named_parameters(), copied.parameters(), strict=True):
        assert value.grad.any() and torch.allclose(value.grad, copied_value.grad, rtol=1e-4, atol=1e-5), name


DISTRIBUTED = """
import sys
import torch
from elmo_fast import Elmo, batch_to_ids
options, weights, rendezvous = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method="file://" + rendezvous, rank=0, world_size=1)
alone, wrapped = (Elmo(options, weights, 1, requires_grad=True, dropout=0) for _ in range(2))
for module in (alone, torch.nn.parallel.DistributedDataParallel(wrapped)):
    ids = batch_to_ids([["One", "sentence", "."], [], ["Another"]])
    module(ids)["elmo_representations"][0].sin().sum().backward()
torch.distributed.destroy_process_group()
pairs = list(zip(alone.parameters(), wrapped.parameters()))
assert all(one.grad.abs().sum() > 0 for one, _ in pairs)
print(max(float((one.grad - other.grad).abs().max()) for one, other in pairs))
"""


@pytest.mark.long
def test_distributed_data_parallel(files, tmp_path):
    """A separate process, so that a hang of the process group ends with it."""
    process = python("-c", DISTRIBUTED, *files, tmp_path / "rendezvous", timeout=120, GLOO_SOCKET_IFNAME="lo")
    assert float(process.stdout) < 1e-6
