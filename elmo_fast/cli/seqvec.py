"""The subcommand `seqvec`."""

from pathlib import Path

from elmo_fast import arguments
from elmo_fast.cli.flags import DEVICE_HELP, NUMERICS, add_command, checked_type, say
from elmo_fast.weights.sources import MODEL_NAMES


def add_commands(commands) -> None:
    """Add the subcommand `seqvec`, with SeqVec's flags."""
    parser = add_command(commands, "seqvec", _seqvec, "embed the protein sequences of "
                         "FASTA files, with SeqVec's flags", "--state", *NUMERICS)
    parser.epilog = ("With --state carry, as in SeqVec, vectors also depend on earlier sequences; with zero and warm "
                     "on the sequence only.")
    add = parser.add_argument
    add("-i", "--input", dest="input_path", required=True, type=Path, metavar="FASTA", help="FASTA file, also .gz, or "
        "a directory: all files below it with fasta in their names")
    add("-o", "--output", dest="output_path", required=True, type=Path, metavar="FILE", help="file to "
        "write: .h5 or .hdf5 (a dataset per sequence), .npz, or with --protein .npy plus a .json of identifiers")
    add("--model", dest="model_dir", metavar="MODEL", help="directory with weights.hdf5 and options.json, an "
        f"archive, or {', '.join(MODEL_NAMES)} (default: ./model if it exists, else seqvec, the published model, "
        "which is downloaded)")
    switch = checked_type(lambda text: ("false", "true").index(text.lower()) == 1, "True or False", lambda _: True)
    add("--protein", dest="per_protein", nargs="?", type=switch, const=True, default=False, metavar="True|False",
        help="write one vector per protein: the mean over its residues")
    add("--batchsize", type=int, default=arguments.SEQVEC_BATCH_SIZE, metavar="RESIDUES",
        help="residues after which a batch ends (default: %(default)s)")
    add("--split-char", "--split_char", default="|", metavar="C", help="separates the fields of a header (default: |)")
    add("--id", type=int, default=1, metavar="N", dest="id_field", help="index (from 0) of the header's field that "
        "identifies a sequence; -1 takes the whole header (default: %(default)s)")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--cpu", nargs="?", type=switch, const=True, default=False, metavar="True|False", help="use "
                        "the CPU even if there is a GPU")
    device.add_argument("--device", metavar="NAME", help=DEVICE_HELP.format("the first GPU if there is one"))
    add("--layer", choices=arguments.SEQVEC_LAYERS, default="sum", help="sum of the layers, all layers concatenated, "
        "or a single layer (default: %(default)s)")
    add("--dtype", choices=arguments.STORAGES, default="float32", help="data type of the vectors (default: "
        "%(default)s)")
    add("--resume", action="store_true", help="continue an interrupted run")
    add("--silent", dest="progress", action="store_false", help="print neither progress nor what was written")


def _seqvec(**flags) -> None:
    from elmo_fast.compat.seqvec import embed_fasta

    written = embed_fasta(**flags)
    if flags["progress"]:
        say(written)
