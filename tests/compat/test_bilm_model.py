"""bilm-tf's `BidirectionalLanguageModel` on characters and on word ids, its two dumps and its usage scripts."""

import copy
import os
import pickle
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, remove_boundaries
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, TokenBatcher
from elmo_fast.compat.bilm.model import dump_bilm_embeddings, dump_token_embeddings
from elmo_fast.testing import SAME_MODEL
from tests.support import models
from tests.support.files import ROOT, read_hdf5

BATCHES = [
    [["the", "sea"], ["grey", "and", "old", "salt"], []],
    [["wind"], ["the", "grey", "wind", "of", "the", "sea"]],
    [["salt", "and", "wind"], ["sea"], ["of"], ["the", "x" * 60]],
]
WORDS = ["<S>", "</S>", "<UNK>", "sea", "", "naïve", "東京", "w" * 60, "sea", "."]
LINES = ["the sea is grey", "  wide  and\tsalt ", "", "naïve\u00a0東京 .", "   ", "x" * 60, "the sea is grey"]


@pytest.fixture
def model(files):
    return BidirectionalLanguageModel(*files, max_batch_size=3)


@pytest.fixture
def table(tmp_path, files, vocab):
    """The file of the vocabulary's token vectors."""
    dump_token_embeddings(vocab, *files, tmp_path / "table.hdf5", progress=False)
    return tmp_path / "table.hdf5"


@pytest.fixture
def ids(vocab):
    return Batcher(vocab, 50).batch_sentences(BATCHES[0])


def test_results_and_states(files, vocab):
    model, bilm = BidirectionalLanguageModel(*files, max_batch_size=5).to("cpu"), BiLm.from_files(*files)
    states = BidirectionalLanguageModel(*files).lstm_init_states()
    assert [value.shape for value in states["forward"][1]] == [(128, 37), (128, 11)] and len(states["backward"]) == 2
    for batch in BATCHES:
        ids, longest = Batcher(vocab, 50).batch_sentences(batch), max(map(len, batch))
        ops, (activations, mask) = model(ids), bilm(torch.from_numpy(ids), boundaries="present")
        for vectors, layer in zip(ops["lm_embeddings"].unbind(1), activations, strict=True):
            assert (vectors - remove_boundaries(layer, mask)[0]).abs().max() < SAME_MODEL
        assert isinstance(ops, dict) and ops["lengths"].tolist() == ops["mask"].sum(1).tolist() == list(map(len, batch))
        assert ops["lm_embeddings"].shape == (len(batch), 3, longest, 22) and ops["lengths"].dtype == torch.int64
        assert ops["mask"].dtype == torch.bool and ops["mask"].shape == (len(batch), longest)
        assert (ops["token_embeddings"] - activations[0][..., :11]).abs().max() < SAME_MODEL
        assert not any(value.requires_grad for value in (*ops.values(), *model.parameters()))
        tokens = model.token_embeddings(np.concatenate([ids, 0 * ids])[:, 1:])  # above max_batch_size, without <S>
        assert (tokens[: len(ids)] - ops["token_embeddings"][:, 1:]).abs().max() < SAME_MODEL
        assert tokens.shape == (2 * len(ids), longest + 1, 11) and not tokens[len(ids) :].any()
    for number, direction in enumerate(("forward", "backward")):
        for layer, pair in enumerate(model.lstm_init_states()[direction]):
            for values, carried in zip(pair, bilm._elmo_lstm._states[::-1]):
                expected = carried[layer].chunk(2, dim=1)[number]
                assert (values[:4] - expected).abs().max() < SAME_MODEL and not values[4:].any() and len(values) == 5


def test_streams_have_separate_states(model, ids):
    def run(stream):
        return model(ids, stream=stream)["lm_embeddings"]

    first, second = run("context"), run("context")
    assert (first - second)[:, 1:].abs().max() > 1e-4
    assert not model.lstm_init_states("question")["forward"][0][0].any() and torch.equal(run("question"), first)
    model.reset_states("context")
    assert torch.equal(run("context"), first) and torch.equal(run("question"), second)
    model.reset_states()
    assert torch.equal(run("question"), first)


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_without_carried_states_calls_repeat_with_ids_of_every_integer_type(files, ids, state):
    model = BidirectionalLanguageModel(*files, state=state)
    expected = model(ids)["lm_embeddings"]
    for same in (ids, torch.as_tensor(ids), ids.astype(np.int32), torch.as_tensor(ids, dtype=torch.int32),
                 ids.astype(np.uint16), ids.tolist()):
        assert torch.equal(model(same)["lm_embeddings"], expected)


