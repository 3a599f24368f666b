"""Exported files: what the trainer's model computes, loaded by everything; and the way back into training."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Elmo, Options, batch_to_ids, random_weights, read_weights, write_weights
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.export import export_module, export_run
from elmo_fast.train.checkpoint import load_language_model, weights_of_run
from elmo_fast.train.evaluate import perplexity
from elmo_fast.train.corpus import read_shards
from elmo_fast.train.setup import start_or_resume
from tests.support.files import names, run, write_model
from tests.support.models import SENTENCES
from tests.support.training import TINY, WORD_INPUT, write_corpus, write_options

FAST = {"quiet": True, "evaluate_batch_size": 5}
OPEN = {**TINY, "lstm": {**TINY["lstm"], "cell_clip": 3, "proj_clip": 3}}


@pytest.fixture
def trained(tmp_path):
    """A short run, and the pattern of its text."""
    pattern, vocabulary = write_corpus(tmp_path / "text")
    start_or_resume(tmp_path / "run", train=[pattern], vocab=str(vocabulary), max_steps=8, quiet=True,
                    options_file=write_options(tmp_path / "o.json", OPEN))
    return tmp_path / "run", pattern


def embeddings(language_model, sentences):
    """Top-layer outputs of a trainer's model for single sentences from zero states: a list of [T + 2, 2 P]."""
    source, found = language_model.token_source, []
    with torch.no_grad():
        for sentence in sentences:
            framed = ["<S>", *sentence, "</S>"]
            numbers = torch.arange(len(framed))
            rows = torch.stack([numbers, numbers.flip(0)])
            (forward, backward), _ = language_model.outputs(source.token_ids(framed), rows, len(framed),
                                                            language_model.zero_state(1))
            found.append(torch.cat([forward, backward.flip(0)], dim=1))
    return found


def test_the_exported_files_embed_as_the_trainers_model(trained, tmp_path):
    folder, _ = trained
    export_run(folder, tmp_path / "out", softmax=True)
    assert names(tmp_path / "out") == ["options.json", "softmax.hdf5", "vocab.txt", "weights.hdf5"]
    options = json.loads((tmp_path / "out" / "options.json").read_text())
    assert options["char_cnn"]["n_characters"] == 262 and options["bidirectional"] is True
    language_model, _ = load_language_model(folder)
    bilm = BiLm.from_model(tmp_path / "out", state="zero")
    for sentence, expected in zip(SENTENCES, embeddings(language_model, SENTENCES)):
        layers, lengths = bilm.embed_tokens([sentence])
        assert (layers[-1] - expected).abs().max() <= 1e-5 and lengths.tolist() == [len(sentence) + 2]
        assert expected.abs().max() > 0.01


def test_the_weights_are_the_runs_and_the_softmax_is_apart(trained, tmp_path):
    folder, pattern = trained
    export_run(folder, tmp_path / "out", softmax=True)
    _, weights = weights_of_run(folder)
    options = Options.from_file(tmp_path / "out" / "options.json")
    found = read_weights(tmp_path / "out" / "weights.hdf5", options)
    assert found.keys() == {name for name in weights if not name.startswith("softmax/")}
    assert all(np.array_equal(found[name], weights[name]) for name in found)
    with h5py.File(tmp_path / "out" / "weights.hdf5") as file:
        assert "softmax" not in file and file["char_embed"].shape[0] == 261
    with h5py.File(tmp_path / "out" / "softmax.hdf5") as file:
        assert np.array_equal(file["softmax/W"][...], weights["softmax/W"])
    exported, vocabulary = load_language_model(tmp_path / "out")
    own, _ = load_language_model(folder)
    shards = read_shards(pattern, "text")
    assert perplexity(exported, shards, vocabulary, 5) == perplexity(own, shards, vocabulary, 5)


def test_float16_halves_the_file_and_rounds(trained, tmp_path):
    folder, _ = trained
    export_run(folder, tmp_path / "out", float16=True)
    assert names(tmp_path / "out") == ["options.json", "vocab.txt", "weights.hdf5"]
    _, weights = weights_of_run(folder)
    with h5py.File(tmp_path / "out" / "weights.hdf5") as file:
        assert file["char_embed"].dtype == np.float16
    found = read_weights(tmp_path / "out" / "weights.hdf5", Options.from_file(tmp_path / "out" / "options.json"))
    assert all(np.array_equal(found[name], weights[name].astype(np.float16).astype(np.float32)) for name in found)


