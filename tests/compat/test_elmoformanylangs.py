"""Models of ELMoForManyLangs: against NumPy in float64, and against its own code where it is installed."""

import json
import pickle
import random
import shutil
import sys
import types
import zipfile

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import BiLm, ConfigurationError
from elmo_fast.compat.elmoformanylangs import Embedder
from elmo_fast.testing import AGAINST_FLOAT64, SAME_MODEL, relative_error
from elmo_fast.weights.families.manylangs import read_config
from tests.support.files import read_hdf5, run
from tests.support.manylangs import CHARACTERS, CONFIG, SENTENCES, config, plain_layers, write_manylangs

AGAINST_THE_ORIGINAL = 1e-5
MANY_CHARACTERS = [*map(chr, range(0x4E00, 0x4E00 + 400)), *CHARACTERS]
MODELS = {
    "words and characters": {},
    "characters alone": {"content": config(word_dim=0)},
    "no clips": {"content": config(cell_clip=0, proj_clip=None)},
    "one layer, tanh, no highway": {"content": config(n_layers=1, activation="tanh", n_highway=0)},
    "more characters than bytes, padding in the middle": {"characters": MANY_CHARACTERS},
    "padding first": {"characters": ["<pad>", *MANY_CHARACTERS]},
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request, tmp_path_factory):
    return write_manylangs(tmp_path_factory.mktemp("model"), **MODELS[request.param])


@pytest.fixture
def common(tmp_path):
    return write_manylangs(tmp_path / "model")


def close(actual, expected, atol):
    assert len(actual) == len(expected)
    for array, expected_array in zip(actual, expected):
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected_array, rtol=0, atol=atol)


def near(actual, expected):
    """Layers [layers, T, 2 P] are within fp32 rounding of those in float64."""
    assert [array.shape for array in actual] == [array.shape for array in expected]
    for layers, expected_layers in zip(actual, expected):
        assert layers.dtype == np.float32
        for layer, exact in zip(layers, expected_layers):
            assert not layer.size or relative_error(*map(torch.from_numpy, (layer, exact))) < AGAINST_FLOAT64["ieee"]


def test_attributes(common):
    embedder = Embedder(str(common), batch_size=64, precision="highest")
    assert embedder.batch_size == 64 and embedder.model_dir == str(common) and isinstance(embedder.model, BiLm)
    assert embedder.config == read_config(common)[0] and isinstance(embedder.use_cuda, bool)
    for lexicon, name in ((embedder.char_lexicon, "char.dic"), (embedder.word_lexicon, "word.dic")):
        lines = (common / name).read_text(encoding="utf-8").splitlines()
        assert lexicon == {token.strip() or "\u3000": int(number) for token, _, number in (
            line.rpartition("\t") for line in lines)} and len(lexicon) == len(lines)


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
def test_layers_are_those_of_float64(model, backend):
    expected, clipped = zip(*(plain_layers(model, sentence) for sentence in SENTENCES))
    sizes = json.loads((model / "sizes.json").read_text())["encoder"]
    assert all((np.sum(clipped, axis=0) > 20) == [bool(sizes["cell_clip"]), bool(sizes["proj_clip"])])
    elmo = elmo_fast.load(model, backend=backend)
    near(elmo.embed(SENTENCES, state="zero", batch_size=3), expected)
    near([elmo.encode_words(SENTENCES[2])[None]], [expected[2][:1, :, :6]])
    embedder = Embedder(model, batch_size=len(SENTENCES), backend=backend)  # the first batch starts from zeros
    near(embedder.sents2elmo(SENTENCES, -2), expected)


def test_output_layers(common):
    expected = [plain_layers(common, sentence)[0] for sentence in SENTENCES]
    for state in ("zero", "carry"):
        def embed(layer, state=state):
            return Embedder(common, state=state).sents2elmo(SENTENCES, layer)

        layers = embed(-2)
        near(layers, expected)
        close(embed(-1), [array.mean(axis=0) for array in layers], SAME_MODEL)
        for layer in range(3):
            close(embed(layer), [array[layer] for array in layers], 0)
    assert Embedder(common).sents2elmo([]) == []