def test_a_batch_of_no_sentences(model):
    assert {name: tuple(value.shape) for name, value in model(np.zeros((0, 5, 50), dtype=np.int64)).items()} == {
        "lm_embeddings": (0, 3, 3, 22), "lengths": (0,), "mask": (0, 3), "token_embeddings": (0, 5, 11)}


def test_a_model_trained_on_word_ids(tmp_path):
    files = models.files(tmp_path, models.WORD_IDS)
    model = BidirectionalLanguageModel(*files, use_character_inputs=False, embedding_weight_file=files[1])
    ids = np.array([[1, 9, 3, 2], [1, 2, 0, 0]])
    ops = model(ids)
    bilm = BiLm.from_files(*files)
    table = np.vstack([np.zeros((1, 4)), bilm.weights()["embedding"]])
    assert np.abs(ops["token_embeddings"].numpy() - table[ids]).max() < 1e-7
    assert torch.equal(model.token_embeddings(ids), ops["token_embeddings"])
    expected = bilm(torch.from_numpy(ids), boundaries="present").activations[-1]
    assert torch.allclose(ops["lm_embeddings"][0, -1], expected[0, 1:3], atol=SAME_MODEL)
    with pytest.raises(ConfigurationError, match="use_character_inputs: expected False"):
        BidirectionalLanguageModel(*files)
    with pytest.raises(TypeError, match="use_token_inputs"):
        BidirectionalLanguageModel(*files, use_token_inputs=False)


def test_copies_and_pickles_keep_the_states(files, vocab, table):
    ids = TokenBatcher(vocab).batch_sentences([["sea", "salt"]])
    model = BidirectionalLanguageModel(*files, False, table)
    model(ids, stream="a")
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    expected = model(ids, stream="a")["lm_embeddings"]
    assert all(torch.equal(twin(ids, stream="a")["lm_embeddings"], expected) for twin in twins)


def test_refuses(tmp_path, files, vocab, table, model):
    ids, other_files = Batcher(vocab, 50).batch_sentences(BATCHES[1]), models.files(tmp_path, models.options(), seed=1)
    before, words = model(ids)["lm_embeddings"], BidirectionalLanguageModel(*files, False, table)
    model.reset_states()
    hole = np.concatenate([ids[1:], ids[1:] * (np.arange(8) != 3)[:, None]])
    for call, wrong, message in [
        (model, [np.concatenate([ids, ids])], r"ids: expected at most max_batch_size \(3\) sentences, got 4"),
        (model, [ids.astype(np.float32)], "ids: expected integers, got float32"),
        (model, [-ids.astype(np.int64)], "ids: expected integers of at least 0, got -"),
        (model.token_embeddings, [-ids.astype(np.int64)], "ids: expected integers of at least 0, got -"),
        (model, [ids[0]], r"ids: expected integers of shape \[sentences, tokens, characters\], got shape"),
        (model, [ids[..., :49]], r"ids: .*\[batch, tokens, 50\], got shape"),
        (model, [ids + 200], "ids: expected character ids from 0 to 261"),
        (model, [ids * (np.arange(8) < 1)[:, None]], "ids: expected <S> and </S> in .*, got 1 positions in row 0; "),
        (model, [np.concatenate([ids[:1], 0 * ids[:1]])], "ids: .* got 0 positions in row 1"),
        (model, [hole], "ids: .* tokens before its padding"),
        (words, [np.array([[1, 11, 2]])], "ids: .* 11"),
        (words, [ids], r"ids: expected integers of shape \[sentences, tokens\], got shape"),
        (words, [np.array([[1, 4, 2], [1, 0, 0]])], "ids: .* got 1 positions in row 1"),
        (BidirectionalLanguageModel, [*other_files, False, table],
         ".*".join(["token_table: ", *(BiLm.from_files(*pair).fingerprint() for pair in (other_files, files))])),
        (BidirectionalLanguageModel, [*files, False], "embedding_weight_file: expected the file of token vectors"),
        *((BidirectionalLanguageModel, [*files, True, None, size], "max_batch_size: expected an integer of at least 1")
          for size in (0, True, 2.0)),
        (BidirectionalLanguageModel, [files[0], tmp_path / "none.hdf5"], "weight_file"),
    ]:
        with pytest.raises(FileNotFoundError if message == "weight_file" else ValueError, match=f"^{message}"):
            call(*wrong)
    assert torch.equal(model(ids)["lm_embeddings"], before)


