"""Damages files, from a seeded generator: bytes, and the structure of HDF5, NumPy, columns, archives, pickles, JSON."""

import ast
import contextlib
import json
import random
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import torch

HOSTILE_NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**62, 2**63, 2**70, 10**30, 0.5, -0.0, 1e308, float("nan"),
                   float("inf"), float("-inf"))
HOSTILE = (*HOSTILE_NUMBERS, None, True, "", "3", "\ud800", [], [[]], {}, [1, "a"], {"a": 1})
_WAYS = ("attribute", "attribute", "axes", "big endian", "chunks", "cycle", "deep", "empty", "empty space",
         "external link", "external storage", "group", "huge", "kind", "long name", "many", "name", "number", "removed",
         "reversed", "sequences", "short", "soft link", "swapped")
LEADS_OUT = "external link", "external storage", "soft link", "virtual dataset"
_TEXTS = ("", "a", "é" * 30, "x" * 5000, "[" * 3000, "{}", "null", '{"a": 1, "a": 2}', "all", "NaN", "3")


def value_of(rng: random.Random):
    """A JSON value of any kind."""
    return rng.choice((*HOSTILE, *_TEXTS, [0], ["all", None], {"layers": "top"}, 10**400))


def damage_bytes(path: Path, rng: random.Random) -> str:
    """Flip bits, overwrite or cut a block, or append one; returns a description."""
    content = bytearray(path.read_bytes())
    way = rng.choice(("flip", "flip", "overwrite", "zero", "cut", "append", "swap"))
    if not content:
        content += b"\n"
    at = rng.randrange(len(content) or 1)
    size = min(rng.choice((1, 8, 64, 512, 4096)), len(content) - at)
    if way == "flip":
        for _ in range(rng.choice((1, 1, 4, 32))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif way == "overwrite":
        content[at : at + size] = rng.randbytes(size)
    elif way == "zero":
        content[at : at + size] = bytes(size)
    elif way == "cut":
        del content[at:]
    elif way == "append":
        content += rng.randbytes(size)
    else:
        source = rng.randrange(len(content) - size + 1)
        content[at : at + size], content[source : source + size] = (content[source : source + size],
                                                                    content[at : at + size])
    path.write_bytes(content)
    return f"{way} {size} at {at}"


def damage_hdf5(path: Path, rng: random.Random, secret: Path) -> str:
    """Change one dataset, attribute or link of an HDF5 file; `secret` is a file that links point at."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name, way = rng.choice(names), rng.choice(_WAYS)
        if way == "attribute" and len(file.attrs):
            name = rng.choice(list(file.attrs))
            _change_attribute(file, name, rng)
        elif way in ("cycle", "deep", "long name", "many", "name"):
            _add_links(file, way, rng)
        else:
            if way in LEADS_OUT:
                lead_out(file, name, way, secret)
            else:
                values = file[name][...]
                del file[name]
                _rewrite(file, name, values, way, rng)
    return f"{way} {name}"


def lead_out(file: h5py.File, name: str, way: str, secret: Path) -> None:
    """Replace a dataset by one with values elsewhere, of the same shape and type, or by a link."""
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    other = str(secret.with_suffix(".hdf5"))
    if way == "soft link":
        file[name] = h5py.SoftLink("/")
    elif way == "external link":
        file[name] = h5py.ExternalLink(other, "/values")
    elif way == "external storage":
        file.create_dataset(name, shape, dtype, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    else:
        layout = h5py.VirtualLayout(shape, dtype)
        layout[...] = h5py.VirtualSource(other, "values", (64,))[: shape[0]]
        file.create_virtual_dataset(name, layout)


def _change_attribute(file: h5py.File, name: str, rng: random.Random) -> None:
    before = file.attrs[name]
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        value = rng.choice((rng.choice(_TEXTS), rng.choice((0, -1, 2**40)), 0.5, np.zeros(3), np.zeros((2, 2), "i4"),
                            b"\xff", [rng.choice(_TEXTS)] * 2, h5py.Empty("f4"), True, np.nan))
        if isinstance(before, str) and before[:1] == "{" and rng.random() < 0.7:
            value = damaged_json(before, rng)
        del file.attrs[name]
        if rng.random() < 0.9:
            file.attrs[name] = value


def _add_links(file: h5py.File, way: str, rng: random.Random) -> None:
    if way == "cycle":
        inner = file.create_group("cycle/inner")
        inner["root"], inner["up"] = file["/"], file["cycle"]
    elif way == "deep":
        place = file.id
        for _ in range(rng.choice((3, 200, 300, 2000))):
            place = h5py.h5g.create(place, b"d")
        h5py.Group(place)["x"] = np.zeros(3, np.float32)
    elif way == "many":
        for number in range(rng.choice((300, 1500))):
            file.create_group(f"many/{number % 7}/{number}")
    else:
        names = (b"\xff\xfe", b"CNN/\xc3", b"\xed\xa0\x80", b"a\x01", b" ")
        name = b"n" * 60_000 if way == "long name" else rng.choice(names)
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        h5py.h5d.create(file.id, name, h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((3,)), lcpl=links)


def _rewrite(file: h5py.File, name: str, values: np.ndarray, way: str, rng: random.Random) -> None:
    """Write a dataset in another way; values that do not fit are left out."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if way == "group":
            file.create_group(name)
        elif way == "huge":
            file.create_dataset(name, (1 << 40, *values.shape[1:]), values.dtype, chunks=(1 << 10, *values.shape[1:]))
        elif way == "empty space":
            file[name] = h5py.Empty(values.dtype)
        elif way == "chunks":
            file.create_dataset(name, data=values, chunks=True, compression=rng.choice((None, "gzip")))
        elif way == "sequences":
            file.create_dataset(name, (2,), h5py.vlen_dtype(np.int32))[...] = [np.arange(3), np.arange(2)]
        elif way == "number":
            flat = np.array(values).reshape(-1)
            flat[rng.randrange(len(flat))] = rng.choice((-1, 0, 1, 127, 2**31, -(2**40), np.nan, 65, 255))
            file[name] = flat.reshape(values.shape)
        elif way != "removed":
            file[name] = {
                "axes": lambda: rng.choice((values[None], values.reshape(-1), np.stack([values] * 2, -1),
                                            values.sum())),
                "big endian": lambda: values.astype(values.dtype.newbyteorder(">")),
                "empty": lambda: values[:0], "reversed": lambda: values[::-1], "short": lambda: values[:-1],
                "kind": lambda: values.astype(rng.choice(("f4", "f8", "i2", "u8", "c8", "S4", "?"))),
                "swapped": lambda: np.roll(values, 1, 0), "attribute": lambda: np.repeat(values, 2, 0),
            }[way]()


def damaged_array(content: bytes, rng: random.Random) -> bytes:
    """The bytes of a `.npy` with another field, text, version or size in its header."""
    size, = struct.unpack("<H", content[8:10])
    header, values = content[10 : 10 + size].decode(), content[10 + size :]
    way = rng.choice(("field", "field", "field", "text", "text", "size", "version"))
    if way == "field":
        fields = ast.literal_eval(header.strip())
        name = rng.choice(sorted(fields))
        fields[name] = rng.choice((*HOSTILE, "|O", "<f2", ">f8", "<U3", "V4", [("a", "<f4")], (3,), (-3, 2), (1 << 40,),
                                   (1 << 40, 1 << 40), (2.0,), ((1,),), (0, 3), fields["shape"][::-1]))
        if rng.random() < 0.2:
            del fields[name]
        header = repr(fields)
    elif way == "text":
        at = rng.randrange(len(header))
        header = header[:at] + rng.choice(("(" * 300, "{", "'''", "\n", "[", "\0", "-" * 90, "}", "é", "lambda: 0")) + (
            "" if rng.random() < 0.5 else header[at:])
    encoded = header.encode("utf-8", "surrogatepass")
    size = rng.choice((0, 1, 65535)) if way == "size" else len(encoded)
    version = rng.choice((b"\1\0", b"\2\0", b"\3\0", b"\xff\0")) if way == "version" else content[6:8]
    return content[:6] + version + struct.pack("<H", size) + encoded + values


def damage_arrays(path: Path, rng: random.Random) -> str:
    """Damage the header of a `.npy`, or of an array in a `.npz`."""
    if path.suffix == ".npy":
        path.write_bytes(damaged_array(path.read_bytes(), rng))
        return "header"
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = rng.choice(sorted(members))
    members[name] = damaged_array(members[name], rng)
    with zipfile.ZipFile(path, "w") as file:
        for member, content in members.items():
            file.writestr(member, content)
    return f"header of {name}"


def damage_columns(path: Path, rng: random.Random) -> str:
    """Write a Parquet or Arrow file again with a null, or with a column of another type, name or place."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_arrow = path.read_bytes()[:6] == b"ARROW1"
    table = pa.ipc.open_file(path.read_bytes()).read_all() if is_arrow else pq.read_table(pa.BufferReader(
        path.read_bytes()))
    at = rng.randrange(table.num_columns)
    name, rows, kind = table.schema.names[at], table.column(at).to_pylist(), table.schema.field(at).type
    way = rng.choice(("null", "null", "null", "cast", "drop", "rename", "swap", "nest", "twice", "short", "metadata"))
    if way == "null":
        holder, place = rows, rng.randrange(len(rows))
        while isinstance(holder[place], list) and holder[place] and rng.random() < 0.7:
            holder, place = holder[place], rng.randrange(len(holder[place]))
        holder[place] = None
        table = table.set_column(at, table.schema.field(at), pa.array(rows, kind))
    elif way == "cast":
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            table = table.set_column(at, name, table.column(at).cast(rng.choice((
                pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.large_list(pa.string()),
                pa.list_(pa.list_(pa.float64())), pa.int64()))))
    elif way == "drop":
        table = table.drop_columns([name])
    elif way == "rename":
        table = table.rename_columns([rng.choice(("", name.upper(), "vectors")) if k == at else other
                                      for k, other in enumerate(table.schema.names)])
    elif way == "swap":
        table = table.select(rng.sample(table.schema.names, table.num_columns))
    elif way == "nest":
        table = table.set_column(at, name, rng.choice((pa.array([[row] for row in rows], pa.list_(kind)), pa.array(
            [{"a": row} for row in rows], pa.struct([("a", kind)])))))
    elif way == "twice":
        table = table.append_column(name, table.column(at))
    elif way == "short":
        cut = [row[:-1] if isinstance(row, (list, str)) and rng.random() < 0.3 else row for row in rows]
        table = table.set_column(at, table.schema.field(at), pa.array(cut, kind))
    else:
        about = {key: damaged_json(value.decode(), rng).encode("utf-8", "replace") if key == b"elmo_fast" else value
                 for key, value in table.schema.metadata.items()}
        table = table.replace_schema_metadata(about)
    if is_arrow:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table.combine_chunks())
    else:
        pq.write_table(table, path)
    return f"{way} {name}"


def damage_zip(path: Path, rng: random.Random) -> str:
    """Write the archive again with one member renamed, doubled, emptied, blown up or added."""
    with zipfile.ZipFile(path) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
    at = rng.randrange(len(members))
    name, content = members[at]
    way = rng.choice(("rename", "double", "empty", "bomb", "traverse", "link", "nest", "remove"))
    if way == "rename":
        members[at] = rng.choice((f"inner/{name}", f"C:\\{name}", name.upper(), "._" + name, "")), content
    elif way == "double":
        members.append((f"other/{name}", content[:-1]))
    elif way == "empty":
        members[at] = name, b""
    elif way == "bomb":
        members.append(("more.hdf5", bytes(8 << 20)))
    elif way == "traverse":
        members[at] = rng.choice((f"../../{name}", f"/tmp/{name}", f"inner/../../{name}")), content
    elif way == "nest":
        members[at] = "/".join(["d"] * 500 + [name]), content
    elif way == "remove":
        del members[at]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for number, (member, values) in enumerate(members):
            info = zipfile.ZipInfo(member)
            info.compress_type = zipfile.ZIP_DEFLATED
            if way == "link" and number == at:
                info.external_attr, values = 0o120777 << 16, b"/etc/passwd"
            file.writestr(info, values)
    return f"{way} {name}"


def damage_json(path: Path, rng: random.Random) -> str:
    """Apply `damaged_json` to a file."""
    path.write_text(damaged_json(path.read_text(encoding="utf-8"), rng), encoding="utf-8", errors="replace")
    return "json"


def damaged_json(text: str, rng: random.Random) -> str:
    """JSON with one value anywhere replaced, removed, duplicated or nested deep."""
    content = json.loads(text)
    places = [(container, key) for container in _containers(content)
              for key in (container if isinstance(container, dict) else range(len(container)))]
    way = rng.choice(("replace", "replace", "replace", "remove", "twice", "deep", "whole", "text"))
    if way == "whole" or not places:
        return json.dumps(value_of(rng))
    if way == "text":
        at = rng.randrange(len(text))
        return text[:at] + rng.choice(("", ",", "}", "\x00", "?", '"')) + text[at:]
    container, key = rng.choice(places)
    if way == "remove":
        del container[key]
    else:
        container[key] = {"replace": value_of(rng), "twice": "@@twice@@", "deep": "@@deep@@"}[way]
    text = json.dumps(content)
    if way == "twice" and isinstance(container, dict):
        return text.replace('"@@twice@@"', f"1, {json.dumps(key)}: 2")
    return text.replace('"@@deep@@"', "[" * 20_000 + "]" * 20_000)


def _containers(value):
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def damage_lines(path: Path, rng: random.Random) -> str:
    """Change one line of a file of JSON lines, or its bytes."""
    if rng.random() < 0.3:
        return damage_bytes(path, rng)
    lines = path.read_text(encoding="utf-8").splitlines()
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((damaged_json(lines[at], rng), "", "x", "[]", "[" * 50_000, '{"step": 1}',
                            "\ufeff" + lines[at]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    return f"line {at}"


def damage_pickle(path: Path, rng: random.Random) -> str:
    """Change a file of `torch.save`: its tensors, its opcodes or its archive."""
    way = rng.choice(("bytes", "opcodes", "tensor", "tensor", "tensor", "archive", "cut"))
    content = path.read_bytes()
    if way == "bytes":
        return damage_bytes(path, rng)
    if way == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif way == "opcodes":
        mark = rng.choice((b"(" * 3000, b"0" * 9, b"(lp0\nI1\naI2\na.", b"\x80\x02" + b"]" * 9000 + b".", b"\x80\x02N.",
                           b"\x80\x02K\x01K\x02R.", b"\x80\x02h\x05.", b"cos\nsystem\n(S'true'\ntR.", b"\x8a\xff" * 40))
        path.write_bytes(rng.choice((mark, content[:40] + mark + content[40:])))
    elif way == "archive":
        with zipfile.ZipFile(path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            archive.writestr("model/data.pkl", rng.choice((b"\x80\x02}.", content[:500], bytes(1 << 20))))
            archive.writestr("model/data/0", bytes(1 << rng.choice((2, 25))))
    else:
        return f"tensor {_change_tensor(path, rng)}"
    return way


def _change_tensor(path: Path, rng: random.Random) -> str:
    content = torch.load(path, weights_only=True)
    name = rng.choice(sorted(content))
    before = content[name]
    content[name] = changed_tensor(before, rng)
    if rng.random() < 0.1:
        content[rng.choice((0, None, "n" * 5000))] = before
    torch.save(content, path, _use_new_zipfile_serialization=rng.random() < 0.5)
    return name


def changed_tensor(before: torch.Tensor, rng: random.Random):
    """A tensor of another layout, type, size or device, or no tensor."""
    ways = [lambda: before.to("meta"), lambda: before.to(torch.complex64), lambda: before.int(),
            before.double, lambda: before[None], lambda: before.reshape(-1),
            lambda: torch.zeros(()).expand(before.shape),
            lambda: torch.zeros(1).as_strided((1 << 40, *before.shape[1:]), (0,) * max(1, before.dim())),
            lambda: before.new_zeros(0), lambda: before * rng.choice((np.nan, np.inf, -1.0, 1e30)), lambda: None,
            lambda: "text", lambda: [before],
            lambda: before.bool(), lambda: before.bfloat16(), lambda: rng.choice(HOSTILE_NUMBERS)]
    if before.dim() == 2 and before.dtype == torch.float32:
        ways += [before.to_sparse, lambda: before.t(), lambda: torch.nested.nested_tensor([before])]
    return rng.choice(ways)()
