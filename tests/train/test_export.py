"""Exported files: every loader gives the results of the trainer's model; and fine-tuning from exported files."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Elmo, Options, batch_to_ids, read_weights, write_weights
from elmo_fast.text.corpus import read_shards
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.checkpoint import load_language_model, weights_of_run
from elmo_fast.train.evaluate import perplexity
from elmo_fast.train.export import export_module, export_run
from elmo_fast.train.setup import start_or_resume
from tests.support.files import names, run, write_model
from tests.support.models import SENTENCES
from tests.support.training import TINY, WORD_INPUT, check_refusals, with_lstm, write_corpus, write_options

RARELY_CLIPPED = with_lstm(cell_clip=3, proj_clip=3)


def train(folder, content=RARELY_CLIPPED, **changes):
    """A short run, and its export with a softmax if it has two directions; returns both folders and the text's glob."""
    pattern, vocabulary = write_corpus(folder / "text")
    start_or_resume(folder / "run", train=[pattern], vocab=str(vocabulary), quiet=True, max_steps=8,
                    options_file=write_options(folder / "o.json", content), **changes)
    if changes.get("bidirectional", True):
        export_run(folder / "run", folder / "out", softmax=True)
    return folder / "run", folder / "out", pattern


def exported_weights(folder):
    return read_weights(folder / "weights.hdf5", Options.from_file(folder / "options.json"))


def embeddings(folder, tokens):
    """Top-layer outputs of a run's model for the ids of a sentence with its boundaries, from zero states: [T, 2 P]."""
    model, rows = load_language_model(folder)[0], torch.arange(len(tokens))
    ids = torch.from_numpy(model.config.model.token_ids()(tokens)).long() if isinstance(tokens, list) else tokens
    with torch.no_grad():
        (forward, backward), _ = model.outputs(ids, torch.stack([rows, rows.flip(0)]), len(ids), model.zero_state(1))
    return torch.cat([forward, backward.flip(0)], dim=1)


def test_the_exported_files_embed_as_the_trainers_model(tmp_path):
    folder, out, _ = train(tmp_path)
    assert names(out) == ["options.json", "softmax.hdf5", "vocab.txt", "weights.hdf5"]
    options = json.loads((out / "options.json").read_text())
    assert options["char_cnn"]["n_characters"] == 262 and options["bidirectional"] is True
    bilm = BiLm.from_model(out, state="zero")
    for sentence in SENTENCES:
        expected = embeddings(folder, ["<S>", *sentence, "</S>"])
        layers, lengths = bilm.embed_tokens([sentence])
        assert (layers[-1] - expected).abs().max() <= 1e-5 and lengths.tolist() == [len(sentence) + 2]
        assert expected.abs().max() > 0.01


def test_a_word_model_is_exported_and_loaded(tmp_path):
    folder, out, _ = train(tmp_path, WORD_INPUT)
    ids = torch.tensor([Vocabulary(tmp_path / "text" / "vocab.txt").encode("ka lo ru").tolist()]) + 1
    activations, _ = BiLm.from_model(out, state="zero")(ids, boundaries="present")
    assert (activations[-1][0] - embeddings(folder, ids[0])).abs().max() < 1e-6


def test_the_weights_are_the_runs_rounded_on_request_and_the_softmax_has_its_own_file(tmp_path):
    folder, out, pattern = train(tmp_path)
    shards = read_shards(pattern, "text")
    of_files, of_run = (perplexity(model, shards, vocabulary, 5)
                        for model, vocabulary in map(load_language_model, (out, folder)))
    assert of_files == of_run
    export_run(folder, tmp_path / "half", float16=True)
    assert names(tmp_path / "half") == ["options.json", "vocab.txt", "weights.hdf5"]
    export_run(folder, tmp_path / "half", softmax=True, float16=True)
    _, weights = weights_of_run(folder)
    for path, dtype in ((out, np.float32), (tmp_path / "half", np.float16)):
        arrays = exported_weights(path)
        assert arrays.keys() == {name for name in weights if not name.startswith("softmax/")}
        with h5py.File(path / "weights.hdf5") as file, h5py.File(path / "softmax.hdf5") as softmax:
            assert "softmax" not in file and file["char_embed"].shape[0] == 261
            arrays["softmax/W"] = softmax["softmax/W"][...]
            assert file["char_embed"].dtype == softmax["softmax/W"].dtype == dtype
        for name, value in arrays.items():
            assert np.array_equal(value, weights[name].astype(dtype).astype(np.float32)), name


