"""The subcommands `vocab`, `train`, `perplexity`, `export` and `import-tf`."""

import argparse
import math
import sys
from typing import Any

from elmo_fast.arguments import SIZES, check_file
from elmo_fast.cli.flags import (
    DEVICE_HELP,
    FILES_HELP,
    FORMATS_HELP,
    SHARED,
    TEXTS,
    add_command,
    at_least,
    checked_type,
)
from elmo_fast.engine.precision import TRAINED
from elmo_fast.environment import extra, install_line
from elmo_fast.files.atomic import refuse_stdout
from elmo_fast.train.config import DECAYS, OPTIMIZERS
from elmo_fast.train.run_files import check_run, choose, find_tf_checkpoint

_TEXT = "UTF-8 text, one tokenized sentence per line;"
_FRACTION = checked_type(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
_POSITIVE = checked_type(float, "a finite number above 0", lambda value: 0 < value < math.inf)
_CHECKPOINT = {"metavar": "FILE", "help": "a checkpoint of the run (default: the best, else the last)"}
_COUNT = {"type": at_least(1), "metavar": "N"}
_WORKERS = checked_type(int, "an integer from 0 to 256", lambda value: 0 <= value <= 256)


def add_commands(commands) -> None:
    """Add the subcommands `vocab`, `train`, `perplexity`, `export` and `import-tf`."""
    add = add_command(commands, "vocab", _vocab, "count the words of a tokenized text and write a vocabulary "
                      "file", *TEXTS).add_argument
    add("inputs", metavar="TEXT", nargs="+", help=f"{_TEXT} {FORMATS_HELP}")
    add("output", metavar="OUTPUT", help="the vocabulary file, most frequent word first")
    add("--min-count", type=at_least(1), default=1, help="leave out words that occur less often (default: %(default)s)")
    add("--max-size", type=at_least(4), help="largest number of words, including <S>, </S> and <UNK>")
    add("--processes", type=at_least(1), help="number of processes (default: one per core)")
    add_train_arguments(add_command(commands, "train", train, "train a model from a tokenized text, resume a run, or "
                                    "fine-tune a model"))
    add = add_command(commands, "perplexity", _perplexity, "print the perplexity of a trained model on a text",
                      *TEXTS, "--allow-nonfinite", "--quiet").add_argument
    add("model", metavar="MODEL", help="a run's directory, or an exported model with its softmax")
    add("text", metavar="TEXT", nargs="+", help=f"{_TEXT} {FORMATS_HELP}")
    add("--checkpoint", **_CHECKPOINT)
    add("--softmax", dest="softmax_file", metavar="FILE", help="softmax of an exported model (default: softmax.hdf5 "
        "beside it)")
    add("--vocab", dest="vocab_file", metavar="FILE", help="vocabulary of an exported model (default: vocab.txt "
        "beside it)")
    add("--batch-size", **_COUNT, default=256, help="rows per batch (default: %(default)s)")
    add("--device", default="cpu", metavar="NAME", help=DEVICE_HELP.format("cpu"))
    _add_exchange(commands)


def _add_exchange(commands) -> None:
    parser = add_command(commands, "export", _export, "write the options.json and weights of a trained or fine-tuned "
                         "model", "--allow-nonfinite")
    add = parser.add_argument
    add("source", metavar="RUN", nargs="?", help="a run's directory")
    add("output", metavar="OUTPUT", help="directory for options.json, weights.hdf5 and vocab.txt")
    add("--checkpoint", **_CHECKPOINT)
    add("--softmax", action="store_true", help="also write softmax.hdf5")
    add("--safetensors", action="store_true", help="write model.safetensors in place of weights.hdf5")
    storage = parser.add_mutually_exclusive_group()
    storage.add_argument("--float16", action="store_true", help="store float16 numbers: half the size")
    storage.add_argument("--mantissa-bits", type=at_least(1), metavar="N", help="store float16 numbers with at most N "
                         "bits of mantissa (10 are all), compressed: 4 take 29%% of the size")
    add("--from-module", metavar="FILE", help="in place of RUN: a checkpoint (state_dict) of a fine-tuned Elmo, or of "
        "an AllenNLP model that contains it")
    add("--options-file", metavar="FILE", help="options.json of --from-module")
    parser = add_command(commands, "import-tf", _import_tf, "import a training checkpoint of bilm-tf as a run that "
                         "train can resume", "--allow-nonfinite")
    parser.epilog = ("The checkpoint is read with TensorFlow: "
                     f"{install_line('tensorflow')}, or name the Python of an environment that has it by "
                     "--tensorflow-python.")
    add = parser.add_argument
    add("source", metavar="CKPT_DIR", help="bilm-tf's directory with options.json and checkpoints, of which the "
        "last is imported, or the path of a checkpoint, such as DIR/model.ckpt-1250")
    add("output", metavar="OUT", help="new directory of the run, for `train OUT --resume --train TEXT`, perplexity and "
        "export")
    add("--vocab", dest="vocab_file", metavar="FILE", help="vocabulary of the training (default: vocab.txt beside "
        "the checkpoint)")
    add("--options-file", metavar="FILE", help="options of the training (default: options.json beside the checkpoint)")
    add("--tensorflow-python", metavar="PYTHON", default=sys.executable, help="a Python that has TensorFlow (default: "
        "this one)")
    add("--fresh-accumulators", action="store_true", help="set Adagrad accumulators that the checkpoint lacks to 1, "
        "otherwise an error")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`. They default to None: the options file, the run or a default then decides."""
    parser.add_argument("run_directory", metavar="RUN", help="directory of the run: options, log and checkpoints")
    add = parser.add_argument_group("data").add_argument
    add("--train", metavar="TEXT", nargs="+", help=f"{_TEXT} {FILES_HELP}")
    add("--heldout", metavar="TEXT", nargs="+", help="held-out text, whose perplexity is computed during training")
    for flag in TEXTS:
        meaning = SHARED[flag]["help"].replace("%(default)s", SHARED[flag].get("default", ""))
        add(flag, **{**SHARED[flag], "default": None, "help": meaning})
    add("--vocab", metavar="FILE", help="vocabulary file with <S>, </S> and <UNK>, most frequent first")
    add = parser.add_argument_group("start").add_argument
    add("--resume", action="store_true", help="continue RUN exactly from its last checkpoint")
    add("--resume-from", metavar="FILE", help="continue RUN from this checkpoint; replaces later checkpoints")
    add("--from-model", metavar="MODEL", help="fine-tune: the model, as --model of embed")
    add("--from-options", metavar="FILE", help="fine-tune: options.json, with --from-weights")
    add("--from-weights", metavar="FILE", help="fine-tune: HDF5 weights")
    add("--from-softmax", metavar="FILE", help="fine-tune: HDF5 softmax, written by export --softmax (default: "
        "softmax.hdf5 beside the model if it exists, else random weights)")
    add("--allow-nonfinite", **{**SHARED["--allow-nonfinite"], "default": None})
    add = parser.add_argument_group("model").add_argument
    add("--options-file", metavar="FILE", help="options.json with bilm-tf's keys: lstm, char_cnn, dropout, batch_size, "
        "...; arguments given here override it")
    add("--size", choices=SIZES, help="use the sizes of a published model, without an options file")
    add("--one-direction", dest="bidirectional", action="store_false", default=None,
        help="train only the forward language model; it cannot be exported")
    add("--dropout", type=_FRACTION, metavar="P", help="dropout probability (default: 0.1)")
    add("--full-softmax", dest="sample_softmax", action="store_false", default=None,
        help="compute the loss over the whole vocabulary, without sampling")
    add("--negatives", dest="n_negative_samples_batch", **_COUNT,
        help="samples per batch and direction (default: 8192)")
    _add_training(parser)


def _add_training(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--batch-size", **_COUNT, help="rows per batch (default: 128)")
    add("--unroll-steps", **_COUNT, help="tokens per row and step (default: 20)")
    add("--reset-states", type=_FRACTION, metavar="P", help="fraction of rows whose state is zeroed before a batch, so "
        "that the model also learns from zero states (default: 0, as bilm-tf)")
    add("--accumulate", **_COUNT, help="batches per step, from separate streams; their gradients are "
        "averaged, as with N processes (default: 1)")
    add("--epochs", dest="n_epochs", type=_POSITIVE, metavar="N", help="epochs to train (default: 10)")
    add("--max-steps", **_COUNT, help="steps to train, in place of --epochs")
    add("--optimizer", choices=OPTIMIZERS, help="optimizer (default: adagrad)")
    add("--learning-rate", type=_POSITIVE, metavar="R", help="learning rate (default: 0.2 for adagrad, "
        "0.001 for adamw)")
    add("--warmup-steps", type=at_least(0), metavar="N", help="steps before the full learning rate (default: 0 for "
        "adagrad, 500 for adamw)")
    add("--decay", choices=DECAYS, help="learning rate schedule after the warmup (default: constant for adagrad, "
        "cosine for adamw)")
    add("--weight-decay", type=_FRACTION, metavar="W", help="weight decay of adamw, matrices only (default: 0.01)")
    add("--clip-norm", dest="all_clip_norm_val", type=_POSITIVE, metavar="N",
        help="maximum norm of all gradients together (default: 10)")
    add("--seed", type=at_least(0), metavar="N", help="random seed of weights, order, dropout and samples (default: 0)")
    add("--precision", choices=TRAINED, help="numerical precision (default: medium, which is bf16, on GPUs "
        "that have it, else highest)")
    add = parser.add_argument_group("run").add_argument
    add("--evaluate-every", **_COUNT, help="steps between evaluations (default: ten evaluations per epoch)")
    add("--evaluate-batch-size", **_COUNT, help="rows per batch of held-out text (default: 256)")
    add("--checkpoint-every", **_COUNT, help="steps between checkpoints (default: 500)")
    add("--log-every", **_COUNT, help="steps between log lines (default: 10)")
    add("--keep", type=at_least(1), metavar="K", help="number of checkpoints to keep (default: 2)")
    add("--workers", type=_WORKERS, metavar="N", help="processes that prepare batches (default: 0 on a CPU, 2 on a "
        "GPU)")
    add("--device", metavar="NAME", help=DEVICE_HELP.format("a GPU if there is one"))
    add("--patience", **_COUNT, help="stop after N evaluations without a new best perplexity (default: never)")
    add("--tensorboard", action="store_true", default=None, help="also write TensorBoard events into RUN")
    add("--quiet", action="store_true", default=None, help="no progress bar")


def train(**arguments) -> None:
    """Train with the parsed arguments of `add_train_arguments`."""
    for name in ("train", "heldout"):
        _find_texts(arguments, name)
    if arguments["resume"] or arguments["resume_from"]:
        check_run(arguments["run_directory"])
    with extra("torch"):
        from elmo_fast.train.setup import start_or_resume

    start_or_resume(**{name: value for name, value in arguments.items() if value is not None})


def _find_texts(arguments: dict[str, Any], name: str) -> None:
    """Find missing files and formats before torch, whose import takes seconds, is imported."""
    from elmo_fast.text.readers import find_files, open_texts

    if arguments[name]:
        files = find_files(arguments[name], name)
        open_texts(files, format=arguments["format"], field=arguments["field"],
                   tokenizer=arguments["tokenizer"] or "whitespace").close()


def _vocab(inputs, output, **options) -> list[str]:
    from elmo_fast.text.corpus import make_vocabulary

    words, total = make_vocabulary(inputs, output, **options)
    return [f"{output}: {words:,} words, from {total:,} tokens"]


def _perplexity(**arguments) -> list[str]:
    _find_texts(arguments, "text")
    with extra("torch"):
        from elmo_fast.train.evaluate import perplexity_of

    return [str(perplexity_of(**arguments))]


def _export(source, output, from_module, options_file, checkpoint, softmax, **writing) -> None:
    if (source is None) == (from_module is None):
        raise ValueError(f"source: expected either RUN or --from-module, got {'neither' if source is None else 'both'}")
    refuse_stdout(output, "output")
    if from_module is None:
        choose(source, checkpoint)
    else:
        check_file("--from-module", from_module)
    with extra("torch"):
        from elmo_fast.train.export import export_run, export_state_dict

    if from_module is not None:
        export_state_dict(from_module, options_file, output, **writing)
    else:
        export_run(source, output, checkpoint=checkpoint, softmax=softmax, **writing)


def _import_tf(output, **arguments) -> list[str]:
    refuse_stdout(output, "output")
    find_tf_checkpoint(arguments["source"])
    from elmo_fast.compat.bilm.import_tf import import_checkpoint

    imported = import_checkpoint(output=output, **arguments)
    with_accumulators = imported.variables - imported.fresh_accumulators
    return [(f"{output}: imported {imported.checkpoint} after {imported.step:,} steps, {imported.variables} variables, "
             f"{with_accumulators} with their accumulators; continue with train {output} --resume --train TEXT")]
