"""Every row of docs/migrating.md for AllenNLP, run."""

import gzip
import inspect
import runpy
import sys
import textwrap
import types

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import BiLm
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp.commands import elmo as command
from elmo_fast.compat.allennlp.commands import main
from elmo_fast.compat.allennlp.common.checks import ConfigurationError
from elmo_fast.compat.allennlp.common.file_utils import cached_path
from elmo_fast.compat.allennlp.common.util import import_submodules, lazy_groups_of, pad_sequence_to_length
from elmo_fast.compat.allennlp.data.token_indexers import ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
from elmo_fast.compat.allennlp.modules.elmo import Elmo, _ElmoBiLm, _ElmoCharacterEncoder, batch_to_ids
from elmo_fast.compat.allennlp.modules.elmo_lstm import ElmoLstm
from elmo_fast.compat.allennlp.modules.highway import Highway
from elmo_fast.compat.allennlp.modules.lstm_cell_with_projection import LstmCellWithProjection
from elmo_fast.compat.allennlp.modules.scalar_mix import ScalarMix
from elmo_fast.compat.allennlp.modules.token_embedders import ElmoTokenEmbedder
from elmo_fast.compat.allennlp.nn.util import add_sentence_boundary_token_ids, remove_sentence_boundaries
from elmo_fast.compat.allennlp.tools import create_elmo_embeddings_from_vocab as tool
from elmo_fast.testing import SAME_MODEL
from tests.support.allennlp import STAND_IN
from tests.support.files import read_hdf5, start
from tests.support.migrating import Rows

row = Rows("allennlp")
SENTENCES = [["The", "children", "play", "."], ["It", "rained"]]
WORDS = ["<S>", "</S>", "The", "children", "play", ".", "It", "rained"]


@pytest.fixture
def ids():
    return batch_to_ids(SENTENCES)


@pytest.fixture
def plain(files, ids):
    """Layers of `SENTENCES` from zero states [layers, 2, 6, 22] and their mask [2, 6]."""
    activations, mask = BiLm.from_files(*files)(ids)
    return torch.stack(activations), mask


@pytest.fixture
def inner(plain):
    """Layers without boundaries, [layers, 2, 4, 22]."""
    return plain[0][:, :, 1:-1] * plain[1][:, 2:, None]


def test_every_row_is_run():
    row.check()


def close(found, expected):
    assert found.shape == expected.shape and (found - expected).abs().max() < SAME_MODEL


@row("`from allennlp.commands.elmo import ElmoEmbedder`", "`import allennlp.commands.elmo`",
     "`from allennlp.modules.elmo import Elmo", "`DEFAULT_OPTIONS_FILE`")
def test_imports():
    assert command.ElmoEmbedder is allennlp.commands.elmo.ElmoEmbedder is allennlp.ElmoEmbedder
    assert allennlp._ElmoBiLm is _ElmoBiLm and allennlp._ElmoCharacterEncoder is _ElmoCharacterEncoder
    name = "2x4096_512_2048cnn_2xhighway"
    public = f"https://allennlp.s3.amazonaws.com/models/elmo/{name}/elmo_{name}"
    files = command.DEFAULT_OPTIONS_FILE, command.DEFAULT_WEIGHT_FILE
    assert files == (f"{public}_options.json", f"{public}_weights.hdf5") and command.DEFAULT_BATCH_SIZE == 64


@row("`allennlp.modules.elmo_lstm.ElmoLstm`", "`ElmoLstm(input_size", "`elmo._elmo_lstm._elmo_lstm(vectors",
     "`allennlp.modules.lstm_cell_with_projection.LstmCellWithProjection`",
     "`..._elmo_lstm._elmo_lstm.stateful = False`", "`..._elmo_lstm._elmo_lstm.forward_layers`")