def test_a_run_and_a_module_are_exported_as_safetensors(tmp_path, capsys):
    """The softmax stays HDF5, and commands that need it read the model."""
    folder, out, pattern = train(tmp_path)
    pytest.importorskip("safetensors")
    assert run(capsys, "export", folder, tmp_path / "safe", "--softmax", "--safetensors")[0] == 0
    assert names(tmp_path / "safe") == ["model.safetensors", "options.json", "softmax.hdf5", "vocab.txt"]
    export_module(BiLm.from_model(out), tmp_path / "module", safetensors=True)
    torch.save(Elmo(out / "options.json", out / "weights.hdf5", 1).state_dict(), tmp_path / "m.pt")
    assert run(capsys, "export", tmp_path / "dict", "--from-module", tmp_path / "m.pt", "--options-file",
               out / "options.json", "--safetensors")[0] == 0
    expected = exported_weights(out)
    for path in ("safe", "module"):
        arrays = read_weights(tmp_path / path / "model.safetensors", Options.from_file(out / "options.json"))
        assert all(arrays[name].tobytes() == values.tobytes() for name, values in expected.items())
    assert names(tmp_path / "dict") == ["model.safetensors", "options.json"]
    for model in ("safe", "out"):
        assert run(capsys, "perplexity", tmp_path / model, pattern, "--quiet") == run(
            capsys, "perplexity", out, pattern, "--quiet")


def test_short_mantissas_are_compressed(tmp_path, capsys):
    folder, out, _ = train(tmp_path)
    for bits in ("3", "10"):
        assert run(capsys, "export", folder, tmp_path / bits, "--mantissa-bits", bits, "--softmax")[0] == 0
    few, all_bits, expected = map(exported_weights, (tmp_path / "3", tmp_path / "10", out))
    for name, values in expected.items():
        half = values.astype(np.float16).astype(np.float32)
        assert np.array_equal(all_bits[name], half)
        assert np.allclose(few[name], values, rtol=2**-4, atol=2**-18)
        assert (few[name] != half).any() <= (values.ndim > 1)
    for file in ("weights.hdf5", "softmax.hdf5"):
        with h5py.File(tmp_path / "3" / file) as content:
            assert content["softmax/W" if "softmax" in content else "char_embed"].compression == "gzip"
    BiLm.from_model(tmp_path / "3").embed_tokens(SENTENCES)
    check_refusals(capsys, (["export", folder, tmp_path / "no", "--mantissa-bits", "11"],
                            "mantissa_bits: expected an integer of at most 10, got 11"),
                   (["export", folder, tmp_path / "no", "--mantissa-bits", "4", "--float16"], "not allowed with"))
    assert not (tmp_path / "no").exists()


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
        arrays = exported_weights(out)
        assert all(np.allclose(arrays[name], expected[name], atol=1e-7) for name in expected)


def test_fine_tuning_starts_from_the_files(tmp_path):
    folder, out, pattern = train(tmp_path)
    _, weights = weights_of_run(folder)
    arguments = {"train": [pattern], "vocab": str(out / "vocab.txt"), "max_steps": 1, "quiet": True,
                 "learning_rate": 1e-9, "batch_size": 3, "unroll_steps": 4, "n_negative_samples_batch": 7}
    start_or_resume(tmp_path / "with", from_model=str(out), **arguments)
    _, tuned = weights_of_run(tmp_path / "with")
    assert all(np.allclose(tuned[name], weights[name], atol=1e-6) for name in weights)

    (out / "softmax.hdf5").unlink()
    start_or_resume(tmp_path / "without", from_options=str(out / "options.json"),
                    from_weights=str(out / "weights.hdf5"), **arguments)
    config, tuned = weights_of_run(tmp_path / "without")
    assert np.allclose(tuned["char_embed"], weights["char_embed"], atol=1e-6)
    assert not np.allclose(tuned["softmax/W"], weights["softmax/W"], atol=1e-2)
    assert config.model.lstm.dim == 12


@pytest.mark.parametrize("optimizer", ["adagrad", "adamw"])
def test_fine_tuning_that_ends_before_a_checkpoint_restarts_from_the_model(tmp_path, optimizer):
    _, out, pattern = train(tmp_path)
    arguments = {"train": [pattern], "vocab": str(out / "vocab.txt"), "from_model": str(out), "max_steps": 2,
                 "optimizer": optimizer, "quiet": True, "batch_size": 3, "unroll_steps": 4,
                 "n_negative_samples_batch": 7}
    start_or_resume(tmp_path / "whole", **arguments)
    (shutil.copytree(tmp_path / "whole", tmp_path / "parts") / "checkpoints" / "step-00000002.pt").unlink()
    start_or_resume(tmp_path / "parts", resume=True)
    _, expected = weights_of_run(tmp_path / "whole")
    _, actual = weights_of_run(tmp_path / "parts")
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)


