"""Cases of damaged text: FASTA, plain and compressed lines, JSON lines, CoNLL-U and Parquet."""

import bz2
import contextlib
import functools
import gzip
import hashlib
import io
import json
import lzma
import random
import shutil
from pathlib import Path

import h5py
import numpy as np

import elmo_fast
from elmo_fast.files.compressed import find_zstd
from elmo_fast.text.fasta import read_fasta
from tests.robustness.damage import HOSTILE, damage_bytes
from tests.robustness.world import Case, World


def of_fasta(world: World, folder: Path, rng: random.Random) -> Case:
    lines = [rng.choice((f">protein {k}", "MKV" * rng.randrange(30), "", " ", ">", "\ufeff>x", "acgt\r", ";comment",
                         "\x00", "\u2028", ">é 東京")) for k in range(rng.randrange(12))]
    path = folder / "proteins.fasta"
    path.write_text("\n".join(lines), encoding="utf-8")
    damage = "text" if rng.random() < 0.5 else damage_bytes(path, rng)

    def run() -> int:
        records = list(read_fasta(path))
        assert records and all(record.sequence and not record.sequence.split()[1:] for record in records)
        return len(records)

    return Case(damage, run)


def of_text(world: World, folder: Path, rng: random.Random) -> Case:
    words = ("The", "naïve", "東京", "🙂", "x" * 400, "\u2028", "\x0b", "\x1c", "\u00a0", "\t", "\r", "\x00", "<S>",
             "\ufeff", "")
    lines = [" ".join(rng.choice(words) for _ in range(rng.randrange(1, 9))) for _ in range(rng.randrange(1, 9))]
    path, out = folder / "text.txt", folder / "out.hdf5"
    path.write_bytes("\n".join(lines).encode())
    damage = "text" if rng.random() < 0.5 else damage_bytes(path, rng)

    def run() -> int:
        world.command("embed", path, out, "--all", "--allow-blank", *world.files(world.model), "--quiet")
        content = path.read_bytes().decode().removeprefix("\ufeff")
        expected = [line.split() for line in io.StringIO(content, newline=None)]
        with h5py.File(out) as file:
            for number, tokens in enumerate(expected):
                values = file[str(number)][...]
                assert values.shape[1] == len(tokens) and np.isfinite(values).all(), (number, values.shape)
            assert len(file) == len(expected) + 1
        return len(expected)

    return Case(damage, run)


def _read_texts(path: Path) -> str:
    """A digest of the texts of a file, whose types and number are checked."""
    count = elmo_fast.open_texts(path, allow_blank=True).count()
    with elmo_fast.open_texts(path, allow_blank=True) as texts:
        items = list(texts)
    assert len(items) == count, (len(items), count)
    content = json.dumps([(text.key, text.text, [token + "" for token in text.tokens]) for text in items],
                         ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def of_compressed(world: World, folder: Path, rng: random.Random) -> Case:
    """Compressed text has checksums: refused, or the same text."""
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    with contextlib.suppress(ImportError):
        zstd = find_zstd()
        compress["zst"] = functools.partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1})
    suffix = rng.choice(sorted(compress))
    path = folder / f"text.txt.{suffix}"
    path.write_bytes(compress[suffix](world.vocabulary.read_bytes()))
    damage = damage_bytes(path, rng)
    return Case(f"{suffix} {damage}", lambda: _read_texts(path), (_read_texts(world.vocabulary),))


def of_jsonl(world: World, folder: Path, rng: random.Random) -> Case:
    values = [rng.choice(HOSTILE if rng.random() < 0.1 else ("a b", "\u2028 é", " ", "")) for _ in range(4)]
    records = [rng.choice(({"text": "a b"}, {"text": value}, {"text": ["a", value]}, {"id": value, "text": "a"}))
               for value in values]
    path = folder / "text.jsonl"
    path.write_text("\n".join(json.dumps(record, ensure_ascii=rng.random() < 0.5) for record in records),
                    encoding="utf-8", errors="replace")
    damage = "text" if rng.random() < 0.5 else damage_bytes(path, rng)
    return Case(damage, lambda: _read_texts(path))


def of_conllu(world: World, folder: Path, rng: random.Random) -> Case:
    tail = "\t_" * 8
    lines = rng.choices(("", "", " ", "# text = a", "#", f"1\ta{tail}", f"2\tNew York{tail}", f"3\t\u2028{tail}",
                         f"1-2\tab{tail}", f"1.1\tx{tail}", f"4\té\x1c{tail}\r", f"x\tb{tail}", "1\ta", f"٣\t_{tail}"),
                        (*(8,) * 11, 1, 1, 1), k=rng.randrange(12))
    path = folder / "text.conllu"
    path.write_text("\n".join(lines), encoding="utf-8")
    damage = "text" if rng.random() < 0.5 else damage_bytes(path, rng)
    return Case(damage, lambda: _read_texts(path))


def of_parquet(world: World, folder: Path, rng: random.Random) -> Case:
    path = Path(shutil.copy(_parquet(world), folder / "text.parquet"))
    return Case(damage_bytes(path, rng), lambda: _read_texts(path))


@functools.cache
def _parquet(world: World) -> Path:
    import pyarrow.parquet

    table = pyarrow.table({"id": list(range(3000)), "text": [f"a {k % 7} b" for k in range(3000)]})
    pyarrow.parquet.write_table(table, world.folder / "text.parquet", row_group_size=1100, write_page_checksum=True)
    return world.folder / "text.parquet"
