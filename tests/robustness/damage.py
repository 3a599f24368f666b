"""Damages files: bytes at random, and the structure of HDF5 files, archives and JSON, all from a seeded generator."""

import json
import random
import zipfile
from pathlib import Path

import h5py
import numpy as np

HOSTILE_NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**62, 2**63, 2**70, 10**30, 0.5, -0.0, 1e308, float("nan"),
                   float("inf"), float("-inf"))
HOSTILE = (*HOSTILE_NUMBERS, None, True, "", "3", "\ud800", [], [[]], {}, [1, "a"], {"a": 1})
_HDF5 = ("compressed", "external link", "external storage", "group", "huge", "removed", "shape", "soft link", "text",
         "type", "values")


def damage_bytes(path: Path, rng: random.Random) -> str:
    """Flip bits, overwrite or cut a block, or append one; returns what was done."""
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
        other = rng.randrange(len(content) - size + 1)
        content[at : at + size], content[other : other + size] = (content[other : other + size],
                                                                  content[at : at + size])
    path.write_bytes(content)
    return f"{way} {size} at {at}"


def damage_json(path: Path, rng: random.Random) -> str:
    """Replace, remove or add one value anywhere in a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    places = [(container, key) for container in _containers(content)
              for key in (container if isinstance(container, dict) else range(len(container)))]
    container, key = rng.choice(places)
    way = rng.choice(("replace", "replace", "replace", "remove", "add"))
    if way == "replace":
        container[key] = rng.choice(HOSTILE)
    elif way == "remove":
        del container[key]
    elif isinstance(container, dict):
        container[rng.choice(("unknown", "", "lstm", "dim"))] = rng.choice(HOSTILE)
    else:
        container.append(rng.choice(HOSTILE))
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"{way} {key}"


def _containers(value):
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def damage_hdf5(path: Path, rng: random.Random, secret: Path) -> str:
    """Change one dataset of an HDF5 file, its values, shape, type or place; `secret` is a file that links point at."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = rng.choice(names)
        way = rng.choice(_HDF5)
        values = file[name][...]
        del file[name]
        _change(file, name, values, way, rng, secret)
    return f"{way} {name}"


def _change(file, name, values, way, rng, secret):
    """Write a dataset of that name anew, in a way of `_HDF5`."""
    if way == "group":
        file.create_group(name)
    elif way == "values":
        flat = np.array(values).reshape(-1)
        if flat.dtype.kind == "f" and flat.size:
            flat[rng.randrange(flat.size)] = rng.choice((np.nan, np.inf, -np.inf, 3e38))
        file[name] = flat.reshape(values.shape)
    elif way == "shape":
        file[name] = rng.choice((values.reshape(-1), values.T, values[None], values[:-1], np.zeros(0, values.dtype)))
    elif way == "type":
        file[name] = values.astype(rng.choice(("f2", "f8", "i4", "u1", ">f4", "S3", "c8")))
    elif way == "text":
        file[name] = "text"
    elif way == "soft link":
        file[name] = h5py.SoftLink(rng.choice(("/", f"/{name}", "/nowhere")))
    elif way == "external link":
        file[name] = h5py.ExternalLink(str(secret.with_suffix(".hdf5")), "/values")
    elif way == "external storage":
        file.create_dataset(name, values.shape, values.dtype, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    elif way == "compressed" and values.ndim and values.size:
        file.create_dataset(name, data=values, chunks=True, compression="gzip", shuffle=True)
    elif way == "compressed":
        file[name] = values
    elif way == "huge":
        file.create_dataset(name, (1 << 40, *values.shape[1:]), values.dtype, chunks=(1 << 10, *values.shape[1:]))


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
        members.append(("more.hdf5", bytes(64 << 20)))
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
