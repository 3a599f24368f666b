"""The subcommand `seqvec`, with SeqVec's flags."""

import argparse
from pathlib import Path

from elmo_fast.choices import SEQVEC_BATCH_SIZE, SEQVEC_LAYERS
from elmo_fast.cli.flags import add_command


def add_commands(commands) -> None:
    """Add the subcommand to an argparse collection; it sets `run`, a function of the parsed arguments."""
    seqvec = add_command(commands, "seqvec", _seqvec, "embed the protein sequences of FASTA files, with SeqVec's flags",
                         "--state", "--precision", "--backend")
    seqvec.epilog = "SeqVec carries states; with zero and warm a sequence's vectors depend on the sequence alone."
    seqvec.add_argument("-i", "--input", required=True, type=Path, metavar="FASTA", help="FASTA file (.gz too), or a "
                        "directory, of which every file with fasta in its name is read")
    seqvec.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help=".h5, a dataset a sequence; "
                        ".npz; or .npy with a .json of identifiers beside it (with --protein)")
    seqvec.add_argument("--model", type=Path, default=Path("model"), metavar="DIRECTORY", help="directory with "
                        "weights.hdf5 and options.json; without them the published model is fetched (default: ./model)")
    seqvec.add_argument("--protein", action="store_true", help="one vector a protein: the mean over its residues")
    seqvec.add_argument("--batchsize", type=int, default=SEQVEC_BATCH_SIZE, metavar="RESIDUES",
                        help="residues that complete a batch (default: %(default)s)")
    seqvec.add_argument("--split-char", default="|", metavar="C", help="splits headers into fields (default: |)")
    seqvec.add_argument("--id", type=int, default=1, metavar="N", dest="id_field", help="number of the field, from 0, "
                        "that identifies a sequence; -1 takes the whole header (default: %(default)s)")
    seqvec.add_argument("--cpu", action="store_true", help="use the CPU where there is a GPU")
    seqvec.add_argument("--layer", choices=SEQVEC_LAYERS, default="sum", help="sum of the layers, all of them side by "
                        "side, or a single layer (default: %(default)s)")
    seqvec.add_argument("--silent", action="store_true", help="no progress bar")


def _seqvec(parsed: argparse.Namespace) -> None:
    from elmo_fast.compat.seqvec import embed_fasta

    embed_fasta(parsed.input, parsed.output, parsed.model, parsed.protein, split_char=parsed.split_char,
                id_field=parsed.id_field, cpu=parsed.cpu, layer=parsed.layer, batchsize=parsed.batchsize,
                progress=not parsed.silent, state=parsed.state, precision=parsed.precision, backend=parsed.backend)
