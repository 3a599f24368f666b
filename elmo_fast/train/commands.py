"""The subcommands that train, test, export and import: their arguments and the function they call."""

import argparse
from typing import Any

from elmo_fast.train.config import DECAYS, OPTIMIZERS, SIZES

_GLOB = "files or globs of UTF-8 text, one tokenized sentence a line"


def add_commands(commands) -> None:
    """Add the subcommands to an argparse collection; each sets `run`, a function of the parsed arguments."""
    for name, add, run, summary in (
        ("vocab", _add_vocab, _vocab, "count the words of a tokenized text and write a vocabulary file"),
        ("train", add_train, run_train, "train a model from a tokenized text, or go on with a run or a model"),
        ("perplexity", _add_perplexity, _perplexity, "print the perplexity of a trained model on a text"),
        ("export", _add_export, _export, "write the options.json and HDF5 weights of a trained or fine-tuned model"),
        ("import-tf", _add_import, _import, "make a run of a checkpoint that bilm-tf's training left, to go on with it"),
    ):
        parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        add(parser)
        parser.set_defaults(run=run)


def _add_vocab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", metavar="TEXT", nargs="+", help=_GLOB)
    parser.add_argument("output", metavar="OUTPUT", help="the vocabulary file, most frequent word first")
    parser.add_argument("--min-count", type=at_least(1), default=1, help="leave out rarer words (default: %(default)s)")
    parser.add_argument("--max-size", type=at_least(4), help="words at most, <S>, </S> and <UNK> included")
    parser.add_argument("--processes", type=at_least(1), help="processes that count (default: one a core)")


def add_train(parser: argparse.ArgumentParser) -> None:
    """The arguments of `train`. What is not given is None: the options file, the run or a default then decides."""
    parser.add_argument("run_directory", metavar="RUN", help="directory of the run: options, log and checkpoints")
    data = parser.add_argument_group("data")
    data.add_argument("--train", metavar="TEXT", nargs="+", help=_GLOB)
    data.add_argument("--heldout", metavar="TEXT", nargs="+", help="text whose perplexity is followed")
    data.add_argument("--vocab", metavar="FILE", help="vocabulary file with <S>, </S> and <UNK>, most frequent first")
    start = parser.add_argument_group("where it starts")
    start.add_argument("--resume", action="store_true", help="go on with RUN exactly where its last checkpoint ended")
    start.add_argument("--from-model", metavar="MODEL", help="fine-tune: a directory, ZIP, URL or name, as in embed")
    start.add_argument("--from-options", metavar="FILE", help="fine-tune: options.json, with --from-weights")
    start.add_argument("--from-weights", metavar="FILE", help="fine-tune: HDF5 weights")
    start.add_argument("--from-softmax", metavar="FILE", help="fine-tune: HDF5 softmax, written by export --softmax "
                       "(default: softmax.hdf5 beside the model where it is there, else a fresh one)")
    _add_model(parser.add_argument_group("model"))
    _add_learning(parser.add_argument_group("learning"))
    _add_running(parser.add_argument_group("running"))


def _add_model(group) -> None:
    group.add_argument("--options-file", metavar="FILE", help="options.json in bilm-tf's words: lstm, char_cnn, dropout, "
                       "batch_size, ...; arguments given here win over it")
    group.add_argument("--size", choices=SIZES, help="the sizes of a published model in place of an options file")
    group.add_argument("--one-direction", dest="bidirectional", action="store_false", default=None,
                       help="a forward language model alone; it cannot be exported")
    group.add_argument("--dropout", type=_number(0, 1), metavar="P", help="(default: 0.1)")
    group.add_argument("--full-softmax", dest="sample_softmax", action="store_false", default=None,
                       help="no sampling: the loss over the whole vocabulary")
    group.add_argument("--negatives", dest="n_negative_samples_batch", type=at_least(1), metavar="N",
                       help="samples a batch and direction (default: 8192)")


