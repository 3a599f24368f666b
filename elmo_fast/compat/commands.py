"""The subcommand `seqvec`: SeqVec's flags, and the one function it calls."""

import argparse
from pathlib import Path

from elmo_fast.compat import seqvec
from elmo_fast.model.states import STATES
from elmo_fast.ops.backend import BACKENDS
from elmo_fast.ops.precision import PRECISIONS


def add_commands(commands) -> None:
    """Add the subcommand to an argparse collection; it sets `run`, a function of the parsed arguments."""
    summary = "embed the protein sequences of FASTA files, with SeqVec's flags"
    parser = commands.add_parser("seqvec", help=summary, description=summary[0].upper() + summary[1:] + ".")
    _add_seqvec(parser)
    parser.set_defaults(run=_seqvec)


def _add_seqvec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input", required=True, type=Path, metavar="FASTA", help="FASTA file (.gz too), or a "
                        "directory, of which every file with fasta in its name is read")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help=".h5, a dataset each; .npz; or "
                        ".npy with a .json of identifiers beside it (with --protein)")
    parser.add_argument("--model", type=Path, default=Path("model"), metavar="DIRECTORY", help="directory with weights.hdf5 "
                        "and options.json; without them the published model is fetched (default: ./model)")
    parser.add_argument("--protein", action="store_true", help="one vector a protein: the mean over its residues")
    parser.add_argument("--batchsize", type=int, default=seqvec.DEFAULT_BATCH_SIZE, metavar="RESIDUES",
                        help="residues that complete a batch (default: %(default)s)")
    parser.add_argument("--split-char", default="|", metavar="C", help="splits headers into fields (default: |)")
    parser.add_argument("--id", type=int, default=1, metavar="N", dest="id_field", help="number of the field, from 0, "
                        "that identifies a sequence; -1 takes the whole header (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="use the CPU where there is a GPU")
    parser.add_argument("--layer", choices=seqvec.LAYERS, default="sum", help="sum of the layers, all side by side, or one "
                        "(default: %(default)s)")
    parser.add_argument("--silent", action="store_true", help="no progress bar")
    parser.add_argument("--state", choices=STATES, default="carry", help="where a sequence starts; with zero and warm its "
                        "vectors depend on nothing but itself (default: %(default)s, as SeqVec)")
    parser.add_argument("--precision", choices=PRECISIONS, default="highest", help="(default: %(default)s)")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="(default: %(default)s)")


def _seqvec(parsed: argparse.Namespace) -> None:
    seqvec.embed_fasta(parsed.input, parsed.output, parsed.model, parsed.protein, split_char=parsed.split_char,
                       id_field=parsed.id_field, cpu=parsed.cpu, layer=parsed.layer, batchsize=parsed.batchsize,
                       progress=not parsed.silent, state=parsed.state, precision=parsed.precision, backend=parsed.backend)