@pytest.fixture
def inputs(tmp_path, files):
    """A vocabulary, a text, and a model: the first arguments of both dumps."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return tmp_path / "vocab.txt", tmp_path / "text.txt", *files


def test_token_embeddings(tmp_path, inputs):
    vocab, _, *model = inputs
    dump_token_embeddings(vocab, *model, tmp_path / "out.hdf5")
    arrays = read_hdf5(tmp_path / "out.hdf5")
    assert list(arrays) == ["embedding"]
    assert arrays["embedding"].dtype == np.float32 and arrays["embedding"].shape == (len(WORDS), 11)
    bilm = BiLm.from_files(*model)
    np.testing.assert_allclose(arrays["embedding"], bilm.encode(WORDS).detach(), rtol=0, atol=SAME_MODEL)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file.attrs["fingerprint"] == bilm.fingerprint()


def test_a_dump_carries_the_state_from_line_to_line_unless_asked(tmp_path, inputs, model):
    """A blank line has no tokens, and bilm-tf runs `<S> </S>` for it."""
    dump_bilm_embeddings(*inputs, tmp_path / "out.hdf5")
    arrays, batcher = read_hdf5(tmp_path / "out.hdf5"), Batcher(inputs[0], 50)
    assert sorted(arrays) == [str(number) for number in range(len(LINES))]
    for number, line in enumerate(LINES):
        expected = model(batcher.batch_sentences([line.split()]))["lm_embeddings"][0]
        np.testing.assert_allclose(arrays[str(number)], expected, rtol=0, atol=SAME_MODEL)
        assert arrays[str(number)].dtype == np.float32
    assert np.abs(arrays["0"] - arrays["6"])[1:].max() > 1e-3
    dump_bilm_embeddings(*inputs, tmp_path / "out.hdf5", batch_size=4, state="zero", progress=False)
    arrays = read_hdf5(tmp_path / "out.hdf5")
    np.testing.assert_allclose(arrays["0"], arrays["6"], rtol=0, atol=SAME_MODEL)


@pytest.mark.parametrize("change, message", [
    ({0: "bare.txt"}, "vocabulary .*missing <S>, </S>"),
    ({2: "words/options.json", 3: "words/weights.hdf5"}, "vocabulary .*: expected the 9 words of the model, got 10"),
    ({4: "none/out.hdf5"}, "out(put )?file: expected an existing directory"),
    ({1: "empty.txt"}, ".*got an empty file"),
    *(({"batch_size": size}, "batch_size: expected an integer of at least 1") for size in (0, True, 1.5)),
])
def test_dumps_refuse(tmp_path, inputs, change, message):
    (tmp_path / "bare.txt").write_text("sea\nsalt\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("")
    models.files(tmp_path / "words", models.WORD_IDS)
    size = {"batch_size": change["batch_size"]} if "batch_size" in change else {}
    paths = [tmp_path / change.get(number, path) for number, path in enumerate([*inputs, "out.hdf5"])]
    error = FileNotFoundError if "directory" in message else ValueError
    with pytest.raises(error, match=f"^{message}"):
        dump_bilm_embeddings(*paths, **size)
    if not size and 1 not in change:
        with pytest.raises(error, match=f"^{message}"):
            dump_token_embeddings(paths[0], *paths[2:])
    assert not (tmp_path / "out.hdf5").exists()


@pytest.mark.parametrize("script, has_model, shows", [
    ("usage_character.py", False, ["context at the input: (2, 12, 32)", "question at the input: (1, 6, 32)",
                                   "three steps"]),
    ("usage_cached.py", False, ["layers of the second sentence: (3, 12, 32)", "their mixture: (1, 12, 32)"]),
    ("usage_cached.py", True, ["(3, 12, 22)"]),
    ("usage_token.py", False, ["context at the input: (2, 12, 32)", "question at the input: (1, 6, 32)"]),
])
@pytest.mark.long
def test_usage(tmp_path, inputs, script, has_model, shows):
    model = ["--vocab-file", inputs[0], "--options-file", inputs[2], "--weight-file", inputs[3]] if has_model else []
    process = subprocess.run([sys.executable, ROOT / "examples" / script, "--folder", tmp_path, *model], timeout=120,
                             capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.returncode == 0, process.stderr
    assert all(line in process.stdout for line in shows)
    if "cached" in script:
        arrays = read_hdf5(tmp_path / "elmo_embeddings.hdf5")
        assert {name: len(layers[0]) for name, layers in arrays.items()} == {"0": 9, "1": 12, "2": 6}
