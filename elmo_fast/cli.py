"""`elmo-fast`: each subcommand calls one function."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

import elmo_fast
from elmo_fast.compat.commands import add_commands as add_compat
from elmo_fast.embed.commands import add_commands as add_embedding
from elmo_fast.embed.embedder import DEFAULT_BATCH_SIZE, ElmoEmbedder
from elmo_fast.embed.hdf5_writer import check_output
from elmo_fast.embed.scoring_commands import add_commands as add_scoring
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.sources import DEFAULT_MODEL, MODEL_NAMES, find_model
from elmo_fast.model.states import STATES
from elmo_fast.model.token_table.table import UNKNOWN, TokenTable
from elmo_fast.ops.backend import BACKENDS
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.train.commands import add_commands as add_training

DONE, FAILED, REFUSED = 0, 1, 2
_REFUSALS = (ConfigurationError, ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 when done, 2 for bad usage or input, 1 for any other failure, with one line on stderr."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO if parsed.verbose else logging.WARNING, format="%(levelname)s: %(message)s")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as interrupt:
        return _complain(str(interrupt) or "interrupted; no output was left behind", FAILED)
    except _REFUSALS as error:
        return _complain(_one_line(error), REFUSED)
    except (OSError, ImportError, RuntimeError, MemoryError) as error:
        return _complain(_one_line(error), FAILED)
    finally:
        signal.signal(signal.SIGTERM, before)
    return DONE


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _complain(message: str, status: int) -> int:
    print(f"elmo-fast: error: {message}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: the usage would push the reason off the screen."""

    def error(self, message: str):
        self.exit(REFUSED, f"elmo-fast: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="elmo-fast", description="Run and train ELMo models.")
    parser.add_argument("--version", action="version", version=f"elmo-fast {elmo_fast.__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="say which backends are passed over, and why")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_embed(commands)
    add_embedding(commands)
    _add_info(commands)
    add_training(commands)
    add_scoring(commands)
    add_compat(commands)
    doctor = commands.add_parser("doctor", help="print versions, processor, GPU, and the backend of every operation")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_embed(commands) -> None:
    embed = commands.add_parser("embed", help="embed a tokenized text, one sentence a line, into an HDF5 file")
    embed.add_argument("input_file", metavar="INPUT", help="text file, UTF-8, tokens separated by spaces; - is stdin")
    embed.add_argument("output_file", metavar="OUTPUT", help="HDF5 file, one dataset a sentence")
    layers = embed.add_mutually_exclusive_group(required=True)
    layers.add_argument("--all", dest="layers", action="store_const", const="all", help="every layer")
    layers.add_argument("--top", dest="layers", action="store_const", const="top", help="the top layer")
    layers.add_argument("--average", dest="layers", action="store_const", const="average", help="the mean of the layers")
    embed.add_argument("--options-file", metavar="FILE", help="options.json, a path or URL")
    embed.add_argument("--weight-file", metavar="FILE", help="HDF5 weights, a path or URL")
    embed.add_argument("--model", help=f"in place of the two files: {', '.join(MODEL_NAMES)}, a directory, a ZIP or "
                                       "a URL (default: bundled)")
    embed.add_argument("--batch-size", type=_positive, default=DEFAULT_BATCH_SIZE, help="sentences at a time "
                       "(default: %(default)s)")
    embed.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU; -1 is the CPU (default)")
    embed.add_argument("--forget-sentences", action="store_true", help="leave out sentence_to_index")
    embed.add_argument("--use-sentence-keys", action="store_true", help="sentences as keys, in place of line numbers")
    embed.add_argument("--allow-blank", action="store_true", help="give blank lines datasets without tokens")
    embed.add_argument("--state", choices=STATES, default="carry", help="where a sentence starts (default: %(default)s)")
    embed.add_argument("--precision", choices=PRECISIONS, default="highest", help="(default: %(default)s)")
    embed.add_argument("--backend", choices=BACKENDS, default="auto", help="(default: %(default)s)")
    embed.add_argument("--token-table", metavar="FILE", help="take the vectors of tokens from a file that cache wrote")
    embed.add_argument("--unknown", choices=UNKNOWN, help="what a word outside the table gets: its own vector, an "
                       "error, or <UNK>'s (default: encode)")
    embed.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_allennlps_flags(embed)
    embed.set_defaults(run=_embed)


def _add_allennlps_flags(embed: argparse.ArgumentParser) -> None:
    """Flags of `allennlp elmo` that are there for scripts that pass them."""
    old = embed.add_argument_group("further flags of `allennlp elmo`")
    old.add_argument("--file-friendly-logging", action="store_true",
                     help="progress as lines, one every ten seconds, also where stderr is a file")
    old.add_argument("--include-package", action="append", default=[], metavar="PACKAGE",
                     help="import a package and its modules first; may be given more than once")
    old.add_argument("--vocab-path", metavar="FILE", help="not used, neither here nor by AllenNLP 0.9")


def _add_info(commands) -> None:
    info = commands.add_parser("info", help="print a model's layers, sizes and parameters")
    info.add_argument("model", metavar="MODEL", nargs="?", help=f"{', '.join(MODEL_NAMES)}, a directory, a ZIP or a URL")
    info.add_argument("--options-file", metavar="FILE", help="options.json, a path or URL")
    info.add_argument("--weight-file", metavar="FILE", help="HDF5 weights, a path or URL")
    info.set_defaults(run=_info)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return value


def _files(parsed: argparse.Namespace, default: str | None):
    model = parsed.model
    if model is None and parsed.options_file is None and parsed.weight_file is None:
        if default is None:
            raise ConfigurationError("model: expected MODEL, or --options-file and --weight-file; got neither")
        model = default
    return find_model(model, options_file=parsed.options_file, weight_file=parsed.weight_file)


def _embed(parsed: argparse.Namespace) -> None:
    check_output(parsed.output_file)
    if parsed.unknown and not parsed.token_table:
        raise ConfigurationError(f"--unknown: expected --token-table beside it, got {parsed.unknown} alone")
    _heed_allennlps_flags(parsed)
    with _opened(parsed.input_file) as input_file:
        files = _files(parsed, DEFAULT_MODEL)
        _keep_apart(parsed.output_file, parsed.input_file, files.options_file, files.weight_file,
                    *filter(None, [parsed.token_table]))
        table = parsed.token_table and TokenTable.open(parsed.token_table, unknown=parsed.unknown or "encode")
        embedder = ElmoEmbedder(files.options_file, files.weight_file, parsed.cuda_device, state=parsed.state,
                                precision=parsed.precision, backend=parsed.backend, token_table=table)
        embedder.embed_file(input_file, parsed.output_file, parsed.layers, parsed.batch_size, parsed.forget_sentences,
                            parsed.use_sentence_keys, allow_blank=parsed.allow_blank, progress=_progress(parsed))


def _progress(parsed: argparse.Namespace) -> bool | str:
    return "lines" if parsed.file_friendly_logging and not parsed.quiet else not parsed.quiet


def _heed_allennlps_flags(parsed: argparse.Namespace) -> None:
    if parsed.vocab_path is not None:
        logging.warning("--vocab-path: not used, neither here nor by AllenNLP 0.9")
    if parsed.include_package:
        from elmo_fast.compat.allennlp.registry import import_submodules

        for package in parsed.include_package:
            import_submodules(package)


def _opened(name: str):
    if name != "-":
        return open(name, encoding="utf-8")
    if sys.stdin is None:
        raise ConfigurationError("input file: expected text on stdin, which is closed")
    return open(sys.stdin.fileno(), encoding="utf-8", closefd=False)


def _keep_apart(output: str, *inputs: str | os.PathLike) -> None:
    for path in inputs:
        if os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path):
            raise ConfigurationError(f"output file: expected another file than those that are read, got {output}")


def _info(parsed: argparse.Namespace) -> None:
    from elmo_fast.model.sources import describe

    for name, value in describe(_files(parsed, None)).items():
        print(f"{name + ':':24}{value}")


def _doctor(parsed: argparse.Namespace) -> None:
    from elmo_fast.ops.doctor import report

    print("\n".join(report()))


if __name__ == "__main__":
    sys.exit(main())
