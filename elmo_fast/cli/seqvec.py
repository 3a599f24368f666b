"""The subcommand `seqvec`."""

from pathlib import Path

from elmo_fast import arguments
from elmo_fast.cli.flags import NUMERICS, add_command, value_of


def add_commands(commands) -> None:
    """Add the subcommand `seqvec`, with SeqVec's flags."""
    parser = add_command(commands, "seqvec", "elmo_fast.compat.seqvec:embed_fasta", "embed the protein sequences of "
                         "FASTA files, with SeqVec's flags", "--state", *NUMERICS)
    parser.epilog = "SeqVec carries states; with zero and warm a sequence's vectors depend on the sequence alone."
    add = parser.add_argument
    add("-i", "--input", dest="input_path", required=True, type=Path, metavar="FASTA", help="FASTA file (.gz too), or "
        "a directory, whose files with fasta in their name are read")
    add("-o", "--output", dest="output_path", required=True, type=Path, metavar="FILE", help=".h5, a dataset a "
        "sequence; .npz; or .npy with a .json of identifiers beside it (with --protein)")
    add("--model", dest="model_dir", type=Path, default=Path("model"), metavar="DIRECTORY", help="directory with "
        "weights.hdf5 and options.json; without them the published model is fetched (default: ./model)")
    switch = value_of(lambda text: ("false", "true").index(text.lower()) == 1, "True or False", lambda _: True)
    add("--protein", dest="per_protein", nargs="?", type=switch, const=True, default=False, metavar="True|False",
        help="one vector a protein: the mean over its residues")
    add("--batchsize", type=int, default=arguments.SEQVEC_BATCH_SIZE, metavar="RESIDUES",
        help="residues that complete a batch (default: %(default)s)")
    add("--split-char", "--split_char", default="|", metavar="C", help="splits headers into fields (default: |)")
    add("--id", type=int, default=1, metavar="N", dest="id_field", help="number of the field, from 0, that identifies "
        "a sequence; -1 takes the whole header (default: %(default)s)")
    add("--cpu", nargs="?", type=switch, const=True, default=False, metavar="True|False", help="use the CPU where "
        "there is a GPU")
    add("--layer", choices=arguments.SEQVEC_LAYERS, default="sum", help="sum of the layers, all of them side by side, "
        "or a single layer (default: %(default)s)")
    add("--resume", action="store_true", help="continue an interrupted run")
    add("--silent", dest="progress", action="store_false", help="no progress bar")