def test_fine_tuning_needs_the_vocabulary_of_the_rows(tmp_path, capsys):
    """The rows are those of the softmax beside a model, or of a model of words; a new softmax has its own."""
    _, out, pattern = train(tmp_path)
    words = (out / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = tmp_path / "v.txt"
    vocabulary.write_text("\n".join([*words[:3], *words[:2:-1]]) + "\n", encoding="utf-8")
    tune = ["train", tmp_path / "new", "--train", pattern, "--vocab", vocabulary, "--max-steps", 1, "--quiet",
            "--batch-size", 3, "--unroll-steps", 4, "--negatives", 7]
    message = f"--vocab: expected the words of {out / 'vocab.txt'} in their order"
    check_refusals(capsys, ([*tune, "--from-model", out], message))
    (out / "softmax.hdf5").unlink()
    assert run(capsys, *tune, "--from-model", out)[0] == 0


def test_a_run_and_a_model_are_not_mixed(tmp_path, capsys):
    folder, out, pattern = train(tmp_path)
    before = {path: path.read_bytes() for path in (*folder.iterdir(), *out.iterdir()) if path.is_file()}
    new = ["--train", pattern, "--vocab", out / "vocab.txt", "--max-steps", 1, "--quiet"]
    check_refusals(
        capsys, (["export", folder, folder], "output: expected a directory other than that of a training run, got"),
        (["train", out, *new], "expected a new directory, found options.json, which belongs to no run"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "options.json").write_bytes((folder / "options.json").read_bytes())
    check_refusals(capsys, (["train", tmp_path / "new", *new, "--options-file", tmp_path / "new" / "options.json"],
                            "expected a new directory, found options.json"))
    with pytest.raises(ConfigurationError, match="output: expected a directory other than that of a training run"):
        export_module(BiLm.from_files(out / "options.json", out / "weights.hdf5"), folder)
    with pytest.raises(ConfigurationError, match="checkpoint: expected none beside the exported files of"):
        load_language_model(out, "nowhere.pt")
    assert before == {path: path.read_bytes() for path in before}


def test_bad_exports_are_refused(tmp_path, capsys):
    folder, out = write_model(tmp_path / "model"), tmp_path / "new"
    torch.save({"weight": torch.zeros(2)}, tmp_path / "m.pt")
    one_direction, *_ = train(tmp_path / "one", TINY, bidirectional=False)
    module, options = [out, "--from-module"], ["--options-file", folder / "options.json"]
    check_refusals(capsys, *((["export", *arguments], message) for arguments, message in [
        ([out], "expected either RUN or --from-module, got neither"),
        ([tmp_path / "no", out], "expected a checkpoint, found none in"),
        ([one_direction, out], "expected a model of two directions, since the file format"),
        ([*module, tmp_path / "m.pt"], "--options-file: expected the options.json"),
        ([*module, tmp_path / "absent", *options], "--from-module: expected a file, found nothing"),
        ([*module, tmp_path / "m.pt", *options], "expected the state_dict of a module with one"),
        ([*module, folder / "weights.hdf5", *options], "expected tensors written by torch.save"),
    ]))
    with pytest.raises(ConfigurationError, match="expected an Elmo or a BiLm, or a module around one, got 0"):
        export_module(torch.nn.Linear(2, 2), out)
    assert not out.exists()


def test_a_softmax_that_does_not_fit_is_refused(tmp_path, capsys):
    _, out, pattern = train(tmp_path)
    vocabulary = tmp_path / "v.txt"
    run(capsys, "vocab", pattern, vocabulary, "--max-size", 10)
    tune = ["train", tmp_path / "new", "--train", pattern, "--vocab", vocabulary, "--from-model", out, "--negatives", 5]
    test = ["perplexity", out, pattern]
    check_refusals(capsys, (tune, "expected the 10 words of the vocabulary, got 28"),
                   ([*tune, "--size", "small"], "--size: expected none beside a model to fine-tune"),
                   ([*test, "--vocab", vocabulary], "expected the 28 words of the softmax, got 10"))
    write_weights(out / "softmax.hdf5", {"softmax/W": np.zeros((28, 4)), "softmax/b": np.zeros(28)})
    check_refusals(capsys, (test, "expected W [words, 5] and b [words], got (28, 4) and (28,)"))
    (out / "softmax.hdf5").write_bytes(b"no HDF5")
    check_refusals(capsys, (test, "softmax.hdf5: expected an HDF5 file"))
    (out / "softmax.hdf5").unlink()
    check_refusals(capsys, (test, "softmax: expected softmax.hdf5, which export writes with --softmax"))
