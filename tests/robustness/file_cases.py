"""Cases of damaged files other than models: tables, vectors, indexes, vocabularies, logs, checkpoints."""

import functools
import gzip
import random
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

import elmo_fast
from elmo_fast.engine.table import TokenTable
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.explore.nearest import open_index
from elmo_fast.train import checkpoint
from elmo_fast.vectors.spec import OutputSpec
from tests.robustness.damage import (
    HOSTILE_NUMBERS,
    changed_tensor,
    damage_arrays,
    damage_bytes,
    damage_columns,
    damage_hdf5,
    damage_json,
    damage_lines,
    damage_pickle,
    value_of,
)
from tests.robustness.world import Case, World
from tests.support.manylangs import SENTENCES, write_manylangs
from tests.support.vectors import make_items, write

_FORMS = (OutputSpec(), OutputSpec("top"), OutputSpec("average", "mean"), OutputSpec("all", "max", "float16"),
          OutputSpec(targets=frozenset({"wörd1", "wörd4"})))
_OUTPUTS = [("allennlp", "out.hdf5"), ("npz", "out.npz"), ("npy", "out.npy")]
if find_spec("pyarrow"):
    _OUTPUTS += [("parquet", "out.parquet"), ("arrow", "out.arrow"), ("parquet", "parts")]


def of_table(world: World, folder: Path, rng: random.Random) -> Case:
    table = Path(shutil.copy(world.table, folder / "table.hdf5"))
    damage = damage_hdf5(table, rng, world.secret) if rng.random() < 0.5 else damage_bytes(table, rng)

    def run() -> int:
        tokens = TokenTable.open(table)
        assert tokens.vectors(np.arange(len(tokens))).shape == (len(tokens), tokens.dim)
        return len(tokens) + sum(map(len, tokens.words or []))

    return Case(damage, run, () if damage.startswith(("external", "soft")) else None, str(table))


@functools.cache
def _vectors(world: World, number: int, layout: str, name: str) -> Path:
    folder = world.folder / f"vectors-{number}-{layout}-{name}"
    folder.mkdir()
    write(layout, folder / name, _FORMS[number], make_items(_FORMS[number], count=40), (13,),
          **({"fingerprint": {"model": "a", "state": "warm"}} if layout != "npz" else {}))
    return folder


def of_vectors(world: World, folder: Path, rng: random.Random) -> Case:
    (layout, name), number = rng.choice(_OUTPUTS), rng.randrange(len(_FORMS))
    number = 2 if layout == "npy" else number
    place = shutil.copytree(_vectors(world, number, layout, name), folder / "copy")
    target = place / name
    damage = _damage_vectors(target, layout, rng, world.secret)
    return Case(f"{layout} {name} {number}: {damage}", lambda: _read_all(target), file=str(place))


def _damage_vectors(target: Path, layout: str, rng: random.Random, secret: Path) -> str:
    if target.is_dir():
        target = rng.choice(sorted(target.iterdir()))
    if layout == "allennlp" and rng.random() < 0.8:
        return damage_hdf5(target, rng, secret)
    if layout == "npy" and rng.random() < 0.4:
        return damage_json(target.with_suffix(".json"), rng)
    if layout in ("npy", "npz") and rng.random() < 0.8:
        return rng.choice((damage_arrays, _replace_arrays))(target, rng)
    if layout in ("parquet", "arrow") and rng.random() < 0.6:
        return damage_columns(target, rng)
    return damage_bytes(target, rng)


def _replace_arrays(target: Path, rng: random.Random) -> str:
    values = rng.choice((np.zeros(3, "i4"), np.zeros((2, 2), "c8"), np.array(3.0, "f4"), np.zeros((0, 3), "f4"),
                         np.array(["a"]), np.zeros((40, 2, 2), ">f8"), np.zeros(40, "M8[s]"),
                         np.zeros((1 << 18,), "f4")))
    if target.suffix == ".npy":
        np.save(target, values)
    else:
        with np.load(target) as archive:
            arrays = {name: archive[name] for name in archive.files}
        arrays[rng.choice(sorted(arrays))] = values
        (np.savez_compressed if rng.random() < 0.5 else np.savez)(target, **arrays)
    return f"{values.dtype} {values.shape}"


def _read_all(target: Path) -> int:
    with elmo_fast.open_embeddings(target) as embeddings:
        total = 0
        for number, key in enumerate(embeddings.keys):
            vectors = embeddings[number]
            assert vectors.dtype.kind == "f" and isinstance(key, str)
            total += vectors.size
            positions = embeddings.positions(number)
            assert positions is None or positions.dtype.kind == "i"
            if embeddings.layout in ("parquet", "arrow"):
                assert all(isinstance(token, str) for token in [embeddings.text(number), *embeddings.tokens(number)])
        assert len(embeddings) == len(embeddings.keys) and embeddings.dtype.kind == "f"
        if embeddings.layout in ("parquet", "arrow") and not embeddings.pool:
            rows, places = embeddings.occurrences("wörd1")
            assert len(rows) == len(places)
            with np.errstate(over="ignore", invalid="ignore"):  # numbers in a file without checksums may be of any size
                total += len(ContextIndex.from_embeddings(embeddings))
        return total