def test_boundaries_are_the_models_own(common):
    """`<S>` is a word like any other, `<bos>` the boundary, as in the original."""
    elmo = elmo_fast.load(common)
    assert not np.allclose(elmo.encode_words(["<S>"]), elmo.encode_words(["<bos>"]))
    ids = elmo.bilm.token_source.token_ids(["<S>", "<bos>"])
    assert (ids[:, :9] != 261).sum(1).tolist() == [5, 3]
    activations, mask = elmo.bilm(elmo.bilm.token_source.token_ids(SENTENCES[0])[None])
    assert activations[0].shape == (1, 6, 12) and mask.all()
    elmo.bilm.state = "zero"
    inner = torch.stack(elmo.bilm(elmo.bilm.token_source.token_ids(SENTENCES[0])[None])[0])[:, 0, 1:-1]
    near([inner.numpy()], [plain_layers(common, SENTENCES[0])[0]])


def test_states_are_carried_in_the_order_of_random(common):
    sentences = [sentence for sentence in SENTENCES if sentence] * 3
    random.seed(5)
    first = Embedder(common, batch_size=4)
    two = [first.sents2elmo(sentences), first.sents2elmo(sentences)]
    assert any(not np.allclose(first_array, second_array) for first_array, second_array in zip(*two))
    random.seed(5)
    close(Embedder(common, batch_size=4).sents2elmo(sentences), two[0], 0)
    warm = Embedder(common, batch_size=4, state="warm")
    close(warm.sents2elmo(sentences), elmo_fast.load(common).embed(sentences, "average"), SAME_MODEL)


def test_archives_copies_and_checkpoints(common, tmp_path):
    expected = elmo_fast.load(common).embed(SENTENCES)
    with zipfile.ZipFile(tmp_path / "144.zip", "w") as archive:
        for path in common.iterdir():
            archive.write(path, f"144/{path.name}")
        archive.writestr("144/README", "about")
    close(elmo_fast.load(tmp_path / "144.zip").embed(SENTENCES), expected, 0)
    elmo = elmo_fast.load(common)
    close(pickle.loads(pickle.dumps(elmo)).embed(SENTENCES), expected, 0)
    clone = elmo_fast.load(write_manylangs(tmp_path / "other", seed=1))
    clone.bilm.load_state_dict(elmo.bilm.state_dict())
    close(elmo_fast.LoadedElmo(clone.bilm).embed(SENTENCES), expected, SAME_MODEL)


def test_the_json_file_with_the_sizes(common):
    """The file lies beside config.json, by its path or by its name, or in the original's package."""
    (common / "elsewhere").mkdir()
    shutil.copy(common / "sizes.json", common / "elsewhere" / "sizes.json")
    (common / "sizes.json").write_text("{}")
    assert read_config(common)[0] == CONFIG
    default = "/home/someone/configs/cnn_50_100_512_4096_sample.json"
    (common / "config.json").write_text(json.dumps({"config_path": default}))
    assert {"dim": 4096, "projection_dim": 512}.items() <= read_config(common)[0]["encoder"].items()
    (common / "config.json").write_text(json.dumps({"config_path": "/home/other.json"}))
    with pytest.raises(FileNotFoundError, match="expected the file other.json that config.json names, found none$"):
        Embedder(common)


def test_the_ideographic_space(tmp_path):
    """A line of white space and a number is the ideographic space's, since the original strips lines."""
    folder = write_manylangs(tmp_path, characters=[*CHARACTERS, "\u3000"])
    sentence = ["a\u3000b", "a b"]
    near(Embedder(folder).sents2elmo([sentence], -2), [plain_layers(folder, sentence)[0]])