def _add_learning(group) -> None:
    group.add_argument("--batch-size", type=at_least(1), metavar="N", help="rows (default: 128)")
    group.add_argument("--unroll-steps", type=at_least(1), metavar="N", help="tokens a row and step (default: 20)")
    group.add_argument("--reset-states", type=_number(0, 1), metavar="P", help="share of rows that begin a batch from "
                       "zeros, so that the model also knows fresh states (default: 0, as bilm-tf)")
    group.add_argument("--accumulate", type=at_least(1), metavar="N", help="batches of their own stream whose gradients "
                       "are averaged in one step, as N processes would (default: 1)")
    group.add_argument("--epochs", dest="n_epochs", type=_number(0, float("inf")), metavar="N", help="(default: 10)")
    group.add_argument("--max-steps", type=at_least(1), metavar="N", help="in place of --epochs")
    group.add_argument("--optimizer", choices=OPTIMIZERS, help="(default: adagrad)")
    group.add_argument("--learning-rate", type=_number(0, float("inf")), metavar="R",
                       help="(default: 0.2 for adagrad, 0.001 for adamw)")
    group.add_argument("--warmup-steps", type=at_least(0), metavar="N", help="steps to the full rate (default: 0 for "
                       "adagrad, 500 for adamw)")
    group.add_argument("--decay", choices=DECAYS, help="(default: constant for adagrad, cosine for adamw)")
    group.add_argument("--weight-decay", type=_number(0, 1), metavar="W", help="adamw, matrices only (default: 0.01)")
    group.add_argument("--clip-norm", dest="all_clip_norm_val", type=_number(0, float("inf")), metavar="N",
                       help="largest norm of all gradients together (default: 10)")
    group.add_argument("--seed", type=at_least(0), metavar="N", help="of weights, order, dropout and samples (default: 0)")
    group.add_argument("--patience", type=at_least(1), metavar="N", help="stop after N held-out perplexities without a "
                       "new best (default: never)")


def _add_running(group) -> None:
    group.add_argument("--evaluate-every", type=at_least(1), metavar="N", help="steps (default: ten times an epoch)")
    group.add_argument("--evaluate-batch-size", type=at_least(1), metavar="N", help="rows of the held-out text "
                       "(default: 256)")
    group.add_argument("--checkpoint-every", type=at_least(1), metavar="N", help="steps (default: 500)")
    group.add_argument("--log-every", type=at_least(1), metavar="N", help="steps (default: 10)")
    group.add_argument("--keep", type=at_least(1), metavar="K", help="checkpoints kept (default: 2)")
    group.add_argument("--workers", type=at_least(0), metavar="N", help="processes that prepare batches (default: 0 on a "
                       "CPU, 2 beside a GPU)")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    group.add_argument("--precision", choices=("highest", "high", "medium"), help="(default: medium, which is bf16, on "
                       "GPUs that have it, else highest)")
    group.add_argument("--tensorboard", action="store_true", default=None, help="also write TensorBoard events into RUN")
    group.add_argument("--quiet", action="store_true", default=None, help="no progress bar")


