"""The subcommands `info`, `models` and `doctor`."""

from elmo_fast.cli.flags import MODEL_FILES, NUMERICS, add_command
from elmo_fast.weights.sources import DEFAULT_MODEL, find_model


def add_commands(commands) -> None:
    """Add the subcommands `info`, `models` and `doctor`."""
    add_command(commands, "info", _info, "print a model's layers, sizes and parameters, and what the precisions run as",
                "model", *MODEL_FILES[1:], NUMERICS[2])
    models = add_command(commands, "models", "elmo_fast.weights.public:public_model_lines",
                         "list the public models, or print the licence and the addresses of one")
    models.add_argument("name", nargs="?", metavar="NAME", help="one of these models (default: all)")
    doctor = add_command(commands, "doctor", "elmo_fast.ops.doctor:report", "print versions, processor, GPU, and the "
                         "backend of every operation")
    doctor.add_argument("--gpu", action="store_true", help="try the GPU's kernels first, which takes a minute")


def _info(allow_nonfinite, **names) -> list[str]:
    from elmo_fast.ops.doctor import precisions_here
    from elmo_fast.weights.families.models import describe

    if all(name is None for name in names.values()):
        names["model"] = DEFAULT_MODEL
    described = {**describe(find_model(**names), allow_nonfinite), "precisions on this CPU": precisions_here()}
    return [f"{name + ':':24}{value}" for name, value in described.items()]
