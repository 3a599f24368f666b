"""AllenNLP's `Elmo`, `_ElmoBiLm`, `_ElmoCharacterEncoder` and `ElmoEmbedder`, by AllenNLP's names and calls."""

import copy
import importlib
import inspect
import logging
import pickle

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import ConfigurationError, batch_to_ids
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp import Elmo, ElmoEmbedder, ElmoTokenEmbedder, _ElmoBiLm, _ElmoCharacterEncoder
from elmo_fast.testing import SAME_MODEL
from tests.support import models
from tests.support.models import SENTENCES

WORDS = ["@@PADDING@@", "@@UNKNOWN@@", "The", "children", "rained", "."]
OPTIONS, WEIGHTS = (f"https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/"
                    f"elmo_2x4096_512_2048cnn_2xhighway_{name}" for name in ("options.json", "weights.hdf5"))


@pytest.fixture
def plain(files):
    """Layers of `SENTENCES` from zero states [layers, 6, 13, 22], with boundaries, and their mask [6, 13]."""
    activations, mask = elmo_fast.BiLm.from_files(*files)(batch_to_ids(SENTENCES))
    return torch.stack(activations), mask


def check_same(actual, expected):
    assert torch.equal(actual["mask"], expected["mask"])
    for layer, expected_layer in zip(actual["activations"], expected["activations"], strict=True):
        assert torch.allclose(layer, expected_layer, atol=SAME_MODEL)


@pytest.mark.parametrize("module, names", [
    ("allennlp.commands.elmo", "ElmoEmbedder DEFAULT_OPTIONS_FILE DEFAULT_WEIGHT_FILE DEFAULT_BATCH_SIZE batch_to_ids"),
    ("allennlp.modules.elmo", "Elmo _ElmoBiLm _ElmoCharacterEncoder batch_to_ids ElmoLstm ScalarMix Highway"),
    ("allennlp.modules.elmo", "remove_sentence_boundaries add_sentence_boundary_token_ids ELMoCharacterMapper"),
    ("allennlp.modules.elmo_lstm", "ElmoLstm"),
    ("allennlp.modules.scalar_mix", "ScalarMix"),
    ("allennlp.modules.highway", "Highway"),
    ("allennlp.modules", "Elmo Highway ScalarMix"),
    ("allennlp.modules.token_embedders", "ElmoTokenEmbedder"),
    ("allennlp.modules.token_embedders.elmo_token_embedder", "ElmoTokenEmbedder"),
    ("allennlp.data.token_indexers", "ELMoTokenCharactersIndexer"),
    ("allennlp.data.token_indexers.elmo_indexer", "ELMoCharacterMapper ELMoTokenCharactersIndexer"),
    ("allennlp.nn.util", "remove_sentence_boundaries add_sentence_boundary_token_ids"),
    ("allennlp.modules.lstm_cell_with_projection", "LstmCellWithProjection"),
    ("allennlp.common.checks", "ConfigurationError"),
    ("allennlp.common.file_utils", "cached_path"),
    ("allennlp.common.util", "lazy_groups_of pad_sequence_to_length import_submodules"),
    ("allennlp.commands", "main"),
    ("allennlp.commands.elmo", "elmo_command"),
    ("allennlp.tools.create_elmo_embeddings_from_vocab", "main"),
    ("bilm.data", "Batcher TokenBatcher Vocabulary UnicodeCharsVocabulary InvalidNumberOfCharacters"),
    ("bilm.model", "BidirectionalLanguageModel dump_token_embeddings dump_bilm_embeddings"),
])
def test_old_imports_with_the_prefix(module, names):
    imported = importlib.import_module(f"elmo_fast.compat.{module}")
    for name in names.split():
        assert getattr(imported, name) is getattr(allennlp, name, getattr(imported, name))
    assert all(hasattr(allennlp, name) for name in allennlp.__all__) and not hasattr(allennlp, "Embedding")


@pytest.mark.parametrize("call, arguments", [
    (Elmo, ("options_file weight_file num_output_representations requires_grad=False do_layer_norm=False dropout=0.5 "
            "vocab_to_cache=None keep_sentence_boundaries=False scalar_mix_parameters=None module=None")),
    (_ElmoBiLm, "options_file weight_file requires_grad=False vocab_to_cache=None"),
    (_ElmoCharacterEncoder, "options_file weight_file requires_grad=False"),
    (ElmoTokenEmbedder, (f"options_file={OPTIONS!r} weight_file={WEIGHTS!r} do_layer_norm=False dropout=0.5 "
                         "requires_grad=False projection_dim=None vocab_to_cache=None scalar_mix_parameters=None")),
    (ElmoEmbedder, f"options_file={OPTIONS!r} weight_file={WEIGHTS!r} cuda_device=-1"),
    (allennlp.create_elmo_embeddings_from_vocab, ("vocab_path elmo_config_path elmo_weights_path output_dir "
                                                  "batch_size=64 device=-1 use_custom_oov_token=False")),
])
def test_signatures(call, arguments):
    parameters = inspect.signature(call).parameters.values()
    assert [str(each.replace(annotation=each.empty)) for each in parameters
            if each.kind is each.POSITIONAL_OR_KEYWORD] == arguments.split()
    assert (allennlp.DEFAULT_OPTIONS_FILE, allennlp.DEFAULT_WEIGHT_FILE) == (OPTIONS, WEIGHTS)
    assert allennlp.DEFAULT_BATCH_SIZE == 64


