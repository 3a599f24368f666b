"""Exported files: loaded by everything they compute what the trainer's model computes; and training from them."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Elmo, Options, batch_to_ids, random_weights, read_weights, write_weights
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.checkpoint import load_language_model, weights_of_run
from elmo_fast.train.corpus import read_shards
from elmo_fast.train.evaluate import perplexity
from elmo_fast.train.export import export_module, export_run
from elmo_fast.train.setup import start_or_resume
from tests.support.files import names, run, write_model
from tests.support.models import SENTENCES
from tests.support.training import QUIET, TINY, WORD_INPUT, with_lstm, write_corpus, write_options

RARELY_CLIPPED = with_lstm(cell_clip=3, proj_clip=3)
BATCHES = {"batch_size": 3, "unroll_steps": 4, "n_negative_samples_batch": 7}


def train(folder, tmp_path, content=RARELY_CLIPPED, **changes):
    """A short run; returns its folder and the pattern of its text."""
    pattern, vocabulary = write_corpus(tmp_path / "text")
    start_or_resume(folder, train=[pattern], vocab=str(vocabulary), quiet=True,
                    options_file=write_options(tmp_path / "o.json", content), **changes)
    return folder, pattern


@pytest.fixture
def trained(tmp_path):
    return train(tmp_path / "run", tmp_path, max_steps=8)


@pytest.fixture
def exported(trained, tmp_path):
    export_run(trained[0], tmp_path / "out", softmax=True)
    return tmp_path / "out"


def exported_weights(folder):
    return read_weights(folder / "weights.hdf5", Options.from_file(folder / "options.json"))


def embeddings(language_model, tokens):
    """Top-layer outputs of a trainer's model for a sentence with its boundaries, from zero states: [T, 2 P]."""
    rows = torch.arange(len(tokens))
    with torch.no_grad():
        (forward, backward), _ = language_model.outputs(
            language_model.token_source.token_ids(tokens) if isinstance(tokens, list) else tokens,
            torch.stack([rows, rows.flip(0)]), len(tokens), language_model.zero_state(1))
    return torch.cat([forward, backward.flip(0)], dim=1)


def test_the_exported_files_embed_as_the_trainers_model(trained, exported):
    assert names(exported) == ["options.json", "softmax.hdf5", "vocab.txt", "weights.hdf5"]
    options = json.loads((exported / "options.json").read_text())
    assert options["char_cnn"]["n_characters"] == 262 and options["bidirectional"] is True
    language_model, _ = load_language_model(trained[0])
    bilm = BiLm.from_model(exported, state="zero")
    for sentence in SENTENCES:
        expected = embeddings(language_model, ["<S>", *sentence, "</S>"])
        layers, lengths = bilm.embed_tokens([sentence])
        assert (layers[-1] - expected).abs().max() <= 1e-5 and lengths.tolist() == [len(sentence) + 2]
        assert expected.abs().max() > 0.01


def test_the_weights_are_the_runs_and_the_softmax_has_its_own_file(trained, exported):
    folder, pattern = trained
    _, weights = weights_of_run(folder)
    found = exported_weights(exported)
    assert found.keys() == {name for name in weights if not name.startswith("softmax/")}
    assert all(np.array_equal(found[name], weights[name]) for name in found)
    with h5py.File(exported / "weights.hdf5") as file:
        assert "softmax" not in file and file["char_embed"].shape[0] == 261
    with h5py.File(exported / "softmax.hdf5") as file:
        assert np.array_equal(file["softmax/W"][...], weights["softmax/W"])
    shards = read_shards(pattern, "text")
    of_files, of_run = (perplexity(model, shards, vocabulary, 5)
                        for model, vocabulary in map(load_language_model, (exported, folder)))
    assert of_files == of_run


def test_float16_halves_the_file_and_rounds(trained, tmp_path):
    export_run(trained[0], tmp_path / "out", float16=True)
    assert names(tmp_path / "out") == ["options.json", "vocab.txt", "weights.hdf5"]
    _, weights = weights_of_run(trained[0])
    with h5py.File(tmp_path / "out" / "weights.hdf5") as file:
        assert file["char_embed"].dtype == np.float16
    found = exported_weights(tmp_path / "out")
    assert all(np.array_equal(found[name], weights[name].astype(np.float16).astype(np.float32)) for name in found)


def test_one_direction_is_refused(tmp_path):
    train(tmp_path / "run", tmp_path, TINY, max_steps=2, bidirectional=False)
    with pytest.raises(ConfigurationError, match="expected a model of two directions, since the file format"):
        export_run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["", "encoder.elmo."])
def test_a_fine_tuned_module_is_exported(tmp_path, capsys, prefix):
    folder = write_model(tmp_path / "model")
    elmo = Elmo(folder / "options.json", folder / "weights.hdf5", 2, requires_grad=True)
    optimizer = torch.optim.SGD(elmo.parameters(), 0.5)
    sum(layer.pow(2).sum() for layer in elmo(batch_to_ids(SENTENCES))["elmo_representations"]).backward()
    optimizer.step()
    export_module(torch.nn.ModuleDict({"inner": elmo}), tmp_path / "one")
    torch.save({prefix + name: value for name, value in elmo.state_dict().items()} | {"other": torch.zeros(1)},
               tmp_path / "m.pt")
    status, _, errors = run(capsys, "export", tmp_path / "two", "--from-module", tmp_path / "m.pt", "--options-file",
                            folder / "options.json")
    assert status == 0, errors
    expected = elmo._elmo_lstm.weights()
    assert not np.array_equal(exported_weights(folder)["char_embed"], expected["char_embed"])
    for out in (tmp_path / "one", tmp_path / "two"):
        assert Options.from_file(out / "options.json") == Options.from_file(folder / "options.json")
        found = exported_weights(out)
        assert all(np.allclose(found[name], expected[name], atol=1e-7) for name in expected)