def of_vocabulary(world: World, folder: Path, rng: random.Random) -> Case:
    """A vocabulary: refused, or words; a damaged `.gz` is refused or has the right ones, since it has a checksum.

    Nothing at all is an empty text, as for Python's `gzip`.
    """
    is_packed = rng.random() < 0.5
    path, content = folder / ("vocab.txt.gz" if is_packed else "vocab.txt"), world.vocabulary.read_bytes()
    path.write_bytes(gzip.compress(content) if is_packed else content)
    damage = damage_bytes(path, rng)
    words = list(elmo_fast.Vocabulary(world.vocabulary).words) if path.stat().st_size else []
    return Case(damage, lambda: list(elmo_fast.Vocabulary(path).words), [words] if is_packed else None, file=str(path))


def of_index(world: World, folder: Path, rng: random.Random) -> Case:
    path = Path(shutil.copy(_index(world), folder / "index.h5"))
    damage = damage_hdf5(path, rng, world.secret) if rng.random() < 0.9 else damage_bytes(path, rng)

    def run() -> int:
        np.seterr(over="ignore", invalid="ignore")  # numbers may be of any size
        index = open_index(path)
        contexts = [index.nearest(number, 3) for number in range(0, len(index), 4)]
        assert index.nearest(np.ones(index.vectors.shape[1], np.float32), 2, center=True) or not len(index)
        return sum(map(len, contexts)) + len(index.occurrences("wörd1")) + sum(int(line) for line in index.lines)

    return Case(damage, run, file=str(path))


@functools.cache
def _index(world: World) -> Path:
    rng = np.random.default_rng(0)
    texts = [[f"wörd{number}" for number in rng.integers(6, size=length)] for length in (4, 1, 7, 3)]
    places = np.array([(text, at) for text, tokens in enumerate(texts) for at in range(len(tokens))])
    vectors = rng.standard_normal((len(places), 8), dtype=np.float32)
    ContextIndex(texts, places, vectors, lines=[0, 2, 5, 6], model="a").save(world.folder / "index.h5")
    return world.folder / "index.h5"


def of_manylangs(world: World, folder: Path, rng: random.Random) -> Case:
    model = shutil.copytree(_manylangs(world), folder / "model")
    path = model / rng.choice(("encoder.pkl", "token_embedder.pkl", "token_embedder.pkl", "config.json", "sizes.json",
                               "char.dic", "word.dic"))
    if path.suffix == ".pkl":
        damage = damage_pickle(path, rng)
    elif path.suffix == ".json" and rng.random() < 0.8:
        damage = damage_json(path, rng)
    elif path.suffix == ".dic" and rng.random() < 0.7:
        lines = path.read_text(encoding="utf-8").split("\n")
        lines[rng.randrange(len(lines))] = rng.choice((
            "a", "a\tb", "a\t-1", f"a\t{10**30}", "\t", "\t\t", "x" * 9000 + "\t1", "a\t٣", "a\t1.5", "<oov>\t2",
            "\u3000\t1"))
        path.write_text("\n".join(lines), encoding="utf-8")
        damage = "line"
    else:
        damage = damage_bytes(path, rng)

    def run() -> bool:
        vectors = elmo_fast.load(model).embed(SENTENCES[:3])
        return len(vectors) == 3

    return Case(f"{path.name} {damage}", run, file=str(model))


@functools.cache
def _manylangs(world: World) -> Path:
    return write_manylangs(world.folder / "manylangs")


def _resume(world: World, run_directory: Path) -> bool:
    world.command("train", run_directory, "--resume", "--max-steps", 6, "--quiet")
    return True


def of_log(world: World, folder: Path, rng: random.Random) -> Case:
    """A damaged log: refused before any text is read."""
    run_directory = shutil.copytree(world.run, folder / "run")
    damage = damage_lines(run_directory / "log.jsonl", rng)
    return Case(damage, functools.partial(_resume, world, run_directory), file=str(run_directory))


def of_sealed_checkpoint(world: World, folder: Path, rng: random.Random) -> Case:
    """A checkpoint of other content with a right checksum: refused, or resumed without an error of Python."""
    run_directory = shutil.copytree(world.run, folder / "run")
    path = max((run_directory / "checkpoints").glob("step-*.pt"))
    content = torch.load(path, weights_only=True)
    container, key = content, rng.choice([name for name in sorted(content) if name != "format"])
    while isinstance(container[key], (dict, list)) and container[key] and rng.random() < 0.9:
        container = container[key]
        key = rng.choice(sorted(container, key=str) if isinstance(container, dict) else range(len(container)))
    before = container[key]
    if isinstance(before, torch.Tensor) and before.dtype == torch.int64:
        flat = before.clone().reshape(-1)
        flat[rng.randrange(len(flat))] = rng.choice((-2, -1, 0, 1, 3, 25, 99, 2**31, 2**62))
        container[key] = flat.reshape(before.shape)
    elif isinstance(before, torch.Tensor):
        container[key] = changed_tensor(before, rng)
    else:
        container[key] = rng.choice((value_of(rng), rng.choice(HOSTILE_NUMBERS), torch.zeros(3), "text", b"bytes"))
    try:
        checkpoint.write(path, {name: value for name, value in content.items() if name != "format"})
    except Exception:
        return Case("cannot be written", lambda: True)
    return Case(f"{key}", functools.partial(_resume, world, run_directory), file=str(run_directory))


KINDS = {"table": of_table, "vectors": of_vectors, "vocabulary": of_vocabulary, "index": of_index,
         "manylangs": of_manylangs, "log": of_log, "sealed checkpoint": of_sealed_checkpoint}