def test_character_encoder_arguments(files):
    encoder = _ElmoCharacterEncoder(*files)
    assert not any(value.requires_grad for value in encoder.parameters())
    trainable = _ElmoCharacterEncoder(*files, requires_grad=True)
    trainable(batch_to_ids(SENTENCES))["token_embedding"].square().sum().backward()
    assert all(value.grad is not None and value.grad.any() for value in trainable.parameters())
    prefix = "_elmo_lstm._token_embedder."
    assert {prefix + name for name in encoder.state_dict()} == {
        name for name in Elmo(*files, 1).state_dict() if name.startswith(prefix)}
    assert encoder._beginning_of_sentence_characters.tolist()[:4] == [259, 257, 260, 261]
    assert encoder._end_of_sentence_characters.tolist()[:4] == [259, 258, 260, 261]


def test_the_embedder(files):
    """Its vectors are those of tests/compat/test_carried_states.py."""
    embedder = ElmoEmbedder(*files, -1)
    _, mask = embedder.batch_to_embeddings(SENTENCES)
    assert mask.dtype == torch.int64 and mask.sum(1).tolist() == list(map(len, SENTENCES))
    assert isinstance(embedder.elmo_bilm, _ElmoBiLm) and embedder.cuda_device == -1
    embedder.elmo_bilm = embedder.elmo_bilm.to("cpu")
    assert embedder.embed_sentence([]).shape == (3, 0, 22)


def test_parts_of_the_bilm_by_allennlps_paths(files, plain):
    elmo, ids = Elmo(*files, 2, dropout=0), batch_to_ids(SENTENCES)

    def run():
        return elmo(ids)["elmo_representations"][0]

    first, lstm = run(), elmo._elmo_lstm._elmo_lstm
    assert not torch.equal(run(), first)
    lstm.stateful = False
    assert torch.equal(run(), first)
    assert elmo._scalar_mixes == [elmo.scalar_mix_0, elmo.scalar_mix_1]
    tokens = elmo._elmo_lstm._token_embedder(ids)
    layers = lstm(tokens["token_embedding"], tokens["mask"])
    output = elmo._elmo_lstm(ids, torch.ones(ids.shape[:2], dtype=torch.int64))  # word ids are ignored without a cache
    assert type(output) is dict and output["mask"].dtype == tokens["mask"].dtype == torch.int64
    assert elmo._elmo_lstm.num_layers == 3
    check_same({"activations": [torch.cat([tokens["token_embedding"]] * 2, dim=2), *layers], "mask": tokens["mask"]},
               output)
    check_same({"activations": list(plain[0]), "mask": plain[1].long()}, output)


def test_table_of_cached_words(files):
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
    assert not any("bos" in name or "boundaries" in name for name in cached.state_dict())


def test_word_numbers_in_place_of_characters(files):
    """As in AllenNLP's documentation; no char encoder is needed."""
    ids, numbers = batch_to_ids([["The", "children", "."], ["rained"]]), torch.tensor([[2, 3, 5], [4, 0, 0]])
    plain, cached = (Elmo(*files, 1, dropout=0, vocab_to_cache=words) for words in (None, WORDS))
    expected = plain(ids)["elmo_representations"][0]
    parts = dict.fromkeys(key.split(".")[1] for key in cached.state_dict() if key.startswith("_elmo_lstm."))
    assert list(parts) == ["_token_embedder", "_word_embedding", "_elmo_lstm"]
    embedder = ElmoTokenEmbedder(*files, dropout=0, vocab_to_cache=WORDS)
    assert torch.allclose(embedder(ids, numbers), expected, atol=SAME_MODEL)
    for deleted in (False, True):
        if deleted:
            del cached._elmo_lstm._token_embedder
        for inputs in (numbers, ids if deleted else None):
            cached._elmo_lstm.reset_states()
            assert torch.allclose(cached(inputs, numbers)["elmo_representations"][0], expected, atol=SAME_MODEL)
        cached._elmo_lstm.reset_states()
        deep = cached(numbers[:, None], numbers[:, None])
        assert torch.allclose(deep["elmo_representations"][0][:, 0], expected, atol=SAME_MODEL)
        assert deep["mask"].shape == (2, 1, 3)
        with pytest.raises(ValueError, match="^ids: expected character ids, and a char encoder, .* above 5, got"):
            cached(numbers + 4, numbers + 4)