def test_the_lstm_by_itself(files, plain):
    expected, mask = plain
    lstm = ElmoLstm(11, 11, 37, 2, memory_cell_clip_value=3, state_projection_clip_value=3)
    lstm.load_weights(files[1])
    vectors = expected[0, :, :, :11]
    close(lstm(vectors, mask), expected[1:])
    assert (lstm(vectors, mask) - expected[1:]).abs().max() > 1e-3 and lstm._states is not None
    lstm.reset_states()
    inner = Elmo(*files, 1)._elmo_lstm._elmo_lstm
    inner.stateful = False
    for stack in (lstm, inner, inner, _ElmoBiLm(*files, state="zero")._elmo_lstm):
        close(stack(vectors, mask.long()), expected[1:])
    forward, backward = lstm.forward_layers, lstm.backward_layers
    assert len(forward) == len(backward) == 2 and all(isinstance(cell, LstmCellWithProjection) for cell in forward)
    outputs, (h, c) = forward[0](vectors, [6, 4])
    close(outputs, expected[1, :, :, :11])
    assert h.shape == (1, 2, 11) and c.shape == (1, 2, 37)
    alone = LstmCellWithProjection(11, 11, 37, memory_cell_clip_value=3, state_projection_clip_value=3)
    alone.load_state_dict(forward[0].state_dict())
    close(alone(vectors, [6, 4])[0], outputs)


@row("`allennlp.modules.token_embedders.ElmoTokenEmbedder`", "`ElmoTokenEmbedder(options_file, weight_file",
     "`.get_output_dim()` of")
def test_the_token_embedder(files, ids, inner):
    embedder = ElmoTokenEmbedder(*files, dropout=0)
    close(embedder(ids), inner.mean(0))
    projected = ElmoTokenEmbedder(*files, dropout=0, projection_dim=5)
    assert projected(ids).shape == (2, 4, 5)
    cached = ElmoTokenEmbedder(*files, dropout=0, vocab_to_cache=WORDS)
    numbers = torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]])
    close(cached(ids, numbers), inner.mean(0))
    assert [part.get_output_dim() for part in (Elmo(*files, 1), _ElmoBiLm(*files), _ElmoCharacterEncoder(*files),
                                               embedder, projected)] == [22, 22, 11, 22, 5]


@row("`allennlp.data.token_indexers.ELMoTokenCharactersIndexer`", "`ELMoCharacterMapper()")
def test_indexers(ids):
    assert ELMoCharacterMapper().convert_word_to_char_ids("play") == ids[0, 2].tolist()
    indexer, counter = ELMoTokenCharactersIndexer(), {}
    for tokens in (["The", "play"], [types.SimpleNamespace(text="The"), types.SimpleNamespace(text="play")]):
        indices = indexer.tokens_to_indices(tokens, None, "elmo")
        assert indices == {"elmo": ids[0, [0, 2]].tolist()}
    indexer.count_vocab_items("The", counter)
    assert counter == {} and indexer.get_padding_lengths(indices["elmo"][0]) == {}
    padded = indexer.as_padded_tensor(indices, {"elmo": 3}, {})["elmo"]
    assert padded.shape == (3, 50) and padded[:2].tolist() == indices["elmo"] and not padded[2].any()
    assert indexer.as_padded_tensor_dict(indices, {"elmo": 1})["elmo"].tolist() == indices["elmo"][:1]
    assert indexer.get_empty_token_list() == {"elmo_tokens": []}


@row("`allennlp.nn.util.remove_sentence_boundaries`")
def test_boundaries():
    values, mask = torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    bounded, wider = add_sentence_boundary_token_ids(values, mask, 8, 9)
    assert bounded.tolist() == [[8, 1, 2, 3, 9], [8, 4, 9, 0, 0]] and wider.sum(1).tolist() == [5, 3]
    inner, narrower = remove_sentence_boundaries(bounded[..., None].float(), wider)
    assert inner[..., 0].tolist() == values.tolist() and narrower.tolist() == mask.tolist()


@row("`ScalarMix(n, do_layer_norm")
def test_mix_and_highway(plain):
    layers, mask = plain
    mix = ScalarMix(3, False, [1.0, 0.0, -1.0], False)
    expected = torch.einsum("k,kbtd->btd", torch.tensor([1.0, 0.0, -1.0]).softmax(0), layers)
    close(mix(list(layers), mask), expected)
    assert not any(value.requires_grad for value in list(mix.parameters())[:-1])
    normed = ScalarMix(3, do_layer_norm=True)(list(layers), mask)[mask.bool()]
    assert normed.mean().abs() < 1e-5
    highway = Highway(22, 2, torch.relu)
    assert highway(expected).shape == expected.shape


