import copy
import io
import logging
import os
import subprocess
import sys

import pytest
import torch

from elmo_fast import ConfigurationError, Elmo, batch_to_ids, remove_boundaries
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES, bilm, options
from tests.support.models import files as model_files

WORDS = ["", "The", "children", "rained", "."]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tuple(map(str, model_files(tmp_path_factory.mktemp("model"), options())))


def test_call_as_allennlp_makes_it(files):
    elmo = Elmo(*files, 2, dropout=0)
    output = elmo(batch_to_ids(SENTENCES))
    assert set(output) == {"elmo_representations", "mask"}
    assert [tuple(each.shape) for each in output["elmo_representations"]] == [(6, 11, 22)] * 2
    assert output["mask"].dtype == torch.int64
    assert output["mask"].sum(1).tolist() == [len(sentence) for sentence in SENTENCES]
    assert elmo.get_output_dim() == 22 and elmo._elmo_lstm.num_layers == 3


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_is_the_mix_of_the_layers(files, norm, keep):
    elmo = Elmo(*files, 2, dropout=0, do_layer_norm=norm, keep_sentence_boundaries=keep)
    with torch.no_grad():
        elmo.scalar_mix_1.scalar_parameters[0].fill_(2.0)
        elmo.scalar_mix_1.gamma.fill_(0.3)
    output = elmo(batch_to_ids(SENTENCES))
    activations, mask = bilm()(batch_to_ids(SENTENCES))
    for k, found in enumerate(output["elmo_representations"]):
        expected = getattr(elmo, f"scalar_mix_{k}")(activations, mask)
        if keep:
            assert torch.allclose(found, expected * mask[..., None], atol=SAME_MODEL)
            assert not found[~mask].any() and torch.equal(output["mask"], mask.long())
        else:
            inner, inner_mask = remove_boundaries(expected, mask)
            assert torch.allclose(found, inner, atol=SAME_MODEL)
            assert torch.equal(output["mask"], inner_mask.long())
            assert not found[output["mask"] == 0].any()


def test_four_dimensions(files):
    ids = torch.stack([batch_to_ids(SENTENCES[:3]), batch_to_ids([*SENTENCES[3:5], SENTENCES[0]])], dim=1)
    flat = Elmo(*files, 1, dropout=0)(ids.view(6, -1, 50))
    output = Elmo(*files, 1, dropout=0)(ids)
    assert output["elmo_representations"][0].shape == (3, 2, 11, 22)
    assert torch.equal(output["elmo_representations"][0].view(6, 11, 22), flat["elmo_representations"][0])
    assert torch.equal(output["mask"].view(6, 11), flat["mask"])


def test_dropout_comes_after_the_mix(files):
    torch.manual_seed(0)
    elmo = Elmo(*files, 1, dropout=0.5, state="zero")
    ids = batch_to_ids(SENTENCES[:1])
    dropped = elmo(ids)["elmo_representations"][0]
    whole = elmo.eval()(ids)["elmo_representations"][0]
    kept = dropped != 0
    assert 0.3 < kept.float().mean() < 0.7
    assert torch.allclose(dropped[kept], 2 * whole[kept], atol=1e-5)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_gradients(files, requires_grad):
    elmo = Elmo(*files, 2, requires_grad=requires_grad)
    output = elmo(batch_to_ids(SENTENCES))
    sum(each.sin().sum() for each in output["elmo_representations"]).backward()
    for name, value in elmo.named_parameters():
        if name.startswith("scalar_mix") or requires_grad:
            assert value.grad is not None and value.grad.abs().sum() > 0, name
        else:
            assert value.grad is None and not value.requires_grad, name


