"""Models of words read text through their vocabulary, in every call that reads text; unknown words are `<UNK>`."""

import copy
import json
import pickle

import h5py
import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import BiLm, Elmo, ElmoEmbedder, Options, TokenTable, random_weights, write_weights
from elmo_fast.compat import allennlp
from elmo_fast.compat import bilm as bilm_tf
from elmo_fast.compat.allennlp.modules.elmo import _ElmoBiLm
from elmo_fast.compat.allennlp.modules.token_embedders import ElmoTokenEmbedder
from elmo_fast.compat.allennlp.tools.create_elmo_embeddings_from_vocab import create_elmo_embeddings_from_vocab
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.testing import SAME_MODEL
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.export import export_module, export_state_dict
from tests.support.files import TINY, paths, read_hdf5, run
from tests.support.softmax import WORDS

CONTENT = {"lstm": {**TINY["lstm"], "dim": 12}, "n_tokens_vocab": len(WORDS)}
TOKENS = ["the cat sat on the mat .".split(), ["One"], [], "the unseen dog sat naïve .".split(), ["<S>", "UNSEEN"]]
TEXT = "".join(" ".join(tokens) + "\n" for tokens in TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of twelve words, with its vocabulary, a softmax and a text."""
    folder = tmp_path_factory.mktemp("words") / "model"
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(CONTENT))
    write_weights(folder / "weights.hdf5", random_weights(Options.from_dict(CONTENT)))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    with h5py.File(folder / "softmax.hdf5", "w") as file:
        file["softmax/W"] = np.random.default_rng(7).normal(0, 1, (len(WORDS), 4)).astype(np.float32)
        file["softmax/b"] = np.zeros(len(WORDS), np.float32)
    (folder.parent / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """Layers [3, T, 8] of each text from zero states, by the weights alone: word k of the vocabulary has id k + 1."""
    options = Options.from_dict(CONTENT)
    bilm = BiLm(options, random_weights(options), state="zero", backend="reference")
    numbers = {word: number for number, word in enumerate(WORDS, 1)}
    arrays = []
    for tokens in TOKENS:
        ids = [numbers.get(token, numbers["<UNK>"]) for token in ["<S>", *tokens, "</S>"]]
        layers = bilm(torch.tensor([ids]), boundaries="present").activations
        arrays.append(torch.cat(layers)[:, 1:-1].detach().numpy())
    return arrays


def check(actual, expected):
    for values, truth in zip(actual, expected, strict=True):
        np.testing.assert_allclose(values, truth, rtol=0, atol=SAME_MODEL)


def of_elmo(elmo):
    output = elmo(elmo._elmo_lstm.token_source.batch_ids(TOKENS))
    for values, mask in zip(output["elmo_representations"][0].detach(), output["mask"]):
        yield values[mask > 0].numpy()


@pytest.mark.parametrize("backend", ["auto", "reference", "torch"])
def test_vectors_of_text(folder, expected, backend):
    elmo = elmo_fast.load(folder, backend=backend)
    check(elmo.embed(TOKENS, state="zero"), expected)
    check(elmo.embed([" ".join(tokens) for tokens in TOKENS], state="zero"), expected)
    check(elmo.stream(TOKENS, state="zero", layers="top"), [layers[2] for layers in expected])
    check([elmo.encode_words(TOKENS[3])], [expected[3][0, :, :4]])
    embedder = ElmoEmbedder(*paths(folder), state="zero", backend=backend)
    check(embedder.embed_batch(TOKENS), expected)
    check(embedder.embed_sentences(TOKENS, batch_size=2), expected)
    assert np.isfinite(np.concatenate([layers.ravel() for layers in elmo.embed(TOKENS)])).all()  # warm


def test_elmo_and_the_drop_ins(folder, expected, tmp_path):
    means = [layers.mean(0) for layers in expected]
    for kind in (Elmo, allennlp.Elmo):
        check(of_elmo(kind(*paths(folder), 1, dropout=0, state="zero")), means)
    embedder = ElmoTokenEmbedder(*paths(folder), dropout=0, state="zero")
    ids = embedder._elmo._elmo_lstm.token_source.batch_ids(TOKENS)
    assert ids.tolist()[4] == [2, 3, 0, 0, 0, 0, 0] and embedder(ids[:, None]).shape == (5, 1, 7, 8)
    check(embedder(ids[:, None])[:, 0, :1].detach().numpy()[:1], [means[0][:1]])
    cached = allennlp.Elmo(*paths(folder), 1, dropout=0, state="zero", vocab_to_cache=["[pad]", "cat", "unseen"])
    words = torch.tensor([[1, 2]])
    cat = elmo_fast.load(folder).embed([["cat", "unseen"]], state="zero", layers="average")
    check(cached(None, words)["elmo_representations"][0].detach().numpy(), cat)
    bilm = _ElmoBiLm(*paths(folder), state="zero")
    check([bilm.encode(TOKENS[3]).detach().numpy()], [expected[3][0, :, :4]])
    model = ElmoModel(state="zero")
    model.load(folder, full=True)
    check([row[:len(tokens)] for row, tokens in zip(model.get_elmo_vectors(TOKENS, layers="top"), TOKENS)],
          [layers[2] for layers in expected])
    assert model.get_elmo_substitutes(["the unseen"])[0][1]["word"] == "unseen"
    (tmp_path / "vocab.txt").write_text("@@UNKNOWN@@\ncat\n")
    create_elmo_embeddings_from_vocab(tmp_path / "vocab.txt", *paths(folder), tmp_path / "out")


def test_dumps(folder, expected, tmp_path):
    """The vocabulary argument numbers the words of a model without a vocabulary."""
    model, vocabulary, out = tmp_path / "model", tmp_path / "given.txt", tmp_path / "out.hdf5"
    model.mkdir()
    for path in paths(folder):
        (model / path.name).write_bytes(path.read_bytes())
    vocabulary.write_text("\n".join(WORDS), encoding="utf-8")
    bilm_tf.dump_bilm_embeddings(vocabulary, folder.parent / "text.txt", *paths(model), out, state="zero")
    arrays = read_hdf5(out)
    check([arrays[str(number)] for number in range(5)], expected)
    bilm_tf.dump_token_embeddings(vocabulary, *paths(model), out)
    check([read_hdf5(out)["embedding"]], [random_weights(Options.from_dict(CONTENT))["embedding"]])
    words = bilm_tf.BidirectionalLanguageModel(*paths(model), use_character_inputs=False, state="zero",
                                               embedding_weight_file=out)
    ops = words(bilm_tf.TokenBatcher(vocabulary).batch_sentences(TOKENS[:2]))
    check([layers[:, :len(tokens)] for layers, tokens in zip(ops["lm_embeddings"].numpy(), TOKENS)], expected[:2])


def test_token_tables(folder, expected, tmp_path, capsys):
    bilm = BiLm.from_model(folder, state="zero")
    tables = [elmo_fast.build_token_table(bilm, folder / "vocab.txt"),
              elmo_fast.build_token_table(bilm, ["the", "on", "sat", "<UNK>"], unknown="unk")]
    assert run(capsys, "cache", folder / "vocab.txt", tmp_path / "table.hdf5", "--model", folder)[0] == 0
    for table in (*tables[:1], TokenTable.open(tmp_path / "table.hdf5")):
        bilm.token_table = table
        check(ElmoEmbedder.from_bilm(bilm).embed_batch(TOKENS), expected)
    bilm.token_table = tables[1]  # `dog` has the vector of `<UNK>`
    vectors = ElmoEmbedder.from_bilm(bilm).embed_sentence(["the", "dog"])
    check([vectors], elmo_fast.load(folder).embed([["the", "UNSEEN"]], state="zero"))


def test_files_and_the_command(folder, expected, tmp_path, capsys):
    text, out = folder.parent / "text.txt", tmp_path / "out.h5"
    flags = ("--all", "--state", "zero", "--allow-blank")
    for model in (("--model", folder), ("--options-file", paths(folder)[0], "--weight-file", paths(folder)[1])):
        status, _, errors = run(capsys, "embed", text, out, *flags, *model)
        assert status == 0, errors
        arrays = read_hdf5(out)
        check([arrays[str(number)] for number in range(5)], expected)
    elmo_fast.load(folder).save_vectors(tmp_path / "saved.npz", TOKENS, state="zero")
    check([np.load(tmp_path / "saved.npz")[str(number)] for number in range(5)], expected)
    for arguments in (("score", text), ("substitutes", text, "--word", "dog"), ("info", folder),
                      ("compare", "the cat", "the dog"), ("nearest", text, "--word", "cat", "--any-word")):
        model = () if arguments[0] == "info" else ("--model", folder)
        status, printed, errors = run(capsys, *arguments, *model)
        assert status == 0 and printed, errors


def test_copies_and_exports_keep_the_vocabulary(folder, expected, tmp_path):
    elmo = Elmo(*paths(folder), 1, dropout=0, state="zero")
    export_module(elmo, tmp_path / "module")
    torch.save(elmo.state_dict(), tmp_path / "state.th")
    export_state_dict(tmp_path / "state.th", paths(folder)[0], tmp_path / "state")
    for name in ("module", "state"):
        assert (tmp_path / name / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1] == WORDS
        check(elmo_fast.load(tmp_path / name).embed(TOKENS, state="zero"), expected)
    for copied in (copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))):
        check(of_elmo(copied), [layers.mean(0) for layers in expected])


def test_the_fingerprint_has_the_vocabulary(folder, tmp_path):
    """A run with another vocabulary is not resumed, and a token table of that vocabulary is refused."""
    clone = tmp_path / "other"
    clone.mkdir()
    for path in (*paths(folder), folder / "vocab.txt"):
        (clone / path.name).write_bytes(path.read_bytes())
    ours = BiLm.from_model(folder)
    assert BiLm.from_model(clone).fingerprint() == ours.fingerprint()
    (clone / "vocab.txt").write_text("\n".join([*WORDS[:-1], "Two"]), encoding="utf-8")
    assert BiLm.from_model(clone).fingerprint() != ours.fingerprint()


def test_refusals(folder, tmp_path):
    options = Options.from_dict(CONTENT)
    without = BiLm(options, random_weights(options), state="zero")
    with pytest.raises(ValueError, match=r"^tokens: expected word ids .* a vocabulary beside its weights"):
        without.embed_tokens(TOKENS)
    with pytest.raises(ValueError, match="^token: expected a string, got int"):
        ElmoEmbedder(*paths(folder)).embed_sentence([5])
    model = tmp_path / "model"
    model.mkdir()
    for path in paths(folder):
        (model / path.name).write_bytes(path.read_bytes())
    for words, message in ((WORDS[1:], "missing </S>"), ([*WORDS, "x"], "expected the 12 words of the model, got 13")):
        (model / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
        with pytest.raises(ValueError, match=f"^vocabulary .*{message}"):
            elmo_fast.load(model)
    (model / "vocab.txt").write_text("\n".join("<UNKNOWN>" if word == "<UNK>" else word for word in WORDS))
    elmo = elmo_fast.load(model)
    with pytest.raises(ValueError, match="which has no <UNK> to stand for another, got 'unseen'"):
        elmo.embed(["the unseen"], state="zero")
    assert Vocabulary(model / "vocab.txt").unk == -1 and elmo.embed(["the cat"], state="zero")[0].shape == (3, 2, 8)
