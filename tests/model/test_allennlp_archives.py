"""Models in AllenNLP's `model.tar.gz`: its options in `fta/` and an Elmo's parameters in `weights.th`."""

import sys
import tarfile

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import ConfigurationError, Elmo
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.weights.sources import find_model
from tests.support.files import TINY, names, paths, run, tiny, write_model

pytestmark = pytest.mark.usefixtures("cache")
SENTENCES = [["the", "cat"], ["naïve"]]
PREFIX = "_text_field_embedder.token_embedder_elmo._elmo."
FTA = "fta/model.text_field_embedder.token_embedders.elmo."


@pytest.fixture
def tuned(tmp_path):
    """A function that writes a tuned Elmo of some options as AllenNLP's archive, and returns both."""
    def write(content=TINY, prefix=PREFIX, options="options_file", change=None, dtype=torch.float32):
        model = write_model(tmp_path / "original", content)
        elmo = Elmo(*paths(model), 2, requires_grad=True)
        with torch.no_grad():
            for parameter in elmo.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        elmo.to(dtype)
        state = {prefix + name: value for name, value in elmo.state_dict().items()}
        state["_decoder.weight"] = torch.ones(2, 2)
        if change:
            change(state)
        torch.save(state, tmp_path / "weights.th")
        (tmp_path / "config.json").write_text("{}")
        files = {"weights.th": "weights.th", "config.json": "config.json", "vocabulary/tokens.txt": "config.json",
                 f"{FTA}weight_file": "original/weights.hdf5", "files_to_archive.json": "config.json"}
        if options:
            files |= {FTA + options: "original/options.json"}
        with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
            for name, source in files.items():
                archive.add(tmp_path / source, name)
        return elmo.float(), tmp_path / "model.tar.gz"
    return write


def layers(elmo, sentence):
    """Layers of a sentence from zero states, without its boundaries."""
    elmo._elmo_lstm.state = "zero"
    return torch.stack(elmo._elmo_lstm.embed_tokens([sentence])[0])[:, 1:-1].detach().numpy()


@pytest.mark.parametrize("content", [
    TINY, tiny(lstm__n_layers=1), tiny(lstm__dim=4, lstm__projection_dim=4), tiny(char_cnn__n_highway=2)], ids=str)
@pytest.mark.parametrize("prefix", [PREFIX, "", "_word_embeddings.token_embedder_elmo._elmo."])
def test_a_tuned_elmo_is_a_model(tuned, content, prefix):
    elmo, archive = tuned(content, prefix)
    for _ in range(2):  # written into the cache, and read from there
        loaded = elmo_fast.load(archive)
        for vectors, sentence in zip(loaded.embed(SENTENCES, state="zero"), SENTENCES):
            np.testing.assert_allclose(vectors, layers(elmo, sentence), rtol=0, atol=1e-6)
    files = find_model(archive)
    assert names(files.weight_file.parent) == ["options.json", "weights.hdf5"]


def test_every_call_that_names_a_model_takes_the_archive(tuned, tmp_path, capsys, monkeypatch):
    """The command, other classes, fine-tuning's reader, and the unpacked folder with the options beside."""
    elmo, archive = tuned()
    (tmp_path / "t.txt").write_text("the cat\n")
    for model in (archive, tmp_path):
        if model is tmp_path:
            (tmp_path / "options.json").write_bytes((tmp_path / "original" / "options.json").read_bytes())
        status, _, error = run(capsys, "embed", tmp_path / "t.txt", tmp_path / "o.npz", "--model", model, "--state",
                               "zero", "--quiet")
        assert status == 0, error
        with np.load(tmp_path / "o.npz") as arrays:
            np.testing.assert_allclose(arrays["0"], layers(elmo, SENTENCES[0]), rtol=0, atol=1e-6)
    simple = ElmoModel()
    simple.load(archive)
    expected = layers(elmo, SENTENCES[0]).mean(0)
    np.testing.assert_allclose(simple.get_elmo_vectors(SENTENCES[:1], warmup=False)[0], expected, rtol=0, atol=1e-6)
    embedder = elmo_fast.ElmoEmbedder(tmp_path / "options.json", tmp_path / "weights.th", state="zero")
    np.testing.assert_allclose(embedder.embed_sentence(SENTENCES[0]).mean(0), expected, rtol=0, atol=1e-6)
    assert run(capsys, "info", archive)[0] == 0
    monkeypatch.setitem(sys.modules, "torch", None)
    assert elmo_fast.load(archive).num_layers == 3  # in the cache


def test_half_precision_is_widened_and_nan_is_asked_for(tuned):
    elmo, archive = tuned(dtype=torch.float16)
    np.testing.assert_allclose(elmo_fast.load(archive).embed(SENTENCES[:1], state="zero")[0],
                               layers(elmo, SENTENCES[0]), rtol=0, atol=1e-6)

    def spoil(state):
        state[f"{PREFIX}_elmo_lstm._elmo_lstm.forward_layer_0.state_projection.weight"][0, 0] = torch.nan

    _, archive = tuned(change=spoil)
    with pytest.raises(ConfigurationError, match="W_P_0: expected finite"):
        elmo_fast.load(archive)
    assert np.isnan(elmo_fast.load(archive, allow_nonfinite=True).embed(SENTENCES)[0]).any()


def surplus(state):
    name = f"{PREFIX}_elmo_lstm._elmo_lstm.forward_layer_1.state_linearity.bias"
    state[name.replace("layer_1", "layer_2")] = state[name]


def second(state):
    state.update({f"other.{name}": value for name, value in state.items()})


@pytest.mark.parametrize("arguments, message", [
    ({"options": None}, ("expected options.json .* inside, found .*weights.th; AllenNLP's archive lacks the options, "
                        "since 1.0: elmo-fast export OUT --from-module weights.th --options-file options.json")),
    ({"change": surplus}, "expected only the weights of .*, found .*forward_layer_2.state_linearity.bias and 0"),
    ({"change": second}, "expected the state_dict of a module with one biLM in it, found 2 among"),
    ({"change": lambda state: state.clear()}, "expected the state_dict of a module with one biLM in it, found 0 among"),
    ({"change": lambda state: state.pop(f"{PREFIX}_elmo_lstm._token_embedder.char_conv_1.bias")},
     "char_conv_1.bias: expected shape .* found none")])
def test_other_archives_are_refused(tuned, cache, arguments, message):
    _, archive = tuned(**arguments)
    with pytest.raises(ConfigurationError, match=f"^model {archive}: .*{message}"):
        elmo_fast.load(archive)
    assert not list(cache.rglob("*.hdf5"))


def test_torch_is_named_where_it_is_missing(tuned, monkeypatch):
    _, archive = tuned()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r'pip install "elmo-fast\[torch\]"$'):
        elmo_fast.load(archive)


def test_a_folder_of_weights_alone_says_what_to_give(tuned, tmp_path):
    tuned()
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigurationError, match="found none; give model.tar.gz, or elmo-fast export --from-module"):
        find_model(tmp_path)