def test_bad_exports_are_refused(tmp_path, capsys):
    folder = write_model(tmp_path / "model")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "m.pt")
    module, options = [tmp_path / "out", "--from-module"], ["--options-file", folder / "options.json"]
    for arguments, message in (
        ([tmp_path / "out"], "expected either RUN or --from-module, got neither"),
        ([tmp_path / "no", tmp_path / "out"], "expected a checkpoint, found none in"),
        ([*module, tmp_path / "m.pt"], "--options-file: expected the options.json"),
        ([*module, tmp_path / "absent", *options], "--from-module: expected a file, found none"),
        ([*module, tmp_path / "m.pt", *options], "expected the state_dict of a module with one"),
        ([*module, folder / "weights.hdf5", *options], "expected what torch.save"),
    ):
        status, _, errors = run(capsys, "export", *arguments)
        assert status == 2 and message in errors, errors
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigurationError, match="expected an Elmo or a BiLm, or a module around one, got 0"):
        export_module(torch.nn.Linear(2, 2), tmp_path / "out")


# ---- back into training --------------------------------------------------------------------


def test_fine_tuning_starts_from_the_files(trained, exported, tmp_path):
    _, weights = weights_of_run(trained[0])
    arguments = {"train": [trained[1]], "vocab": str(exported / "vocab.txt"), "max_steps": 1, "quiet": True,
                 "learning_rate": 1e-9, **BATCHES}
    start_or_resume(tmp_path / "with", from_model=str(exported), **arguments)
    _, found = weights_of_run(tmp_path / "with")
    assert all(np.allclose(found[name], weights[name], atol=1e-6) for name in weights)

    (exported / "softmax.hdf5").unlink()
    start_or_resume(tmp_path / "without", from_options=str(exported / "options.json"),
                    from_weights=str(exported / "weights.hdf5"), **arguments)
    config, found = weights_of_run(tmp_path / "without")
    assert np.allclose(found["char_embed"], weights["char_embed"], atol=1e-6)
    assert not np.allclose(found["softmax/W"], weights["softmax/W"], atol=1e-2)
    assert config.model.lstm.dim == 12


def test_fine_tuning_begins_below_the_perplexity_of_random_weights(trained, tmp_path):
    folder, pattern = trained
    start_or_resume(folder, resume=True, max_steps=60)
    export_run(folder, tmp_path / "out", softmax=True)
    common = {"train": [pattern], "vocab": str(tmp_path / "out" / "vocab.txt"), "heldout": [pattern], "max_steps": 1,
              **BATCHES, **QUIET}
    start_or_resume(tmp_path / "tuned", from_model=str(tmp_path / "out"), **common)
    start_or_resume(tmp_path / "random", options_file=str(tmp_path / "out" / "options.json"), **common)
    tuned, random = (torch.load(tmp_path / name / "best.pt", weights_only=True)["perplexity"]
                     for name in ("tuned", "random"))
    assert tuned < random


def test_another_vocabulary_than_the_softmaxs_is_refused(trained, exported, tmp_path, capsys):
    other = tmp_path / "v.txt"
    run(capsys, "vocab", trained[1], other, "--max-size", 10)
    train = ["train", tmp_path / "new", "--train", trained[1], "--vocab", other, "--from-model", exported,
             "--negatives", 5, "--quiet"]
    test = ["perplexity", exported, trained[1]]
    for arguments, message in ((train, "expected the 10 words of the vocabulary, got 28"),
                               ([*train, "--size", "small"], "--size: expected none beside a model to fine-tune"),
                               ([*test, "--vocab", other], "expected the 28 words of the softmax, got 10"),
                               (test, "softmax.hdf5: expected an HDF5 file")):
        if arguments == test:
            (exported / "softmax.hdf5").write_bytes(b"no HDF5")
        status, _, errors = run(capsys, *arguments)
        assert status == 2 and message in errors


def test_a_word_model_is_exported_and_loaded(tmp_path):
    train(tmp_path / "run", tmp_path, WORD_INPUT, max_steps=3)
    export_run(tmp_path / "run", tmp_path / "out")
    bilm = BiLm.from_model(tmp_path / "out", state="zero")
    ids = torch.tensor([Vocabulary(tmp_path / "text" / "vocab.txt").encode("ka lo ru").tolist()]) + 1
    activations, _ = bilm(ids, boundaries="present")
    expected = embeddings(load_language_model(tmp_path / "run")[0], ids[0])
    assert (activations[-1][0] - expected).abs().max() < 1e-6


def test_the_softmax_file_needs_its_shapes(tmp_path):
    options = Options.from_dict({**RARELY_CLIPPED, "n_tokens_vocab": 9})
    write_weights(tmp_path / "weights.hdf5", random_weights(options))
    (tmp_path / "options.json").write_text(json.dumps(options.to_dict()))
    write_weights(tmp_path / "softmax.hdf5", {"softmax/W": np.zeros((9, 4)), "softmax/b": np.zeros(9)})
    with pytest.raises(ConfigurationError, match=r"expected W \[words, 5\] and b \[words\], got \(9, 4\) and \(9,\)"):
        load_language_model(tmp_path)


def test_importing_the_package_needs_none_of_the_extras():
    code = ("import sys\nfor name in ('matplotlib', 'tensorboard', 'sklearn'):\n    sys.modules[name] = None\n"
            "import elmo_fast, elmo_fast.train.setup, elmo_fast.train.export, elmo_fast.cli")
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
