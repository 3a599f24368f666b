"""AllenNLP's `common` modules and `commands.main`: names that code around ELMo imports, and refusals."""

import argparse
import importlib.util
import io
import pickle
import runpy
import sys

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError, ElmoEmbedder
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp import run
from elmo_fast.compat.allennlp.commands import main
from elmo_fast.compat.allennlp.commands.elmo import elmo_command
from elmo_fast.compat.allennlp.common import checks
from elmo_fast.compat.allennlp.common.file_utils import cached_path
from elmo_fast.compat.allennlp.common.util import import_submodules, lazy_groups_of, pad_sequence_to_length
from elmo_fast.weights.sources import cache_path
from tests.support.files import python, read_hdf5

TEXT = "First sentence .\nSecond\n"
STAYS = r"it stays with AllenNLP \(docs/migrating.md\)"


@pytest.fixture
def command(tmp_path, files, monkeypatch):
    """Runs `allennlp elmo` on a text, with the model's files, through `main` or another function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text(TEXT, encoding="utf-8")

    def run_main(*arguments, text="in.txt", call=main):
        monkeypatch.setattr(sys, "argv", ["run.py", "elmo", text, "out.h5", "--options-file", files[0],
                                          "--weight-file", files[1], *arguments])
        return call()

    return run_main


@pytest.mark.parametrize("layers, mixed", [("--all", lambda x: x), ("--top", lambda x: x[-1]),
                                           ("--average", lambda x: x.mean(0))])
def test_elmo_command_writes_the_embedders_vectors(command, files, monkeypatch, layers, mixed):
    assert command(layers, "--batch-size", "1", "--file-friendly-logging", "--vocab-path", "none") is None
    expected = list(ElmoEmbedder(*files).embed_sentences([line.split() for line in TEXT.splitlines()], 1))
    with h5py.File("out.h5") as file:
        assert set(file) == {"0", "1", "sentence_to_index"}
        for key, vectors in enumerate(expected):
            np.testing.assert_array_equal(file[str(key)][()], mixed(vectors))
    monkeypatch.delitem(sys.modules, run.__name__)
    for call in (lambda: main(prog="allennlp"), lambda: runpy.run_module(run.__name__, run_name="__main__")):
        command(layers, "--forget-sentences", call=call)
        with h5py.File("out.h5") as file:
            assert set(file) == {"0", "1"}


def test_elmo_command_takes_the_arguments_of_allennlps_parser(command, files, monkeypatch):
    """The parser opens the input file, or gives `-` for stdin, and sets a flag for every choice of layers."""
    command("--top")
    expected = read_hdf5("out.h5")
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT))
    monkeypatch.setattr(sys.stdin, "seekable", lambda: False)
    for source in (io.StringIO(TEXT), "-"):
        elmo_command(argparse.Namespace(
            input_file=source, output_file="own.h5", all=False, top=True, average=False, options_file=files[0],
            weight_file=files[1], batch_size=64, cuda_device=-1, forget_sentences=False, use_sentence_keys=False,
            file_friendly_logging=False))
        arrays = read_hdf5("own.h5")
        assert arrays.keys() == expected.keys()
        for key in arrays.keys() - {"sentence_to_index"}:
            np.testing.assert_array_equal(arrays[key], expected[key])


def test_errors_are_raised_and_wrong_usage_exits_with_2(command, capsys, tmp_path, monkeypatch):
    (tmp_path / "blank.txt").write_text("a\n\nb\n")
    with pytest.raises(checks.ConfigurationError, match="line"):
        command("--all", text="blank.txt")
    with pytest.raises(FileNotFoundError):
        command("--all", text="nowhere.txt")
    with pytest.raises(ModuleNotFoundError, match="none_such"):
        command("--all", "--include-package", "none_such")
    for wrong in ([], ["--all", "--top"], ["--batch-size", "x"]):
        with pytest.raises(SystemExit) as stop:
            command(*wrong)
        assert stop.value.code == 2
    monkeypatch.setattr(sys, "argv", ["run.py", "train"])
    with pytest.raises(SystemExit):
        main()
    assert "invalid choice: 'train'" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert run.main() is None and "elmo" in capsys.readouterr().out


def test_the_program_reports_an_error_in_one_line(command, monkeypatch):
    monkeypatch.delitem(sys.modules, run.__name__)
    with pytest.raises(SystemExit, match="^allennlp: error: input_file: expected a file, found nothing at nowhere.txt"):
        command("--all", text="nowhere.txt", call=lambda: runpy.run_module(run.__name__, run_name="__main__"))


def test_subcommands_of_the_caller(monkeypatch):
    class Mine:
        def add_subparser(self, name, parser):
            mine = parser.add_parser(name)
            mine.set_defaults(func=lambda arguments: packages.append(arguments.include_package))
            return mine

    packages = []
    monkeypatch.setattr(sys, "argv", ["run.py", "mine"])
    main(subcommand_overrides={"mine": Mine()})
    main("allennlp", {"mine": Mine()})
    assert packages == [[], []]


def test_cached_path(files, tmp_path, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_CACHE", str(tmp_path / "cache"))
    assert cached_path(files[0]) == files[0]
    path = cache_path("https://host/a/options.json")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert cached_path("https://host/a/options.json") == str(path)
    with pytest.raises(FileNotFoundError, match="url_or_filename: expected a file or URL, found nothing at nowhere"):
        cached_path("nowhere")


def test_util():
    assert list(lazy_groups_of(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]
    assert list(lazy_groups_of([], 2)) == []
    assert pad_sequence_to_length([1, 2, 3], 5) == [1, 2, 3, 0, 0]
    assert pad_sequence_to_length([1, 2, 3], 2) == [1, 2]
    assert pad_sequence_to_length([1, 2, 3], 5, lambda: 7, padding_on_right=False) == [7, 7, 1, 2, 3]
    assert pad_sequence_to_length([1, 2, 3], 2, None, False) == [2, 3]
    import_submodules("elmo_fast.text")
    assert "elmo_fast.text.fasta" in sys.modules
    assert checks.ConfigurationError is ConfigurationError  # without AllenNLP


@pytest.mark.parametrize("path", (
    "data.Vocabulary data.Token data.Instance data.fields.TextField data.dataset.Batch data.iterators.BasicIterator "
    "data.dataset_readers.DatasetReader data.token_indexers.SingleIdTokenIndexer modules.token_embedders.Embedding "
    "modules.seq2vec_encoders.Seq2VecEncoder modules.TextFieldEmbedder modules.ConditionalRandomField models.Model "
    "predictors.Predictor training.Trainer nn.util.get_text_field_mask nn.util.masked_softmax common.Params "
    "common.Registrable common.checks.check_dimensions_match commands.train commands.train.Train "
    "commands.predict.Predict commands.evaluate.Evaluate modules.token_embedders.ElmoTokenEmbedderMultiLang "
    "modules.encoder_base._EncoderBase training.metrics.F1Measure common.util.JsonDict "
    "common.file_utils.url_to_filename nn.Activation data.dataset_readers.snli.SnliReader models").split())
def test_what_stays_with_allennlp_raises_import_errors(path):
    importlib.invalidate_caches()
    path = f"elmo_fast.compat.allennlp.{path}"
    parent, _, name = path.rpartition(".")
    for code in f"from {parent} import {name}", f"import {path}", f"importlib.util.find_spec({path!r})":
        with pytest.raises(ModuleNotFoundError, match=rf"^cannot import '[\w.]+': {STAYS}$") as raised:
            exec(code)
        missing = str(raised.value).split("'")[1]
        assert path.startswith(missing) and f"elmo_fast.compat.{raised.value.name}" == missing


def test_names_that_stay_with_allennlp_do_not_hide_submodules():
    """Submodules are imported by `from`, and special names have no message, in a process that imported neither."""
    python("-c", "from elmo_fast.compat.allennlp import data, modules\n"
                 "from elmo_fast.compat.allennlp.data import token_indexers\n"
                 "from elmo_fast.compat.allennlp.modules import elmo_lstm, token_embedders\n"
                 "from elmo_fast.compat.allennlp.common import checks, file_utils\n"
                 "assert not hasattr(modules, '__wrapped__') and not hasattr(data, 'iterators')\n"
                 "assert elmo_lstm.ElmoLstm and token_indexers and token_embedders and checks and file_utils")


def test_modules_that_lack_names_are_probed_by_attributes():
    """As pickle does, which looks for an object without a module's name in all modules."""
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(np.frompyfunc(abs, 1, 1))
    with pytest.raises(AttributeError, match=f"has no attribute 'masked_softmax': {STAYS}"):
        allennlp.nn.util.masked_softmax  # noqa: B018
