"""The flags of `embed --ray`, and what it runs."""

import functools
import os
from typing import Any

from elmo_fast.cli.flags import at_least
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.sources import ModelFiles


def add_ray_flags(parser) -> None:
    """Add `--ray` and the flags of its workers."""
    add = parser.add_argument_group("many machines, with Ray").add_argument
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="embed on the workers of a Ray cluster, by default "
        "of this machine alone; OUTPUT is a new directory of Parquet shards, with --state zero or warm; the last flag, "
        "or with an address")
    add("--ray-workers", type=at_least(1), metavar="N", help="workers (default: as many as there is room for)")
    add("--ray-cpus", type=at_least(1), default=1, metavar="N", help="threads of a worker (default: %(default)s)")
    add("--ray-gpus", type=at_least(0), default=0, metavar="N", help="GPUs of a worker (default: %(default)s)")


def embed(files: ModelFiles, input_file: str, output_file: str, ray: str, ray_workers: int | None, ray_cpus: int,
          ray_gpus: int, state: str, precision: str, backend: str, allow_blank: bool, output_format: str,
          batch_size: int, progress: bool | str, **others: Any) -> None:
    """Embed a text into a directory of shards; flags of one process alone are refused."""
    from elmo_fast.embed.api import LoadedElmo
    from elmo_fast.embed.form import Form
    from elmo_fast.embed.readers import open_texts
    from elmo_fast.model.bilm import BiLm
    from elmo_fast.scale.corpus import Pool, embed_on_ray
    from elmo_fast.scale.dataset import Settings

    for name, value in others.items():
        if value not in (None, -1) and value is not False:
            raise ConfigurationError(f"--{name.replace('_', '-')}: expected a run without --ray, got {value!r} with it")
    if input_file == "-":
        raise ConfigurationError("input file: expected a file with --ray, whose processes have no stdin; got -")
    settings = Settings(Form(output_format), state, batch_size, ray_cpus, ray_gpus > 0)
    texts = functools.partial(open_texts, os.path.abspath(input_file), allow_blank=allow_blank)
    with texts() as opened:
        total = opened.count()
    bilm = BiLm.from_model(files, state=state, precision=precision, backend=backend)
    embed_on_ray(texts, output_file, LoadedElmo(bilm), settings, Pool(ray, ray_workers, ray_cpus, ray_gpus),
                 total=total, progress=bool(progress))
