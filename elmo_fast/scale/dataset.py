"""`embed_dataset`: vectors as a column of a Ray Data dataset, computed by a pool of workers."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FreeState, Layers, Pool, Precision, check_count, gathered, shown
from elmo_fast.embed.api import LoadedElmo, load
from elmo_fast.environment import extra
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors.spec import OutputSpec
from elmo_fast.weights.sources import DEFAULT_MODEL

if TYPE_CHECKING:
    from ray.data import Dataset

TEXTS_PER_SLOT = 16  # in a call of a worker; slots idle at the end of every call


@dataclass(frozen=True)
class DatasetOptions:
    """How `embed_dataset` computes vectors, and its workers.

    The new column `output_column` has lists of fixed-size lists, [tokens][2 P] per text, with `layers="all"`
    [layers][tokens][2 P]; `pool` drops the tokens. `tokenizer` splits strings. `dtype` is `float32` or `float16`, for
    which values beyond its range are refused. `state` is `zero` or `warm`. `precision` and `backend` are those of
    `load`.

    A worker has `num_cpus` threads and `num_gpus` GPUs, and runs `batch_size` texts at a time. At most `concurrency`
    workers run, by default as many as the cluster has room for; a pair is the smallest and largest number of workers.
    A smallest number that leaves no CPU for the tasks that feed the workers waits forever.
    """

    layers: Layers = "all"
    pool: Pool | None = None
    state: FreeState = "warm"
    precision: Precision = "highest"
    backend: str = "auto"
    dtype: str = "float32"
    output_column: str = "elmo"
    concurrency: int | tuple[int, int] | None = None
    num_cpus: int = 1
    num_gpus: float = 0
    batch_size: int = DEFAULT_BATCH_SIZE
    tokenizer: str | Tokenizer = "auto"


def embed_dataset(ds: "Dataset", column: str, *, model: str | os.PathLike | LoadedElmo = DEFAULT_MODEL,
                  **options) -> "Dataset":
    """Add a column with the vectors of `LoadedElmo.embed` to a dataset, computed lazily by Ray Data's workers.

    `column` has strings or lists of tokens. `options` are fields of `DatasetOptions`. The model is read once, by this
    call, and put into the object store, from which workers take it.
    """
    options = gathered(DatasetOptions, options)
    with extra("ray"):
        import ray.data
    from elmo_fast.scale.workers import AddVectors, Settings, SharedModel

    if not isinstance(ds, ray.data.Dataset):
        raise ValueError(f"ds: expected a ray.data.Dataset, got {type(ds).__name__}")
    schema = ds.schema(fetch_if_missing=False)
    if schema is not None and column not in schema.names:
        raise ValueError(f"column: expected one of {', '.join(schema.names)}, got {shown(column)}")
    if schema is not None and options.output_column in schema.names:
        raise ValueError(f"output_column: expected a name that no column has, got {shown(options.output_column)}")
    form = OutputSpec(options.layers, options.pool, options.dtype)
    settings = Settings(form, options.state, options.batch_size, options.num_cpus, options.num_gpus)
    lowest, highest = options.concurrency if isinstance(options.concurrency, tuple) else (1, options.concurrency)
    find_tokenizer(options.tokenizer)
    for bound in (lowest,) if highest is None else (lowest, highest):
        check_count("concurrency", bound)
    elmo = model if isinstance(model, LoadedElmo) else load(model, device="cpu", precision=options.precision,
                                                            backend=options.backend)
    shared = SharedModel.of(elmo, settings)
    return ds.map_batches(
        AddVectors, fn_constructor_args=(shared, settings, column, options.output_column, options.tokenizer),
        batch_format="pyarrow", batch_size=TEXTS_PER_SLOT * options.batch_size,
        compute=ray.data.ActorPoolStrategy(min_size=lowest, max_size=highest), **settings.resources)