@pytest.mark.parametrize("spoil, message", [
    (lambda folder: (folder / "char.dic").write_text("a\n"), "char.dic: expected a token, a tab and a number"),
    (lambda folder: (folder / "char.dic").write_text("a\t0\n"), "char.dic: expected <eow>, .*found no <eow>, <bow>"),
    (lambda folder: (folder / "word.dic").unlink(), "word.dic: expected a token, a tab and a number"),
    (lambda folder: (folder / "word.dic").write_text("<oov>\t0\n<pad>\t9\n"), "pkl: word.dic: expected .* from 0 to 8"),
    (lambda folder: (folder / "config.json").write_text("{}"), "config.json: expected the key config_path"),
    (lambda folder: (folder / "token_embedder.pkl").unlink(), "token_embedder.pkl: expected tensors written by"),
    (lambda folder: torch.save({}, folder / "encoder.pkl"), r"weight: expected shape \(40, 6\) .*, found none"),
    (lambda folder: torch.save([1], folder / "encoder.pkl"), "encoder.pkl: expected a state_dict, got list"),
    (lambda folder: (folder / "encoder.pkl").write_bytes(pickle.dumps(Harmful(), 2)), "encoder.pkl: expected tensors"),
    (lambda folder: (folder / "sizes.json").write_text(json.dumps(config(n_layers=1))),
     "encoder.pkl: expected only the weights of .*, found backward_layer_1.input_linearity.weight and 7 more"),
    (lambda folder: (folder / "encoder.pkl").write_bytes(b""), "encoder.pkl: expected tensors written by torch.save"),
    (lambda folder: write_manylangs(folder, config(char_dim=4), seed=2) and (folder / "sizes.json").write_text(
        json.dumps(CONFIG)), r"char_emb_layer.embedding.weight: expected shape \(None, 8\), found \(\d+, 4\)"),
])
def test_damaged_models_are_refused(common, spoil, message):
    spoil(common)
    with pytest.raises(ConfigurationError, match=message):
        Embedder(common)
    assert not hasattr(sys, "harmed")


class Harmful:
    """A pickle that would run code."""

    def __reduce__(self):
        return exec, ("import sys; sys.harmed = True",)


def test_nan_is_refused_unless_it_is_allowed(common):
    content = torch.load(common / "encoder.pkl")
    content["backward_layer_1.state_projection.weight"][0, 0] = torch.nan
    torch.save(content, common / "encoder.pkl")
    for load, method in ((elmo_fast.load, "embed"), (Embedder, "sents2elmo")):
        with pytest.raises(ConfigurationError, match="backward_layer_1.state_projection.weight: expected finite"):
            load(common)
        assert np.isnan(getattr(load(common, allow_nonfinite=True), method)([["a"]])[0]).any()


@pytest.mark.parametrize("changes, message", [
    ({"activation": "gelu"}, "activation: expected one of relu, tanh"), ({"char_dim": 0}, "dim: expected an integer"),
    ({"dim": 6}, "encoder: expected a projection_dim below dim, got 6"), ({"cell_clip": -1}, "cell_clip: expected")])
def test_other_sizes_are_refused(tmp_path, changes, message):
    folder = write_manylangs(tmp_path)
    (folder / "sizes.json").write_text(json.dumps(config(**changes)))
    with pytest.raises(ConfigurationError, match=message):
        Embedder(folder)


def test_unsupported_calls_are_refused(common, tmp_path):
    embedder = Embedder(common)
    for arguments, message in (
            *(((SENTENCES, layer), "output_layer: expected -1 for the mean") for layer in (3, -3, True, "top")),
            ((["one sentence"],), r"sents\[0\]: expected a list of tokens, got the str"),
            (([[1]],), "token: expected a string, got int")):
        with pytest.raises(ValueError, match=f"^{message}"):
            embedder.sents2elmo(*arguments)
    with pytest.raises(ValueError, match="^batch_size: expected an integer"):
        Embedder(common, 0)
    with pytest.raises(ConfigurationError, match="found a model of ELMoForManyLangs, which elmo_fast.load"):
        BiLm.from_model(common)
    with pytest.raises(ConfigurationError, match="copy its directory instead"):
        embedder.model.options.to_dict()
    table = elmo_fast.build_token_table(elmo_fast.load().bilm, ["a"])
    with pytest.raises(ConfigurationError, match="token_table: expected None for a model whose sentences do not run"):
        embedder.model.token_table = table


