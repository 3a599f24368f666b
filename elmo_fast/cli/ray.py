"""The flags of `embed --ray`, and what it runs."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from elmo_fast.cli.flags import at_least
from elmo_fast.model.options import ConfigurationError
from elmo_fast.scale import Pool

if TYPE_CHECKING:
    from elmo_fast.embed.corpus import Target  # imports torch: the help of the command needs none


def add_ray_flags(parser) -> None:
    """Add `--ray` and the flags of its workers."""
    add = parser.add_argument_group("many machines, with Ray").add_argument
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="embed on the workers of a Ray cluster, by default "
        "of this machine alone, into a new directory of shards, with --state zero or warm; the last flag, or with an "
        "address")
    add("--ray-workers", type=at_least(1), metavar="N", help="workers (default: as many as there is room for)")
    add("--ray-cpus", type=at_least(1), default=1, metavar="N", help="threads of a worker (default: %(default)s)")
    add("--ray-gpus", type=at_least(0), default=0, metavar="N", help="GPUs of a worker (default: %(default)s)")


def ray_writer(pool: Pool, target: "Target", input_file: str, state: str, batch_size: int, resume: bool,
               cuda_device: int) -> Callable[..., None]:
    """What writes a target with Ray, a function of texts, model and progress; refuses flags of one process alone."""
    from elmo_fast.scale.corpus import embed_on_ray
    from elmo_fast.scale.workers import Settings

    if resume:
        raise ConfigurationError("--resume: expected a run without --ray, which replaces killed workers itself")
    if cuda_device >= 0:
        raise ConfigurationError(f"--cuda-device: expected --ray-gpus in its place with --ray, got {cuda_device}")
    if input_file == "-":
        raise ConfigurationError("input file: expected files with --ray, whose processes have no stdin; got -")
    settings = Settings(target.form, state, batch_size, pool.cpus, pool.gpus > 0)
    return functools.partial(embed_on_ray, target=target, settings=settings, pool=pool)