def test_one_direction_is_refused_with_the_reason(tmp_path):
    pattern, vocabulary = write_corpus(tmp_path / "text")
    start_or_resume(tmp_path / "run", train=[pattern], vocab=str(vocabulary), max_steps=2, quiet=True,
                    bidirectional=False, options_file=write_options(tmp_path / "o.json"))
    with pytest.raises(ConfigurationError, match="expected a model of two directions, since the file format"):
        export_run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["", "encoder.elmo."])
def test_a_fine_tuned_module_is_exported(tmp_path, capsys, prefix):
    folder = write_model(tmp_path / "model")
    elmo = Elmo(folder / "options.json", folder / "weights.hdf5", 2, requires_grad=True)
    optimizer = torch.optim.SGD(elmo.parameters(), 0.5)
    sum(each.pow(2).sum() for each in elmo(batch_to_ids(SENTENCES))["elmo_representations"]).backward()
    optimizer.step()
    export_module(torch.nn.ModuleDict({"inner": elmo}), tmp_path / "one")
    torch.save({prefix + name: value for name, value in elmo.state_dict().items()} | {"other": torch.zeros(1)},
               tmp_path / "m.pt")
    status, _, errors = run(capsys, "export", tmp_path / "two", "--from-module", tmp_path / "m.pt", "--options-file",
                            folder / "options.json")
    assert status == 0, errors
    expected = elmo._elmo_lstm.weights()
    before = read_weights(folder / "weights.hdf5", Options.from_file(folder / "options.json"))
    assert not np.array_equal(before["char_embed"], expected["char_embed"])
    for out in ("one", "two"):
        options = Options.from_file(tmp_path / out / "options.json")
        found = read_weights(tmp_path / out / "weights.hdf5", options)
        assert options == Options.from_file(folder / "options.json")
        assert all(np.allclose(found[name], expected[name], atol=1e-7) for name in expected)


def test_bad_exports_are_refused(tmp_path, capsys):
    folder = write_model(tmp_path / "model")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "m.pt")
    options = ["--options-file", folder / "options.json"]
    for arguments, message in (
        ([tmp_path / "out"], "expected either RUN or --from-module, got neither"),
        ([tmp_path / "no", tmp_path / "out"], "expected a checkpoint, found none in"),
        ([tmp_path / "out", "--from-module", tmp_path / "m.pt"], "--options-file: expected the options.json"),
        ([tmp_path / "out", "--from-module", tmp_path / "absent", *options], "--from-module: expected a file, found none"),
        ([tmp_path / "out", "--from-module", tmp_path / "m.pt", *options], "expected the state_dict of a module with one"),
        ([tmp_path / "out", "--from-module", folder / "weights.hdf5", *options], "expected what torch.save"),
    ):
        status, _, errors = run(capsys, "export", *arguments)
        assert status == 2 and message in errors, errors
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigurationError, match="expected an Elmo or a BiLm, or a module around one, got 0"):
        export_module(torch.nn.Linear(2, 2), tmp_path / "out")


# ---- back into training --------------------------------------------------------------------


def test_fine_tuning_starts_from_the_files(trained, tmp_path):
    folder, pattern = trained
    export_run(folder, tmp_path / "out", softmax=True)
    _, weights = weights_of_run(folder)
    arguments = {"train": [pattern], "vocab": str(tmp_path / "out" / "vocab.txt"), "max_steps": 1, "quiet": True,
                 "learning_rate": 1e-9, "batch_size": 3, "unroll_steps": 4, "n_negative_samples_batch": 7}
    start_or_resume(tmp_path / "with", from_model=str(tmp_path / "out"), **arguments)
    _, found = weights_of_run(tmp_path / "with")
    assert all(np.allclose(found[name], weights[name], atol=1e-6) for name in weights)

    (tmp_path / "out" / "softmax.hdf5").unlink()
    start_or_resume(tmp_path / "without", from_options=str(tmp_path / "out" / "options.json"),
                    from_weights=str(tmp_path / "out" / "weights.hdf5"), **arguments)
    _, found = weights_of_run(tmp_path / "without")
    assert np.allclose(found["char_embed"], weights["char_embed"], atol=1e-6)
    assert not np.allclose(found["softmax/W"], weights["softmax/W"], atol=1e-2)
    assert json.loads((tmp_path / "without" / "options.json").read_text())["lstm"]["dim"] == 12