def test_the_command(common, tmp_path, capsys):
    text, output = tmp_path / "in.txt", tmp_path / "out.hdf5"
    text.write_text("the cat sat .\n東京 abcdefg\n", encoding="utf-8")
    assert run(capsys, "embed", text, output, "--all", "--state", "zero", "--model", common, "--quiet") == (0, "", "")
    arrays = read_hdf5(output)
    layers = [plain_layers(common, line.split())[0] for line in text.read_text(encoding="utf-8").splitlines()]
    near([arrays["0"], arrays["1"]], layers)
    for flag, mix in (("--all", lambda x: x), ("--top", lambda x: x[-1]), ("--average", lambda x: x.mean(0))):
        assert run(capsys, "embed", text, output, flag, "--model", common, "--quiet")[0] == 0
        arrays = read_hdf5(output)
        close([arrays["0"], arrays["1"]], list(map(mix, layers)), SAME_MODEL)
    words = [[f"{number}\t{word}" + "\t_" * 8 for number, word in enumerate(line.split(), 1)]
             for line in text.read_text(encoding="utf-8").splitlines()]
    (tmp_path / "in.conllu").write_text("\n\n".join(map("\n".join, words)) + "\n", encoding="utf-8")
    assert run(capsys, "embed", tmp_path / "in.conllu", output, "--all", "--state", "zero", "--model", common)[0] == 0
    arrays = read_hdf5(output)
    near([arrays["0"], arrays["1"]], layers)
    status, printed, _ = run(capsys, "info", common)
    assert status == 0 and f"{len(set(CHARACTERS))} characters (char.dic), at most 9 a token" in printed
    assert "; 9 words (word.dic)" in printed
    assert "parameters:             5,969" in printed


@pytest.mark.parametrize("arguments, message", [
    (["cache", "{words}", "{out}", "--model", "{model}"], "token table: expected a model whose sentences run from <S>"),
    (["score", "{words}", "--model", "{model}"], "softmax: expected a model with its softmax, found none at"),
    (["seqvec", "-i", "{fasta}", "-o", "{out}.h5", "--model", "{model}"], "expected options.json and"),
    (["train", "{out}", "--train", "{words}", "--vocab", "{words}", "--from-model", "{model}"],
     "found a model of ELMoForManyLangs"),
    (["perplexity", "{model}", "{words}"], "found a model of ELMoForManyLangs")])
def test_refusals_of_the_command(common, tmp_path, capsys, arguments, message):
    (tmp_path / "words").write_text("<S>\n</S>\n<UNK>\nthe\n")
    (tmp_path / "fasta").write_text(">a|b\nMK\n")
    places = {name: tmp_path / name for name in ("words", "fasta", "out")}
    before = sorted(tmp_path.iterdir())
    status, printed, errors = run(capsys, *(each.format(model=common, **places) for each in arguments))
    assert (status, printed, errors.count("\n")) == (2, "", 1) and message in errors
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("word_dim", [5, 0])
def test_weights_are_not_written_as_hdf5(tmp_path, word_dim):
    """Also without words: 261 rows of characters would load as bilm-tf's, for other characters."""
    bilm = elmo_fast.load(write_manylangs(tmp_path / "model", config(word_dim=word_dim))).bilm
    with pytest.raises(ConfigurationError, match="^weights: expected a model that options.json and [*].hdf5 can hold, "
                                                 "got a model of ELMoForManyLangs, whose lexicons they cannot hold"):
        elmo_fast.write_weights(tmp_path / "weights.hdf5", bilm.weights())
    with pytest.raises(ConfigurationError, match="^token table: expected a model whose sentences run from <S> to </S>"):
        elmo_fast.build_token_table(bilm, ["a"])
    assert not (tmp_path / "weights.hdf5").exists()


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [64, 3])
def test_the_originals_own_code(model, batch_size, monkeypatch):
    # the package asks for `overrides`, whose newer versions refuse the annotations of its modules
    monkeypatch.setitem(sys.modules, "overrides", types.SimpleNamespace(overrides=lambda method: method))
    theirs = pytest.importorskip("elmoformanylangs", reason="elmoformanylangs is not installed")
    filled = [sentence for sentence in SENTENCES if sentence]  # its mean of no tokens is an error
    results = []
    for kind in (theirs.Embedder, Embedder):
        random.seed(3)
        embedder = kind(str(model), batch_size)
        results.append([embedder.sents2elmo(sentences, layer) for sentences, layer in (
            (SENTENCES * 3, -2), (filled * 2, -1), (SENTENCES, 0), (filled, 1), (SENTENCES * 2, -2))])
    for original, ours in zip(*results):
        close(ours, original, AGAINST_THE_ORIGINAL)