def test_subclass_that_sets_attributes_before_the_model_is_read(files):
    class Mine(_ElmoBiLm):
        def __init__(self, *arguments):
            self.name, self._word_embedding, self._bos_embedding, self._eos_embedding = "mine", None, None, None
            super().__init__(*arguments)

    mine = Mine(*files)
    assert mine.name == "mine" and mine._bos_embedding is None
    check_same(mine(batch_to_ids(SENTENCES)), _ElmoBiLm(*files)(batch_to_ids(SENTENCES)))
    mine.create_cached_cnn_embeddings(WORDS)
    mine._bos_embedding = torch.ones(11)
    assert (mine._word_embedding.boundaries[0] == 1).all() and not (mine._eos_embedding == 1).all()


def test_fine_tuning_warns_and_trains_the_table(files, caplog):
    with caplog.at_level(logging.WARNING):
        cached = _ElmoBiLm(*files, requires_grad=True, vocab_to_cache=WORDS)
    assert "cached vectors are trained separately" in caplog.text
    for _ in range(2):  # the second step must not need the freed graph of the first
        cached(batch_to_ids([["The", "."]]), torch.tensor([[2, 5]]))["activations"][-1].sum().backward()
    assert cached._word_embedding.weight.grad[2].any() and not cached._word_embedding.weight.grad[[0, 1, 3]].any()


def test_from_params(files):
    model = {"options_file": files[0], "weight_file": files[1], "dropout": 0}
    params = {**model, "num_output_representations": "2", "do_layer_norm": "true", "keep_sentence_boundaries": False,
              "scalar_mix_parameters": [-9e10, 1, -9e10]}
    before, ids = dict(params), batch_to_ids(SENTENCES)
    elmo = Elmo.from_params(params)
    assert params == before
    expected = Elmo(*files, 2, dropout=0, do_layer_norm=True, scalar_mix_parameters=[-9e10, 1, -9e10])
    assert torch.equal(elmo(ids)["elmo_representations"][0], expected(ids)["elmo_representations"][0])


@pytest.mark.parametrize("call, message", [
    (lambda *files: Elmo.from_params({"options_file": files[0], "num_output_representations": 1}),
     "Elmo: expected options_file, .*, missing weight_file"),
    *((lambda *files, change=change: Elmo.from_params(
        {"options_file": files[0], "weight_file": files[1], "num_output_representations": "2", **change}), message)
      for change, message in [({"surplus": 1}, "Elmo: expected only .*, got surplus"),
                              ({"dropout": "much"}, "Elmo: dropout: got 'much'"),
                              ({"requires_grad": 1}, "Elmo: requires_grad: got 1 .expected true or false")]),
    *((lambda *files, ids=ids: _ElmoCharacterEncoder(*files)(ids), message) for ids, message in [
        (torch.ones(2, 3, 50), r"inputs: expected integers of shape \[batch, tokens, 50\], got "),
        (torch.full((1, 1, 50), 262), "ids: expected character ids from 0 to 261, got 262 to 262"),
        (torch.tensor([[[0], [1]]]).expand(1, 2, 50), "inputs: expected every sentence's tokens before its padding")]),
])
def test_refuses(files, call, message):
    with pytest.raises(ConfigurationError if message.startswith("Elmo:") else ValueError, match=f"^{message}"):
        call(*files)


def test_word_id_models_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="options_file: expected a model with the section char_cnn"):
        _ElmoCharacterEncoder(*models.files(tmp_path, models.WORD_IDS))


class Flair:
    """The calls of AllenNLP by flair's `ELMoEmbeddings` (legacy.py): constructor, embedding and unpickling."""

    def __init__(self, options_file, weight_file):
        self.ee = allennlp.commands.elmo.ElmoEmbedder(options_file=options_file, weight_file=weight_file,
                                                      cuda_device=-1)
        self.length = len(torch.cat(self.embed([["hello"]])[0][0]))

    def embed(self, sentences):
        embeddings = self.ee.embed_batch(sentences)
        return [[[torch.FloatTensor(embeddings[i][layer, token, :]) for layer in range(3)]
                 for token in range(len(sentence))] for i, sentence in enumerate(sentences)]

    def __setstate__(self, state):
        self.__dict__ = state
        self.ee.cuda_device = -1
        self.ee.elmo_bilm.to(device=torch.device("cpu"))
        self.ee.elmo_bilm._elmo_lstm._states = tuple(
            [each.to(torch.device("cpu")) for each in self.ee.elmo_bilm._elmo_lstm._states])


@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy])
def test_flair(files, copied):
    ours = Flair(*files)
    assert ours.length == 3 * 22
    clone, expected = copied(ours), elmo_fast.ElmoEmbedder(*files)
    assert type(ours.ee.elmo_bilm) is _ElmoBiLm and isinstance(ours.ee.indexer, allennlp.ELMoTokenCharactersIndexer)
    expected.embed_batch([["hello"]])
    for sentences in ([["Hello", "world"]], [["One"], ["more", "!"]]):
        actual, cloned, plain = ours.embed(sentences), clone.embed(sentences), expected.embed_batch(sentences)
        for first, second, third in zip(actual, cloned, plain, strict=True):
            for token in range(len(first)):
                assert torch.equal(torch.stack(first[token]), torch.stack(second[token]))
                np.testing.assert_array_equal(torch.stack(first[token]), third[:, token])