@row("`allennlp.common.checks.ConfigurationError`", "`allennlp.common.file_utils.cached_path(",
     "`allennlp.common.util.lazy_groups_of`")
def test_common(files):
    with pytest.raises(ConfigurationError):
        Elmo(None, None, 1)
    assert issubclass(elmo_fast.ConfigurationError, ConfigurationError) and cached_path(files[0]) == files[0]
    assert list(lazy_groups_of(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert pad_sequence_to_length([1, 2], 3) == [1, 2, 0] and pad_sequence_to_length([1, 2], 1, None, False) == [2]
    import_submodules("elmo_fast.text")
    assert "elmo_fast.text.fasta" in sys.modules


@row("`ElmoEmbedder(options_file, weight_file, cuda_device)`", "`embedder.elmo_bilm`",
     "`allennlp.commands.elmo.empty_embedding()`")
def test_the_embedder(files, inner, tmp_path):
    def embedder():
        return command.ElmoEmbedder(*files, -1)

    found, mask = embedder().batch_to_embeddings(SENTENCES)
    close(found, inner.transpose(0, 1))
    assert mask.dtype == torch.int64 and mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    expected = [inner[:, 0].numpy(), inner[:, 1, :2].numpy()]
    for arrays in (embedder().embed_batch(SENTENCES), list(embedder().embed_sentences(SENTENCES)),
                   [embedder().embed_sentence(sentence) for sentence in SENTENCES]):
        for array, one in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(array, one, rtol=0, atol=SAME_MODEL)
    with open(tmp_path / "text", "w+") as text:
        text.write("\n".join(map(" ".join, SENTENCES)))
        text.seek(0)
        embedder().embed_file(text, str(tmp_path / "out.h5"), "top")
    np.testing.assert_allclose(read_hdf5(tmp_path / "out.h5")["1"], expected[1][-1], rtol=0, atol=SAME_MODEL)
    one = embedder()
    assert isinstance(one.elmo_bilm, _ElmoBiLm) and one.cuda_device == -1
    one.elmo_bilm = one.elmo_bilm.to("cpu")
    assert one.embed_sentence([]).shape == (3, 0, 22)
    with pytest.raises(ImportError, match="cannot import name 'empty_embedding'"):
        from elmo_fast.compat.allennlp.commands.elmo import empty_embedding  # noqa: F401


@row("`Elmo(options_file, weight_file, n", "`elmo(character_ids, word_inputs)`", "`elmo.scalar_mix_0`",
     "`elmo._elmo_lstm(ids)`", "`elmo._elmo_lstm._token_embedder(ids)`")
def test_elmo(files, ids, plain, inner):
    layers, mask = plain
    given = {"num_output_representations": 2, "requires_grad": True, "do_layer_norm": False, "dropout": 0.0,
             "vocab_to_cache": None, "keep_sentence_boundaries": True, "scalar_mix_parameters": [1.0, 0.0, -1.0],
             "module": None}
    assert list(inspect.signature(Elmo).parameters)[2:10] == list(given)
    elmo = Elmo(*files, **given)
    output, shares = elmo(ids), torch.tensor([1.0, 0.0, -1.0]).softmax(0)
    assert len(output["elmo_representations"]) == 2 and output["mask"].dtype == torch.int64
    close(output["elmo_representations"][1], torch.einsum("k,kbtd->btd", shares, layers))
    assert output["mask"].tolist() == mask.long().tolist()
    assert elmo._scalar_mixes == [elmo.scalar_mix_0, elmo.scalar_mix_1]
    assert all(value.requires_grad for value in elmo._elmo_lstm.parameters()) and issubclass(Elmo, elmo_fast.Elmo)
    elmo._elmo_lstm.reset_states()
    output = elmo._elmo_lstm(ids)
    close(torch.stack(output["activations"]), layers)
    tokens = elmo._elmo_lstm._token_embedder(ids)
    close(tokens["token_embedding"], layers[0, :, :, :11])
    assert output["mask"].tolist() == tokens["mask"].tolist() == mask.long().tolist()
    shared = Elmo(None, None, 1, dropout=0, module=_ElmoBiLm(*files))
    close(shared(ids)["elmo_representations"][0], inner.mean(0))


@row("`elmo(word_ids, word_ids)`", "`vocab_to_cache=[...]`")
def test_cached_words(files, inner):
    elmo, numbers = Elmo(*files, 1, dropout=0, vocab_to_cache=WORDS), torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]])
    expected = inner.mean(0)
    close(elmo(numbers, numbers)["elmo_representations"][0], expected)
    del elmo._elmo_lstm._token_embedder
    elmo._elmo_lstm.reset_states()
    close(elmo(numbers[:, None], numbers[:, None])["elmo_representations"][0][:, 0], expected)
    bilm = _ElmoBiLm(*files)
    bilm.create_cached_cnn_embeddings(WORDS)
    vectors = bilm._token_embedder(batch_to_ids([WORDS[2:]]))["token_embedding"][0]
    close(bilm._word_embedding.weight[2:], vectors[1:-1])
    close(torch.stack([bilm._bos_embedding, bilm._eos_embedding]), vectors[[0, -1]])
    assert not bilm._word_embedding.weight[0].any()