def test_trains_step_after_step(files):
    elmo = Elmo(*files, 1, requires_grad=True, dropout=0)
    optimizer = torch.optim.SGD(elmo.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        elmo._elmo_lstm.reset_states()
        loss = elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.99 * losses[0]


def test_given_module(files):
    class Doubled(torch.nn.Module):
        num_layers = 3

        def forward(self, inputs, word_inputs):
            assert word_inputs is None
            mask = torch.ones(inputs.shape[0], inputs.shape[1] + 2, dtype=torch.int64)
            return {"activations": [torch.full((*mask.shape, 4), float(k)) for k in range(3)], "mask": mask}

    output = Elmo(None, None, 1, dropout=0, module=Doubled())(batch_to_ids([["a", "b"]]))
    assert torch.equal(output["elmo_representations"][0], torch.ones(1, 2, 4))
    ours = Elmo(None, None, 1, dropout=0, module=bilm())(batch_to_ids(SENTENCES))
    assert torch.equal(ours["elmo_representations"][0],
                       Elmo(*files, 1, dropout=0)(batch_to_ids(SENTENCES))["elmo_representations"][0])
    with pytest.raises(ConfigurationError, match="module: expected options_file and weight_file to be None"):
        Elmo(*files, 1, module=Doubled())


def test_cached_words_equal_their_characters(files):
    sentences = [["The", "children", "."], ["rained"], ["."]]
    numbers = torch.tensor([[1, 2, 4], [3, 0, 0], [4, 0, 0]])
    cached, plain = (Elmo(*files, 1, dropout=0, vocab_to_cache=words) for words in (WORDS, None))
    for _ in range(2):
        one = cached(batch_to_ids(sentences), numbers)
        other = plain(batch_to_ids(sentences))
        assert torch.equal(one["mask"], other["mask"])
        assert torch.allclose(one["elmo_representations"][0], other["elmo_representations"][0], atol=SAME_MODEL)
    stacked = cached(batch_to_ids(sentences)[:, None], numbers[:, None])
    assert stacked["elmo_representations"][0].shape == (3, 1, 3, 22)


def test_words_beyond_the_cache_are_read_off_their_characters(files):
    sentences = [["The", "wholly", "."], ["unknown"]]
    numbers = torch.tensor([[1, 5, 4], [77, 0, 0]])
    cached, plain = (Elmo(*files, 1, dropout=0, vocab_to_cache=words) for words in (WORDS, None))
    one, other = cached(batch_to_ids(sentences), numbers), plain(batch_to_ids(sentences))
    assert torch.allclose(one["elmo_representations"][0], other["elmo_representations"][0], atol=SAME_MODEL)
    with pytest.raises(ValueError, match="word_inputs: expected word numbers"):
        cached(batch_to_ids(sentences), -numbers)
    with pytest.raises(ValueError, match="word_inputs: expected every sentence's words before its padding"):
        cached(batch_to_ids(sentences), numbers.flip(1))


def test_word_inputs_without_a_cache_say_so(files, caplog):
    sentences = [["The", "."]]
    with caplog.at_level(logging.WARNING):
        found = Elmo(*files, 1, dropout=0)(batch_to_ids(sentences), torch.tensor([[1, 2]]))
    assert "no vocabulary is cached" in caplog.text
    expected = Elmo(*files, 1, dropout=0)(batch_to_ids(sentences))
    assert torch.equal(found["elmo_representations"][0], expected["elmo_representations"][0])


def test_copies_pickles_and_moves(files):
    elmo = Elmo(*files, 1, dropout=0)
    ids = batch_to_ids(SENTENCES)
    elmo(ids)
    stored = io.BytesIO()
    torch.save(elmo, stored)
    stored.seek(0)
    twins = [copy.deepcopy(elmo), torch.load(stored, weights_only=False)]
    expected = elmo(ids)["elmo_representations"][0]
    for twin in twins:
        assert torch.equal(twin(ids)["elmo_representations"][0], expected)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        found = copy.deepcopy(twins[0]).to("cpu", dtype)(ids)["elmo_representations"][0]
        assert found.dtype == dtype and torch.isfinite(found).all()


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
    """In a process of its own: a hang of the process group ends with it."""
    done = subprocess.run([sys.executable, "-c", DISTRIBUTED, *files, str(tmp_path / "rendezvous")], text=True,
                          capture_output=True, timeout=120, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6


@pytest.mark.parametrize("arguments, named", [
    ({"num_output_representations": 0}, "num_output_representations"),
    ({"num_output_representations": 1, "scalar_mix_parameters": [1.0]}, "initial_scalar_parameters"),
    ({"num_output_representations": 1, "state": "cold"}, "state"),
])
def test_refuses(files, arguments, named):
    with pytest.raises(ValueError, match=f"^{named}: expected"):
        Elmo(*files, **arguments)


def test_missing_files():
    with pytest.raises(FileNotFoundError, match="options_file: expected a file, found nothing at nowhere.json"):
        Elmo("nowhere.json", "nowhere.hdf5", 1)
    with pytest.raises(ConfigurationError, match="weight_file: expected a path or URL, got None"):
        Elmo("nowhere.json", None, 1)


