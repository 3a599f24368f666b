"""Import from TensorFlow's own files: the reading process, and training that continues as in TensorFlow."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

from elmo_fast.compat.bilm.import_tf import import_checkpoint, open_checkpoint
from elmo_fast.errors import ConfigurationError
from tests.support.files import ROOT, program, run
from tests.support.tf_checkpoints import KINDS, accumulators, import_values, made_up, names_of, restored, write_folder
from tests.support.training import VOCABULARY, final, make_config, model, update, write_batches

PYTHON = shlex.quote(sys.executable)
STAND_IN = """
import numpy
class Reader(dict):
    get_variable_to_shape_map = dict.copy
    get_tensor = dict.__getitem__
class train:
    def load_checkpoint(prefix):
        print("not an answer")
        return Reader(numpy.load(prefix + ".index", allow_pickle=False))
"""


def test_a_python_without_tensorflow_names_the_extra(tmp_path, capsys):
    folder, _, vocabulary = write_folder(tmp_path / "tf")
    for python, message, expected in (
        (program(tmp_path / "bare", f'exec {PYTHON} -S -E "$@"'),
         'pip install "elmo-fast[tensorflow]", or name', 1),
        (program(tmp_path / "dies", "echo bad luck >&2; exit 3"), "ended with status 3 (bad luck)", 1),
        (str(tmp_path / "absent"), "tensorflow_python: expected a Python, got", 2),
    ):
        status, _, errors = run(capsys, "import-tf", folder, tmp_path / "run", "--vocab", vocabulary,
                                "--tensorflow-python", python)
        assert status == expected and message in errors and errors.count("\n") == 1, errors
    assert not (tmp_path / "run").exists()


def test_the_process_reads_every_variable(tmp_path):
    """A stand-in for TensorFlow reads NumPy's files."""
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    python = program(tmp_path / "python", f'PYTHONPATH={shlex.quote(str(tmp_path))} exec {PYTHON} "$@"')
    folder, _, vocabulary = write_folder(tmp_path / "tf")
    values = made_up(train_perplexity=np.bytes_(b"no number"))
    with open(folder / "model.ckpt-7.index", "wb") as file:
        np.savez(file, **values)
    assert import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, tensorflow_python=python).step == 7
    restored(tmp_path / "run", values)
    (folder / "model.ckpt-7.index").write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match="got another, a truncated or a damaged file"):
        import_checkpoint(folder, tmp_path / "other", vocab_file=vocabulary, tensorflow_python=python)