def _add_perplexity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a run's directory, or an exported model with its softmax")
    parser.add_argument("text", metavar="TEXT", nargs="+", help=_GLOB)
    parser.add_argument("--checkpoint", metavar="FILE", help="of the run (default: the best, else the last)")
    parser.add_argument("--softmax", metavar="FILE", help="of an exported model (default: softmax.hdf5 beside it)")
    parser.add_argument("--vocab", metavar="FILE", help="of an exported model (default: vocab.txt beside it)")
    parser.add_argument("--batch-size", type=at_least(1), default=256, metavar="N", help="rows (default: %(default)s)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="(default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="RUN", nargs="?", help="a run's directory")
    parser.add_argument("output", metavar="OUTPUT", help="directory for options.json, weights.hdf5 and vocab.txt")
    parser.add_argument("--checkpoint", metavar="FILE", help="of the run (default: the best, else the last)")
    parser.add_argument("--softmax", action="store_true", help="also write softmax.hdf5")
    parser.add_argument("--float16", action="store_true", help="store 16-bit numbers: half the size")
    parser.add_argument("--from-module", metavar="FILE", help="in place of RUN: a checkpoint (state_dict) of a fine-tuned "
                        "Elmo, or of an AllenNLP model around one")
    parser.add_argument("--options-file", metavar="FILE", help="options.json of that module")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.epilog = ("TensorFlow reads the checkpoint: install elmo-fast[tensorflow], or name another environment's Python "
                     "that has it in ELMO_FAST_TENSORFLOW_PYTHON.")
    parser.add_argument("source", metavar="CKPT_DIR", help="bilm-tf's directory with options.json and checkpoints, of "
                        "which the last is taken, or a checkpoint's path such as DIR/model.ckpt-1250")
    parser.add_argument("output", metavar="OUT", help="a new directory, for `train OUT --resume --train TEXT`, perplexity "
                        "and export")
    parser.add_argument("--vocab", metavar="FILE", help="vocabulary it was trained with (default: vocab.txt beside the "
                        "checkpoint)")
    parser.add_argument("--options-file", metavar="FILE", help="its options (default: options.json beside the checkpoint)")
    parser.add_argument("--fresh-accumulators", action="store_true", help="begin Adagrad's accumulators at 1 where the "
                        "checkpoint has none, in place of an error")


def at_least(least: int):
    """An argparse type: an integer of at least `least`."""
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return value
    return parse


def _number(least: float, most: float):
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most or value == float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number from {least:g} to {most:g}, got {text!r}")
        return value
    return parse


def _vocab(parsed: argparse.Namespace) -> None:
    from elmo_fast.train.corpus import make_vocabulary

    words, total = make_vocabulary(parsed.inputs, parsed.output, min_count=parsed.min_count,
                                   max_size=parsed.max_size, processes=parsed.processes)
    print(f"{words:,} words of {total:,} tokens in {parsed.output}")


def run_train(parsed: argparse.Namespace) -> None:
    """Train as the parsed arguments of `add_train` say."""
    from elmo_fast.train.setup import start_or_resume

    start_or_resume(**given(parsed))


def given(parsed: argparse.Namespace) -> dict[str, Any]:
    """The arguments that were given, by name."""
    left_out = ("run", "verbose", "command")
    return {name: value for name, value in vars(parsed).items() if value is not None and name not in left_out}


def _perplexity(parsed: argparse.Namespace) -> None:
    from elmo_fast.train.evaluate import perplexity_of

    print(perplexity_of(parsed.model, parsed.text, checkpoint=parsed.checkpoint, softmax_file=parsed.softmax,
                        vocab_file=parsed.vocab, batch_size=parsed.batch_size, device=parsed.device,
                        progress=not parsed.quiet))


def _export(parsed: argparse.Namespace) -> None:
    from elmo_fast.train.export import export_run, export_state_dict

    if (parsed.source is None) == (parsed.from_module is None):
        found = "neither" if parsed.source is None else "both"
        raise ValueError(f"source: expected either RUN or --from-module, got {found}")
    if parsed.from_module is not None:
        export_state_dict(parsed.from_module, parsed.options_file, parsed.output, parsed.float16)
    else:
        export_run(parsed.source, parsed.output, checkpoint=parsed.checkpoint, softmax=parsed.softmax,
                   float16=parsed.float16)


def _import(parsed: argparse.Namespace) -> None:
    from elmo_fast.train.import_tf import import_checkpoint

    done = import_checkpoint(parsed.source, parsed.output, vocab_file=parsed.vocab, options_file=parsed.options_file,
                             fresh_accumulators=parsed.fresh_accumulators)
    kept = done.variables - done.fresh_accumulators
    print(f"{parsed.output}: {done.checkpoint} after {done.step:,} steps, {done.variables} variables, {kept} with their "
          f"accumulators; train {parsed.output} --resume --train TEXT goes on")
