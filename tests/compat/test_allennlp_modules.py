"""AllenNLP's `Elmo`, `_ElmoBiLm` and `_ElmoCharacterEncoder`, by AllenNLP's names and calls."""

import importlib
import inspect
import json
import logging

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, Options
from elmo_fast.compat.allennlp import (
    Elmo,
    ElmoTokenEmbedder,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
    remove_sentence_boundaries,
)
from elmo_fast.testing import AGAINST_TENSORFLOW, SAME_MODEL
from tests.support.models import SENTENCES, SHAPES, bilm, options, weights
from tests.support.models import files as write_files
from tests.support.plain import layers as plain_layers
from tests.support.plain import token_vector

WORDS = ["@@PADDING@@", "@@UNKNOWN@@", "The", "children", "rained", "."]


def write(folder, of):
    return tuple(map(str, write_files(folder, of)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("model"), options())


@pytest.mark.parametrize("module, names", [
    ("commands.elmo", "ElmoEmbedder DEFAULT_OPTIONS_FILE DEFAULT_WEIGHT_FILE DEFAULT_BATCH_SIZE batch_to_ids"),
    ("modules.elmo", "Elmo _ElmoBiLm _ElmoCharacterEncoder batch_to_ids ElmoLstm ScalarMix Highway"),
    ("modules.elmo", "remove_sentence_boundaries add_sentence_boundary_token_ids ELMoCharacterMapper"),
    ("modules.elmo_lstm", "ElmoLstm"),
    ("modules.scalar_mix", "ScalarMix"),
    ("modules.highway", "Highway"),
    ("modules", "Elmo Highway ScalarMix"),
    ("modules.token_embedders", "ElmoTokenEmbedder"),
    ("modules.token_embedders.elmo_token_embedder", "ElmoTokenEmbedder"),
    ("data.token_indexers", "ELMoTokenCharactersIndexer"),
    ("data.token_indexers.elmo_indexer", "ELMoCharacterMapper ELMoTokenCharactersIndexer"),
    ("nn.util", "remove_sentence_boundaries add_sentence_boundary_token_ids"),
    ("tools.create_elmo_embeddings_from_vocab", "main"),
])
def test_old_imports_with_the_prefix(module, names):
    found = importlib.import_module(f"elmo_fast.compat.allennlp.{module}")
    assert all(hasattr(found, name) for name in names.split())


@pytest.mark.parametrize("call, arguments", [
    (Elmo, ("num_output_representations requires_grad=False do_layer_norm=False dropout=0.5 vocab_to_cache=None "
            "keep_sentence_boundaries=False scalar_mix_parameters=None module=None")),
    (_ElmoBiLm, "requires_grad=False vocab_to_cache=None"),
    (_ElmoCharacterEncoder, "requires_grad=False"),
    (ElmoTokenEmbedder, ("do_layer_norm=False dropout=0.5 requires_grad=False projection_dim=None vocab_to_cache=None "
                         "scalar_mix_parameters=None")),
])
def test_signatures(call, arguments):
    given = [parameter for parameter in inspect.signature(call).parameters.values()
             if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert [each.name for each in given[:2]] == ["options_file", "weight_file"]
    found = [each.name if each.default is each.empty else f"{each.name}={each.default}" for each in given[2:]]
    assert found == arguments.split()


@pytest.mark.parametrize("model", ["allennlp", "bilm-tf"])
def test_layers_that_tensorflow_wrote(shared, model):
    folder = shared / "fixtures" / model
    name = {"allennlp": "sentences.json", "bilm-tf": "lm_embeddings_sentences.json"}[model]
    streams = json.loads((folder / name).read_text(encoding="utf-8"))
    ours = _ElmoBiLm(str(folder / "options.json"), str(folder / "lm_weights.hdf5"))
    with np.load(shared / "fixtures" / "all_layers.npz") as stored:
        for number, batch in enumerate(zip(*streams)):
            output = ours(batch_to_ids([sentence.split() for sentence in batch]))
            for k, layer in enumerate(output["activations"]):
                inner, mask = remove_sentence_boundaries(layer, output["mask"])
                assert mask.sum(1).tolist() == [len(sentence.split()) for sentence in batch]
                for row, length in enumerate(mask.sum(1)):
                    expected = stored[f"{model}/{number}/{row}"][k]
                    assert np.abs(inner[row, :length].detach().numpy() - expected).max() < AGAINST_TENSORFLOW


def test_token_vectors_that_tensorflow_wrote(shared):
    folder = shared / "fixtures" / "allennlp"
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").strip().split("\n")
    encoder = _ElmoCharacterEncoder(folder / "options.json", folder / "lm_weights.hdf5")
    found = encoder(batch_to_ids([words]))["token_embedding"][0, 1:-1]
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        assert np.abs(found.detach().numpy() - file["embedding"][...]).max() < AGAINST_TENSORFLOW


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
@pytest.mark.parametrize("shape", ["two layers", "tanh", "no highway", "filters as wide as the projection",
                                   "short tokens"])
def test_character_encoder(tmp_path, shape, backend):
    of = SHAPES[shape]
    encoder = _ElmoCharacterEncoder(*write(tmp_path, of), backend=backend)
    output = encoder(batch_to_ids(SENTENCES, of.char_cnn.max_characters_per_token))
    assert output["token_embedding"].shape == (6, 13, encoder.get_output_dim()) and output["mask"].dtype == torch.int64
    assert output["mask"].sum(1).tolist() == [len(sentence) + 2 for sentence in SENTENCES]
    assert not output["token_embedding"][output["mask"] == 0].any()
    drawn = weights(of)
    for row, sentence in enumerate(SENTENCES[:4]):
        ids = batch_to_ids([["<S>", *sentence, "</S>"]], of.char_cnn.max_characters_per_token)[0].numpy()
        for place, one in enumerate(ids):
            found = output["token_embedding"][row, place].detach().numpy()
            assert np.abs(found - token_vector(one, drawn, of)).max() < SAME_MODEL


def test_character_encoder_arguments(files):
    encoder = _ElmoCharacterEncoder(*files)
    assert not any(value.requires_grad for value in encoder.parameters())
    trained = _ElmoCharacterEncoder(*files, requires_grad=True)
    trained(batch_to_ids(SENTENCES))["token_embedding"].square().sum().backward()
    assert all(value.grad is not None and value.grad.any() for value in trained.parameters())
    prefix = "_elmo_lstm._token_embedder."
    assert {prefix + name for name in encoder.state_dict()} == {
        name for name in Elmo(*files, 1).state_dict() if name.startswith(prefix)}
    assert encoder._beginning_of_sentence_characters.tolist()[:4] == [259, 257, 260, 261]
    assert encoder._end_of_sentence_characters.tolist()[:4] == [259, 258, 260, 261]
    for wrong in (torch.ones(2, 3, 49, dtype=torch.long), torch.ones(2, 3, 50), torch.full((1, 1, 50), 262)):
        with pytest.raises(ValueError, match="ids|inputs"):
            encoder(wrong)
    hole = batch_to_ids([["a", "b"]])
    hole[0, 0] = 0
    with pytest.raises(ValueError, match="inputs: expected every sentence's tokens before its padding"):
        encoder(hole)


@pytest.mark.parametrize("shape, backend", [*((shape, "auto") for shape in SHAPES), ("two layers", "reference"),
                                            ("two layers", "torch")])
def test_bilm(tmp_path, shape, backend):
    of = SHAPES[shape]
    ours = _ElmoBiLm(*write(tmp_path, of), backend=backend)
    assert ours.num_layers == of.n_layers and ours.get_output_dim() == 22
    states = [None] * len(SENTENCES)
    for _ in range(2):
        output = ours(batch_to_ids(SENTENCES, of.char_cnn.max_characters_per_token))
        assert type(output) is dict and set(output) == {"activations", "mask"} and output["mask"].dtype == torch.int64
        assert len(output["activations"]) == of.n_layers
        for row, sentence in enumerate(SENTENCES[:4]):
            ids = batch_to_ids([["<S>", *sentence, "</S>"]], of.char_cnn.max_characters_per_token)[0].numpy()
            expected, states[row] = plain_layers(ids, weights(of), of, states[row])
            for found, one in zip(output["activations"], expected):
                assert np.abs(found[row, : len(ids)].detach().numpy() - one).max() < 5 * SAME_MODEL
                assert not found[row, len(ids):].any()


def test_parts_of_the_bilm_by_allennlps_paths(files):
    elmo = Elmo(*files, 2, dropout=0)
    ids = batch_to_ids(SENTENCES)
    first = elmo(ids)["elmo_representations"][0]
    lstm = elmo._elmo_lstm._elmo_lstm
    h, c = lstm._states
    assert h.shape == (2, 6, 22) and c.shape == (2, 6, 74) and lstm.stateful is True
    assert not torch.equal(elmo(ids)["elmo_representations"][0], first)
    lstm.reset_states()
    assert lstm._states is None and torch.equal(elmo(ids)["elmo_representations"][0], first)
    lstm._states = (h, c)
    second = elmo(ids)["elmo_representations"][0]
    lstm._states = tuple(each.clone() for each in (h, c))
    assert torch.equal(elmo(ids)["elmo_representations"][0], second)
    lstm.stateful = False
    assert torch.equal(elmo(ids)["elmo_representations"][0], first)
    assert elmo._scalar_mixes == [elmo.scalar_mix_0, elmo.scalar_mix_1]
    tokens = elmo._elmo_lstm._token_embedder(ids)
    layers = lstm(tokens["token_embedding"], tokens["mask"])
    whole = elmo._elmo_lstm(ids)
    assert torch.equal(tokens["mask"], whole["mask"])
    for one, other in zip([torch.cat([tokens["token_embedding"]] * 2, dim=2), *layers], whole["activations"]):
        assert torch.allclose(one, other, atol=SAME_MODEL)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_gradients(files, requires_grad):
    ours, other = _ElmoBiLm(*files, requires_grad=requires_grad), bilm(requires_grad=requires_grad)
    ids = batch_to_ids(SENTENCES)
    one, two = ours(ids)["activations"], other(ids).activations
    assert one[-1].requires_grad == requires_grad
    if requires_grad:
        for activations in (one, two):
            sum(each.sin().sum() for each in activations).backward()
        for (name, value), expected in zip(ours.named_parameters(), other.parameters()):
            assert value.grad.any() and torch.allclose(value.grad, expected.grad, rtol=1e-4, atol=1e-4), name


class TestCachedWords:
    """`vocab_to_cache`: AllenNLP's numbering, and words beyond it."""

    @pytest.mark.parametrize("backend", ["reference", "auto"])
    def test_numbers_are_entries(self, files, backend):
        plain, cached = (_ElmoBiLm(*files, vocab_to_cache=words, backend=backend) for words in (None, WORDS))
        sentences = [["The", "children", "."], ["rained"]]
        words = torch.tensor([[2, 3, 5], [4, 0, 0]])
        for _ in range(2):
            one = plain(batch_to_ids(sentences), words)  # nothing is cached: the numbers are not looked at
            other = cached(torch.zeros_like(batch_to_ids(sentences)), words)  # everything is: nor are the characters
            assert torch.equal(one["mask"], other["mask"])
            for found, expected in zip(other["activations"], one["activations"]):
                assert torch.allclose(found, expected, atol=SAME_MODEL)

    def test_words_beyond_are_read_off_the_characters(self, files):
        sentences = [["The", "unheard-of", "."], ["never", "The"]]
        cached = _ElmoBiLm(*files, vocab_to_cache=WORDS)
        found = cached(batch_to_ids(sentences), torch.tensor([[2, 6, 5], [999, 2, 0]]))
        expected = _ElmoBiLm(*files)(batch_to_ids(sentences))
        assert torch.equal(found["mask"], expected["mask"])
        for one, other in zip(found["activations"], expected["activations"]):
            assert torch.allclose(one, other, atol=SAME_MODEL)

    def test_table(self, files):
        cached = _ElmoBiLm(*files)
        assert cached._word_embedding is None and cached._bos_embedding is None and cached._eos_embedding is None
        cached.create_cached_cnn_embeddings(WORDS)
        table = cached._word_embedding.weight
        assert table.shape == (6, 11) and not table[0].any() and not table.requires_grad
        encoded = _ElmoCharacterEncoder(*files)(batch_to_ids([WORDS]))["token_embedding"][0]
        assert torch.allclose(table[1:], encoded[2:-1], atol=SAME_MODEL)
        assert torch.allclose(cached._bos_embedding, encoded[0], atol=SAME_MODEL)
        assert torch.allclose(cached._eos_embedding, encoded[-1], atol=SAME_MODEL)
        assert "_word_embedding.weight" in cached.state_dict()
        assert not any("bos" in name or "marks" in name for name in cached.state_dict())

    def test_fine_tuning_warns_and_trains_the_table(self, files, caplog):
        with caplog.at_level(logging.WARNING):
            cached = _ElmoBiLm(*files, requires_grad=True, vocab_to_cache=WORDS)
        assert "cached vectors are trained by themselves" in caplog.text
        for _ in range(2):  # a second step must not run into a graph that is gone
            cached(batch_to_ids([["The", "."]]), torch.tensor([[2, 5]]))["activations"][-1].sum().backward()
        assert cached._word_embedding.weight.grad[2].any() and not cached._word_embedding.weight.grad[[0, 1, 3]].any()

    @pytest.mark.parametrize("keep", [False, True])
    def test_higher_dimensions(self, files, keep):
        elmo = Elmo(*files, 1, dropout=0, vocab_to_cache=WORDS, keep_sentence_boundaries=keep, state="zero")
        ids, words = batch_to_ids([["The", "children"], ["."]]), torch.tensor([[2, 3], [5, 0]])
        flat = elmo(ids, words)
        deep = elmo(torch.stack([ids] * 4, dim=1), torch.stack([words] * 4, dim=1))
        assert deep["mask"].shape == (2, 4, 2 + 2 * keep)
        for k in range(4):
            assert torch.equal(deep["mask"][:, k], flat["mask"])
            found, expected = deep["elmo_representations"][0][:, k], flat["elmo_representations"][0]
            assert torch.allclose(found, expected, atol=SAME_MODEL)


def test_elmo_over_a_given_module(files):
    elmo = Elmo(None, None, 2, dropout=0, module=_ElmoBiLm(*files))
    expected = Elmo(*files, 2, dropout=0)
    ids = batch_to_ids(SENTENCES)
    assert elmo.get_output_dim() == 22
    assert torch.equal(elmo(ids)["elmo_representations"][1], expected(ids)["elmo_representations"][1])


def test_cached_words_of_a_given_module_are_its_own_affair():
    class Module(torch.nn.Module):
        num_layers = 1

        def forward(self, inputs, word_inputs):
            self.words = word_inputs
            mask = torch.ones(inputs.shape[0], inputs.shape[1] + 2, dtype=torch.long)
            return {"activations": [mask[..., None].float()], "mask": mask}

    module = Module()
    words = torch.tensor([[1, 2]])
    Elmo(None, None, 1, vocab_to_cache=["a", "b"], module=module)(batch_to_ids([["a", "b"]]), words)
    assert torch.equal(module.words, words)


def test_elmo_from_params(files):
    params = {"options_file": files[0], "weight_file": files[1], "num_output_representations": "2", "dropout": 0,
              "do_layer_norm": "true", "keep_sentence_boundaries": False, "scalar_mix_parameters": [-9e10, 1, -9e10]}
    given = dict(params)
    elmo = Elmo.from_params(params)
    assert params == given
    expected = Elmo(*files, 2, dropout=0, do_layer_norm=True, scalar_mix_parameters=[-9e10, 1, -9e10])
    ids = batch_to_ids(SENTENCES)
    assert torch.equal(elmo(ids)["elmo_representations"][0], expected(ids)["elmo_representations"][0])
    for change, named in (({"surplus": 1}, "Elmo: expected nothing but .*, got surplus"),
                          ({"dropout": "much"}, "Elmo: dropout: got 'much'"),
                          ({"requires_grad": 1}, "Elmo: requires_grad: got 1 .expected true or false")):
        with pytest.raises(ConfigurationError, match=named):
            Elmo.from_params({**params, **change})
    with pytest.raises(ConfigurationError, match="Elmo: expected options_file, .*, got none for weight_file"):
        Elmo.from_params({"options_file": files[0], "num_output_representations": 1})


def test_word_id_models_say_what_they_are(tmp_path):
    of = Options.from_dict({"lstm": {"dim": 8, "projection_dim": 4, "n_layers": 1, "use_skip_connections": True},
                            "n_tokens_vocab": 9})
    with pytest.raises(ConfigurationError, match="options_file: expected a model with the section char_cnn"):
        _ElmoCharacterEncoder(*write(tmp_path, of))