@pytest.fixture(scope="session")
def tensorflow_python():
    """A Python that has TensorFlow: this Python, or ELMO_FAST_TEST_TENSORFLOW_PYTHON."""
    if importlib.util.find_spec("tensorflow"):
        return sys.executable
    python = os.environ.get("ELMO_FAST_TEST_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("no tensorflow here (set ELMO_FAST_TEST_TENSORFLOW_PYTHON to a Python that has it)")
    return python


def write_tf_batches(folder, content):
    """Weights and four batches of a text, for TensorFlow; returns the batches."""
    batches = write_batches(model(make_config(content)), folder / "text", count=4)
    generator = np.random.default_rng(0)
    arrays = {name: generator.normal(0, 0.5 if value.ndim > 1 else 0.2, value.shape).astype(np.float32)
              for name, value in made_up(content).items() if value.ndim and not name.endswith("/Adagrad")}
    for n, batch in enumerate(batches):
        ids = batch.tokens[batch.rows].numpy() - 1
        shape = len(ids), content["unroll_steps"], content["batch_size"]
        arrays |= {f"ids{n}": ids.reshape(*shape, *ids.shape[2:]), f"targets{n}": batch.targets.numpy().reshape(shape)}
    np.savez(folder / "batches.npz", **arrays)
    return batches


@pytest.fixture(scope="session")
def tf_runs(tensorflow_python, tmp_path_factory):
    """Folder, batches and TensorFlow's numbers of every kind."""
    data = {}
    for number, (kind, content) in enumerate(KINDS.items()):
        folder = tmp_path_factory.mktemp(f"tf-{number}")
        (folder / "options.json").write_text(json.dumps(content))
        data[kind] = folder, write_tf_batches(folder, content)
    writer = ROOT / "tests" / "support" / "tf_writer.py"
    result = subprocess.run([tensorflow_python, writer, *(folder for folder, _ in data.values())], capture_output=True,
                            text=True, timeout=560, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
    assert result.returncode == 0, result.stderr[-3000:]
    return {kind: (folder, batches, dict(np.load(folder / "truth.npz"))) for kind, (folder, batches) in data.items()}


def checkpoint_of(truth):
    return {name.removeprefix("saved/"): value for name, value in truth.items() if name.startswith("saved/")}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_as_in_tensorflow(kind, tf_runs, tmp_path):
    folder, batches, truth = tf_runs[kind]
    variables = checkpoint_of(truth)
    import_values(variables, folder, tmp_path / "run", vocab_file=folder / "text" / "vocab.txt")
    trainer, expected = restored(tmp_path / "run", variables), names_of(KINDS[kind])
    assert trainer.step_number == 2
    for n in (2, 3):
        losses, norm = update(trainer.model, trainer.updater, batches[n])
        assert losses.mean() == pytest.approx(float(truth[f"loss{n}"]), rel=2e-6) and norm > 0.5
    after, sums = trainer.model.weights(), accumulators(trainer)
    for name, tf_name in expected.items():
        np.testing.assert_allclose(after[name], truth[f"after/{tf_name}"], atol=1e-6, err_msg=name)
        np.testing.assert_allclose(sums[name], truth[f"after/{tf_name}/Adagrad"], rtol=1e-6, err_msg=name)
        assert not np.array_equal(variables[tf_name], after[name]), name
    moved_names = [name for name, tf_name in expected.items() if variables[f"{tf_name}/Adagrad"].max() > 1]
    assert len(moved_names) > len(expected) // 2  # at the far end of three layers gradients are too small to count


@pytest.mark.long
def test_the_command_reads_tensorflows_files(tf_runs, tensorflow_python, tmp_path, capsys):
    folder, _, truth = tf_runs["characters"]
    vocabulary, pattern = folder / "text" / "vocab.txt", folder / "text" / "part-*.txt"
    status, out, errors = run(capsys, "import-tf", folder, tmp_path / "run", "--vocab", vocabulary,
                              "--tensorflow-python", tensorflow_python)
    assert status == 0 and not errors and "model.ckpt-2 after 2 steps, 27 variables, 27 with their accumulators" in out
    restored(tmp_path / "run", checkpoint_of(truth))
    status, _, errors = run(capsys, "train", tmp_path / "run", "--resume", "--train", pattern, "--max-steps", 4,
                            "--quiet", "--log-every", 1)
    assert status == 0 and [line["step"] for line in final(tmp_path / "run")[1] if line["kind"] == "train"] == [3, 4]


@pytest.mark.long
def test_damaged_files_are_refused(tf_runs, tensorflow_python, tmp_path):
    folder, *_ = tf_runs["words"]
    for ending in (".index", ".data-00000-of-00001"):
        (tmp_path / f"m{ending}").write_bytes((folder / f"model.ckpt-2{ending}").read_bytes())
    with open_checkpoint(tmp_path / "m", tensorflow_python) as variables:
        assert variables.read("lm/embedding").shape == (VOCABULARY, 5) and variables.step() == 2
        assert variables.read("lm/softmax/b").shape == (VOCABULARY,)
    for file, content in (("m.data-00000-of-00001", 100), ("m.index", 8)):
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:content])
        with (pytest.raises(ConfigurationError, match="damaged file"),
              open_checkpoint(tmp_path / "m", tensorflow_python)):
            pass