@row('`elmo.load_state_dict(torch.load("old.th"))`')
def test_a_checkpoint(files, ids, tmp_path):
    """Names as AllenNLP's; tests/compat/test_allennlp_layers.py has the values of another's layout."""
    first, second = Elmo(*files, 1, dropout=0), Elmo(*files, 1, dropout=0, scalar_mix_parameters=[5.0, 0.0, 0.0])
    state = first.state_dict()
    assert "_elmo_lstm._elmo_lstm.forward_layer_0.input_linearity.weight" in state
    assert "_elmo_lstm._token_embedder._char_embedding_weights" in state and "scalar_mix_0.gamma" in state
    torch.save(state, tmp_path / "old.th")
    second.load_state_dict(torch.load(tmp_path / "old.th"))
    close(second(ids)["elmo_representations"][0], first(ids)["elmo_representations"][0])


@row('`"type": "elmo_token_embedder"`')
def test_types_of_a_configuration(files):
    """Beside a stand-in for AllenNLP's registry."""
    process = start(f"import sys\nsys.argv[1:] = {files!r}\n" + textwrap.dedent(STAND_IN))
    assert process.communicate(timeout=120)[1] == "" and process.returncode == 0


@row("`Elmo.from_params`")
def test_from_params(files, ids, inner):
    given = {"options_file": files[0], "weight_file": files[1], "dropout": 0}
    elmo = Elmo.from_params({**given, "num_output_representations": 1})
    vocabulary = types.SimpleNamespace(get_token_to_index_vocabulary=lambda _: dict(zip(WORDS, range(8))))
    embedder = ElmoTokenEmbedder.from_params(vocabulary, {**given, "namespace_to_cache": "tokens"})
    for found in (elmo(ids)["elmo_representations"][0], embedder(ids, torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]]))):
        close(found, inner.mean(0))