def test_fine_tuning_learns_from_where_the_model_was(trained, tmp_path):
    folder, pattern = trained
    start_or_resume(folder, resume=True, max_steps=60)
    export_run(folder, tmp_path / "out", softmax=True)
    common = {"train": [pattern], "vocab": str(tmp_path / "out" / "vocab.txt"), "heldout": [pattern], "max_steps": 1,
              "batch_size": 3, "unroll_steps": 4, "n_negative_samples_batch": 7, **FAST}
    start_or_resume(tmp_path / "on", from_model=str(tmp_path / "out"), **common)
    start_or_resume(tmp_path / "fresh", options_file=str(tmp_path / "out" / "options.json"), **common)
    best = [torch.load(tmp_path / name / "best.pt", weights_only=True)["perplexity"] for name in ("on", "fresh")]
    assert best[0] < best[1]


def test_another_vocabulary_than_the_softmaxs_is_refused(trained, tmp_path, capsys):
    folder, pattern = trained
    export_run(folder, tmp_path / "out", softmax=True)
    run(capsys, "vocab", pattern, tmp_path / "v.txt", "--max-size", 10)
    arguments = ["train", tmp_path / "new", "--train", pattern, "--vocab", tmp_path / "v.txt", "--from-model",
                 tmp_path / "out", "--negatives", 5, "--quiet"]
    status, _, errors = run(capsys, *arguments)
    assert status == 2 and "expected the 10 words of the vocabulary, got 28" in errors
    status, _, errors = run(capsys, *arguments, "--size", "small")
    assert status == 2 and "--size: expected none beside a model to fine-tune" in errors
    status, _, errors = run(capsys, "perplexity", tmp_path / "out", pattern, "--vocab", tmp_path / "v.txt")
    assert status == 2 and "expected the 28 words of the softmax, got 10" in errors
    (tmp_path / "out" / "softmax.hdf5").write_bytes(b"no HDF5")
    status, _, errors = run(capsys, "perplexity", tmp_path / "out", pattern)
    assert status == 2 and "softmax/W and softmax/b, got something else" in errors


def test_a_word_model_is_exported_and_loaded(tmp_path):
    pattern, vocabulary_file = write_corpus(tmp_path / "text")
    start_or_resume(tmp_path / "run", train=[pattern], vocab=str(vocabulary_file), max_steps=3, quiet=True,
                    options_file=write_options(tmp_path / "o.json", WORD_INPUT))
    export_run(tmp_path / "run", tmp_path / "out")
    bilm = BiLm.from_model(tmp_path / "out", state="zero")
    vocabulary = Vocabulary(vocabulary_file)
    ids = torch.tensor([vocabulary.encode("ka lo ru").tolist()]) + 1
    activations, _ = bilm(ids, boundaries="present")
    language_model, _ = load_language_model(tmp_path / "run")
    rows = torch.arange(5)
    with torch.no_grad():
        tops, _ = language_model.outputs(ids[0], torch.stack([rows, rows.flip(0)]), 5, language_model.zero_state(1))
    assert (activations[-1][0] - torch.cat([tops[0], tops[1].flip(0)], dim=1)).abs().max() < 1e-6


def test_the_softmax_file_needs_its_shapes(tmp_path):
    options = Options.from_dict({**OPEN, "n_tokens_vocab": 9})
    write_weights(tmp_path / "weights.hdf5", random_weights(options))
    (tmp_path / "options.json").write_text(json.dumps(options.to_dict()))
    write_weights(tmp_path / "softmax.hdf5", {"softmax/W": np.zeros((9, 4)), "softmax/b": np.zeros(9)})
    with pytest.raises(ConfigurationError, match=r"expected W \[words, 5\] and b \[words\], got \(9, 4\) and \(9,\)"):
        load_language_model(tmp_path)


def test_importing_the_package_needs_none_of_the_extras():
    code = ("import sys\nfor name in ('matplotlib', 'tensorboard', 'sklearn'):\n    sys.modules[name] = None\n"
            "import elmo_fast, elmo_fast.train.setup, elmo_fast.train.export, elmo_fast.cli")
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
