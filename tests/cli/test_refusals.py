"""Wrong calls that users make: the one line on stderr says what to write instead."""

import gzip
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support.files import run, write_model

FILES = {"texts/a.txt": "a b\n", "texts/b.txt": "a b\n", "plain.txt.gz": "a b\n", "data.txt": " \n", "empty.txt": "",
         "vocab.txt": "<S>\n</S>\n<UNK>\na\n", "short.txt": "<S>\n</S>\nThe\n", "names.json": '["a"]',
         "p.fasta": ">P|1\nMKV\n>Q|2\nMK\n", "play.txt": "The play opened\nThey Play outside\n",
         "blank.txt": "a\n\nb\n", "data.json": '{"text": "a b"}\n'}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model, a run without checkpoints, a directory of texts, and a FASTA file."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    (tmp_path / "run").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "zipped.txt").write_bytes(gzip.compress(b"<S>\n</S>\n<UNK>\na\n" * 40))
    (tmp_path / "wide.txt").write_text("a b\n", encoding="utf-16")
    (tmp_path / "run" / "options.json").write_bytes((tmp_path / "model" / "options.json").read_bytes())
    return tmp_path


_QUOTED = "quote a glob ('*.txt'), else the shell replaces it by the names of its files"


@pytest.mark.parametrize("command, message", [
    ("train r --train texts --vocab vocab.txt --size small", "texts/* are its files"),
    ("embed texts o.h5 --top --model model",
     ("input: expected a file or a glob, got the directory texts; texts/* are its files")),
    ("embed texts/a.txt texts/b.txt o.h5 --top", f"unrecognized arguments: o.h5; {_QUOTED}"),
    ("doctor who", "unrecognized arguments: who (see elmo-fast doctor --help)"),
    ("embed texts/a.txt o.h5 --modle model",
     "unrecognized arguments: --modle model; did you mean --model? (see elmo-fast embed --help)"),
    ("embed --batchsize=8 texts/a.txt o.h5", "--batchsize=8; did you mean --batch-size? (see elmo-fast embed --help)"),
    ("embed texts/a.txt o.h5 -pool mean --frmat csv", "did you mean --pool, --format? (see elmo-fast embed --help)"),
    ("seqvec --inptu p.fasta -o o.h5", "required: -i/--input; did you mean --input? (see elmo-fast seqvec --help)"),
    ("--verison", "unrecognized arguments: --verison; did you mean --version? (see elmo-fast --help)"),
    ("train r --trian texts/a.txt", "did you mean --train? (see elmo-fast train --help)"),
    ("embed texts/a.txt o.h5 --model model --device gpu", "got 'gpu' (cpu, cuda and cuda:1 are names)"),
    ("train r --train texts/a.txt", "--vocab: expected files for a new run, got none; elmo-fast vocab makes one"),
    ("seqvec -i p.fasta -o o.h5 --model model --split-char ~", "(--id 0 --split-char ' ': its first word)"),
    ("score texts/a.txt --lr", "unrecognized arguments: --lr (see elmo-fast score --help)"),
    ("embed model/weights.hdf5 o.h5 --model model", "expected UTF-8 text, got HDF5 at line 1 of model/weights.hdf5"),
    ("--quiet embed texts/a.txt o.h5", "--quiet; flags of a command come after its name (see elmo-fast --help)"),
    ("embed texts/a.txt o.npy --pool mean --model model",
     "one vector per text: --pool with --top, --average, --layer or --weights"),
    ("embed texts/a.txt o.npy --top --model model", "--pool with --top"),
    ("seqvec -i p.fasta -o o.npy --model model --id 0", "--layer or --weights (seqvec: --protein)"),
    ("info model/weights.hdf5", "which is an HDF5 file: --options-file and --weight-file are given together"),
    ("train r --train texts/a.txt --vocab vocab.txt --from-model model/weights.hdf5",
     "(train: --from-options, --from-weights; Python: "),
    ("info model/options.json", "which is a JSON file: --options-file and --weight-file are given together"),
    ("info --options-file model/weights.hdf5 --weight-file model/options.json",
     "expected JSON, got HDF5: options_file is the first of the two, weight_file the second"),
    ("info run", "or *.safetensors, found none; elmo-fast export makes a model of a training run"),
    ("embed texts/a.txt o.h5 --top --targets data.txt", "--targets: expected a word a line, found none in data.txt"),
    ("embed texts/a.txt o.h5 --top --targets texts", "--targets: expected a file, got the directory texts"),
    ("embed data.json data.npy --format jsonl --average --pool mean --model model",
     "expected nothing or the names of data.npy at "),
    ("embed names.json names.npy --format jsonl --average --pool mean --model model",
     "expected a file other than the inputs, got names.npy, whose names go to "),
    *((command, f"{name}: expected the name of a file, got -: this output cannot be written to stdout")
      for command, name in (("cache vocab.txt -", "output file"), ("vocab texts/a.txt -", "output"),
                            ("export run -", "output"),
                            ("train - --train texts/a.txt --vocab vocab.txt", "run"), ("bench --json -", "--json"),
                            ("nearest texts/a.txt --word a --save -", "--save"),
                            ("embed texts/a.txt - --layout allennlp", "output file"))),
    ("seqvec -i p.fasta -o o.h5 --model typo", "found nothing at typo; --model seqvec downloads the published model"),
    ("score texts/a.txt --model model", "a model that you train and write with `elmo-fast export --softmax` has it"),
    ("train vocab.txt --train texts/a.txt --vocab vocab.txt", "run: expected a directory, got the file vocab.txt"),
    *((command, "expected UTF-8 text, got gzip data, whose name must end in .gz") for command in (
        "vocab zipped.txt o.txt", "embed zipped.txt o.h5 --model model", "cache zipped.txt o.h5 --model model",
        "seqvec -i zipped.txt -o o.h5 --model model", "train r --train zipped.txt --vocab vocab.txt --size small",
        "train r --train texts/a.txt --vocab zipped.txt --size small")),
    *((command, "expected UTF-8 text, got UTF-16") for command in (
        "vocab wide.txt o.txt", "embed wide.txt o.h5 --model model", "cache wide.txt o.h5 --model model")),
    *((command, "expected a complete gzip file, got plain.txt.gz (Not a gzipped file") for command in (
        "vocab plain.txt.gz o.txt", "embed plain.txt.gz o.h5 --model model", "cache plain.txt.gz o.h5 --model model")),
    ("embed texts/a.txt o.h5 --layers top --model model", "arguments: --layers top; did you mean --layer?"),
    *((f"{command} {'n' * 240}.h5", "File name too long") for command in ("embed texts/a.txt", "vocab texts/a.txt")),
    ("embed texts/a.txt no/o.h5 --model model", "output file: expected an existing directory, found none at"),
    (f"embed {'[' * 9000} texts/a.txt --model model", "input: expected files, found none at [[["),
    ("train r --train texts/a.txt --vocab texts/a.txt --size small", "missing <S>, </S>, <UNK>"),
    ("train model --resume", "run model: expected a run to resume, found no options.json and run.json"),
    ("compare a b --model model -o x.gif", "expected a file that ends in .png, .svg, .pdf, .html, got x.gif"),
    ("perplexity model texts/a.txt", "softmax: expected softmax.hdf5, which export writes with --softmax"),
    ("seqvec -i p.fasta -o o.npy --model model --protein maybe",
     "argument --protein: expected True or False, got 'maybe'"),
    ("embed blank.txt o.h5 --model model",
     ("input file: expected a sentence on every line, got none on line 2 of blank.txt; remove it, or allow texts "
      "without tokens (--allow-blank; in Python allow_blank=True)")),
    ("embed - o.h5 --model model", "input file: expected text on stdin, which is closed"),
    ("embed texts/a.txt . --model model", "output file: expected a file's path, got the directory ."),
    ("embed texts/a.txt o.csv --model model",
     ("output: expected a name that ends in .h5, .hdf5, .parquet, .arrow, .feather, .npz or .npy, or without a suffix "
      "(HDF5), or a layout beside it (--layout), got o.csv")),
    ("embed play.txt play.txt --layout allennlp --model model",
     "output file: expected a file other than the inputs, got play.txt"),
    ("embed play.txt model/weights.hdf5 --model model", "output file: expected a file other than the inputs"),
    ("embed play.txt o.h5 --layer 3 --model model", "layers: expected the number of a layer, 0 to 2, got 3"),
    ("embed play.txt o.h5 --weights a", "argument --weights: expected numbers, as 0.2,0.3,0.5 or 0.2 0.3 0.5, got 'a'"),
    ("embed play.txt o.h5 --all --top", "argument --top: not allowed with argument --all"),
    ("embed play.txt o.h5 --model nope",
     "model: expected one of bundled, small, medium, original, original_5.5b, seqvec"),
    ("embed play.txt o.h5 --model model --options-file x",
     "model: expected either model or options_file and weight_file"),
    ("embed play.txt o.h5 --options-file model/options.json",
     "weight_file: expected a path or URL, got None; --options-file and "),
    ("embed play.txt o.h5 --weight-file model/options.json",
     "options_file: expected a path or URL, got None; --options-file and "),
    ("embed play.txt o.h5 --batch-size 0", "argument --batch-size: expected an integer of at least 1, got '0'"),
    ("embed play.txt o.h5 --cuda-device -2", "--cuda-device: expected -1 for the CPU or the number of a GPU, got '-2'"),
    ("embed play.txt o.h5 --cuda-device 0 --device cpu", "argument --device: not allowed with argument --cuda-device"),
    ("embed play.txt o.h5 --precision lowest", "argument --precision: invalid choice: 'lowest'"),
    ("fly", "unknown command 'fly': expected one of embed, cache, info,"),
    ("emb", "unknown command 'emb': did you mean embed? (see elmo-fast --help)"),
    ("embed", "the following arguments are required: INPUT, OUTPUT"),
    ("info bundeled", "found nothing at bundeled; did you mean bundled?"),
    ("serve --port 99999", "argument --port: expected a port, 0 to 65535, got '99999'"),
    ("cache play.txt t.hdf5 --model model",
     "vocabulary play.txt: expected a line for each of <S>, </S>; missing <S>, </S>"),
    ("cache short.txt t.hdf5 --cuda-device 99 --model model", "device: expected an available device, got 'cuda:99'"),
    ("embed play.txt o.h5 --unknown unk --model model", "--unknown: expected --token-table beside it, got unk alone"),
    ("embed play.txt o.h5 --token-table none --model model", "token table: expected a file, found nothing at none"),
    ("compare a b --model model -o none/a.html", "output: expected an existing directory"),
    ("nearest play.txt --word opened --model model", "word: expected a word that the corpus has at least twice"),
    ("nearest play.txt --model model --word play --sentence Played", "sentence: expected a sentence with the word"),
    ("nearest play.txt --model model --word play --layer 3", "layers: expected the number of a layer, 0 to 2, got 3"),
    ("nearest play.txt --model model --word play --layer all", "layers: expected a layer or a mixture of them, got"),
    ("nearest play.txt --model model --word play -o play.txt", "-o: expected a file other than CORPUS, got play.txt"),
    ("nearest play.txt --model model --word play --save ./play.txt", "--save: expected a file other than CORPUS"),
    ("bench --json absent/x.json", "--json: expected an existing directory"),
    ("bench --seconds 0", "expected a number from 1 to 3600, got '0'"), ("bench --text absent.txt", "absent.txt"),
    ("bench --text empty.txt", "input file: expected one tokenized"),
    ("vocab play.txt o.txt --min-count 9", "inputs: expected words, found none in play.txt (min_count 9)"),
])
def test_a_refusal_says_what_to_write(capsys, folder, monkeypatch, command, message):
    monkeypatch.setattr(sys, "stdin", None)
    before = contents(folder)
    status, output, error = run(capsys, *command.split())
    assert (status, output, error.count("\n")) == (2, "", 1) and len(error) < 1500
    assert error.startswith("elmo-fast: error: ") and message in error and contents(folder) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("flags, shape", [
    (["--protein", "True"], 1), (["--protein", "true", "--split_char", "|"], 1), (["--protein"], 1),
    (["--protein", "False"], 2), (["--cpu", "True"], 2), ([], 2)])
def test_seqvecs_flags_as_its_readme_writes_them(capsys, folder, flags, shape):
    assert run(capsys, "seqvec", "-i", "p.fasta", "-o", "o.npz", "--model", "model", "--id", "0", "--silent",
               *flags)[0] == 0
    with np.load("o.npz") as arrays:
        assert sorted(arrays) == ["P", "Q"] and {values.ndim for values in arrays.values()} == {shape}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("command", ["models", "info"])
def test_a_full_disk_under_stdout_is_named_once(command):
    with open("/dev/full", "wb") as full:
        process = subprocess.run([sys.executable, "-m", "elmo_fast.cli", command], stdout=full, stderr=subprocess.PIPE)
    assert process.returncode == 1 and process.stderr.decode().endswith("No space left on device: 'stdout'\n")
    assert process.stderr.count(b"\n") == 1