@row("`allennlp elmo IN OUT --all ...`", "`from allennlp.commands import main`")
def test_the_command(files, plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("The children play .\nIt rained\n")
    words = ["elmo", "in.txt", "out.h5", "--all", "--options-file", files[0], "--weight-file", files[1]]
    monkeypatch.setattr(sys, "argv", ["allennlp", *words])
    main(prog="allennlp")
    expected = plain[0][:, 0, 1:-1]
    close(torch.from_numpy(read_hdf5("out.h5")["0"]), expected)
    monkeypatch.delitem(sys.modules, "elmo_fast.compat.allennlp.run", raising=False)
    monkeypatch.setattr(sys, "argv", ["run.py", *words, "--forget-sentences"])
    runpy.run_module("elmo_fast.compat.allennlp.run", run_name="__main__")
    assert sorted(read_hdf5("out.h5")) == ["0", "1"]
    added = types.SimpleNamespace(add_subparser=lambda name, parsers: parsers.add_parser(name))
    monkeypatch.setattr(sys, "argv", ["allennlp", "mine", "--help"])
    with pytest.raises(SystemExit) as stop:
        main("allennlp", {"mine": added})
    assert stop.value.code == 0 and callable(command.elmo_command)


@row("`python -m allennlp.tools.create_elmo_embeddings_from_vocab ...`", "`main(...)` of that module")
def test_the_vocabulary_tool(files, tmp_path, monkeypatch):
    (tmp_path / "words").write_text("@@UNKNOWN@@\nplay\n")
    assert allennlp.create_elmo_embeddings_from_vocab is tool.main
    for output in ("a", "b"):
        (tmp_path / output).mkdir()
    tool.main(str(tmp_path / "words"), *files, str(tmp_path / "a"), 64, -1)
    names = inspect.signature(tool.main).parameters
    assert list(names) == ["vocab_path", "elmo_config_path", "elmo_weights_path", "output_dir", "batch_size", "device",
                           "use_custom_oov_token", "allow_nonfinite"]
    with gzip.open(tmp_path / "a" / "elmo_embeddings.txt.gz", "rt") as file:
        rows = [line.split() for line in file]
    assert [values[0] for values in rows] == ["@@UNKNOWN@@", "<S>", "</S>", "play"]
    vector = BiLm.from_files(*files).encode(["play"])[0]
    np.testing.assert_allclose(np.array(rows[3][1:], float), vector, rtol=0, atol=1e-5)


@row("`Vocabulary`, `Token`, `Instance`", "`TextField`, `Batch`", "`SingleIdTokenIndexer`", "`Embedding`",
     "`nn.util` but for", "`Params`, `Registrable`", "the subcommands `train`")
@pytest.mark.parametrize("module, name", [
    ("data", "Vocabulary"), ("data", "Token"), ("data", "Instance"), ("data.fields", "TextField"),
    ("data.dataset", "Batch"), ("data.iterators", "BasicIterator"), ("data.dataset_readers", "DatasetReader"),
    ("data.token_indexers", "SingleIdTokenIndexer"), ("modules.token_embedders", "Embedding"),
    ("nn.util", "get_text_field_mask"), ("nn.util", "masked_softmax"), ("common", "Params"), ("common", "Registrable"),
    ("common.checks", "check_dimensions_match"), ("commands", "train"), ("commands.train", "Train"),
    ("commands.predict", "Predict"), ("commands.evaluate", "Evaluate"),
    ("modules.token_embedders", "ElmoTokenEmbedderMultiLang"), ("modules.encoder_base", "_EncoderBase")])
def test_what_stays_with_allennlp_is_an_import_error(module, name):
    with pytest.raises(ImportError, match=f"cannot import name '{name}' from 'elmo_fast.compat.allennlp.{module}'|"
                                          f"No module named 'elmo_fast.compat.allennlp.{module}'"):
        exec(f"from elmo_fast.compat.allennlp.{module} import {name}")


def test_what_is_not_there_says_so(files, ids, monkeypatch, capsys):
    """The list "Not there" of the page."""
    elmo = Elmo(*files, 1)
    with pytest.raises(AttributeError, match="forward_layer_0"):
        elmo._elmo_lstm._elmo_lstm.forward_layer_0  # noqa: B018
    bilm_tfs = {"_elmo_lstm._elmo_lstm.B_0_0", "_elmo_lstm._token_embedder.W_proj"}
    assert bilm_tfs < {name for name, _ in elmo.named_parameters()} and bilm_tfs.isdisjoint(elmo.state_dict())

    class Empty(_ElmoBiLm):
        def __init__(self):
            torch.nn.Module.__init__(self)

    with pytest.raises(RuntimeError, match="^Empty: expected _ElmoBiLm's constructor to be called with the two files"):
        Empty()(ids)
    monkeypatch.setattr(sys, "argv", ["allennlp", "train", "x.json"])
    with pytest.raises(SystemExit):
        main()
    assert "invalid choice: 'train'" in capsys.readouterr().err
