"""bilm-tf's scripts: `python -m elmo_fast.compat.bilm train_elmo ...` for `python bin/train_elmo.py ...`."""

import logging
import sys

from elmo_fast.cli import Parser, run_command
from elmo_fast.compat.bilm.data import BidirectionalLMDataset, LMDataset
from elmo_fast.compat.bilm.import_tf import bilm_tf_config
from elmo_fast.compat.bilm.training import dump_weights, load_options_latest_checkpoint, load_vocab, test, train
from elmo_fast.files.json import read_json
from elmo_fast.train.config import published_size

logger = logging.getLogger(__name__)
_CHANGES = ("n_train_tokens", "n_epochs", "batch_size")


class _Parser(Parser):
    program = "bilm"


def main() -> int:
    """Run `train_elmo`, `restart`, `run_test` or `dump_weights` with the flags of the same script of bilm-tf.

    Returns the exit status of `elmo_fast.cli.run_command`.
    """
    parser = _Parser(prog="python -m elmo_fast.compat.bilm", description="bilm-tf's scripts.")
    commands = parser.add_subparsers(required=True, metavar="SCRIPT")
    for run, flags in ((train_elmo, ("vocab_file", "train_prefix")), (restart, ("vocab_file", "train_prefix")),
                       (run_test, ("vocab_file", "test_prefix")), (dump_weights_, ("outfile",))):
        command = commands.add_parser(run.__name__.rstrip("_"), help=run.__doc__)
        for flag in ("save_dir", *flags):
            command.add_argument(f"--{flag}", required=True)
        if run in (train_elmo, restart):
            command.add_argument("--n_gpus", type=int, default=1,
                                 help="parts of a step, each of batch_size rows (default: 1)")
            for name in _CHANGES:
                command.add_argument(f"--{name}", type=int, default=0, help="(default: the value in the options)")
        if run is train_elmo:
            command.add_argument("--options_file", help="options, in place of those in bilm-tf's script")
        if run is run_test:
            command.add_argument("--batch_size", type=int, default=256, help="rows per batch (default: 256)")
        command.set_defaults(run=run)
    arguments = vars(parser.parse_args())
    run = arguments.pop("run")
    return run_command(lambda: run(**arguments), _Parser.program)


def train_elmo(save_dir, vocab_file, train_prefix, options_file, **changes) -> None:
    """train a new model"""
    options = read_json(options_file) if options_file else {**published_size("original"), "bidirectional": True}
    if "bidirectional" not in options:
        logger.warning("options_file %s: no key bidirectional: training a model of two directions, as for published "
                       "models; \"bidirectional\": false trains a forward model", options_file)
    _train({"bidirectional": True, **options}, save_dir, vocab_file, train_prefix, None, **changes)


def restart(save_dir, vocab_file, train_prefix, **changes) -> None:
    """continue training from the last checkpoint"""
    options, last = load_options_latest_checkpoint(save_dir)
    _train(options, save_dir, vocab_file, train_prefix, last, **changes)


def run_test(save_dir, vocab_file, test_prefix, batch_size) -> None:
    """print the perplexity of a text"""
    options, last = load_options_latest_checkpoint(save_dir)
    perplexity = test(options, last, _data(options, vocab_file, test_prefix, test=True), batch_size)
    print(f"AVERAGE PERPLEXITY = {perplexity}")


def dump_weights_(save_dir, outfile) -> None:
    """write the weights as HDF5"""
    dump_weights(save_dir, outfile)


def _train(options, save_dir, vocab_file, train_prefix, last, n_gpus, **changes) -> None:
    options = {**options, **{name: value for name, value in changes.items() if value}}
    data = _data(options, vocab_file, train_prefix, shuffle_on_load=True)
    train({"n_tokens_vocab": data.vocab.size, **options}, data, n_gpus, save_dir, save_dir, last)


def _data(options, vocab_file, pattern, **arguments) -> LMDataset | BidirectionalLMDataset:
    # As in `train`, two directions without the key. Any number of words fits: the vocabulary is read below.
    config = bilm_tf_config({"n_tokens_vocab": 1, "bidirectional": True, **options}, "options")
    char_cnn = config.model.char_cnn
    vocab = load_vocab(vocab_file, char_cnn and char_cnn.max_characters_per_token)
    return (BidirectionalLMDataset if config.bidirectional else LMDataset)(pattern, vocab, **arguments)


if __name__ == "__main__":
    sys.exit(main())
