"""A model's files: two paths, a directory, a ZIP, a URL, or a name; what URLs give is stored in a cache."""

import functools
import hashlib
import lzma
import os
import re
import shutil
import struct
import urllib.parse
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from elmo_fast.choices import cache_directory, check_choice, check_path
from elmo_fast.model.atomic_file import Disk, store_once
from elmo_fast.model.hdf5 import check_unpacked
from elmo_fast.model.options import ConfigurationError
from elmo_fast.stops import interruptible

_ALLENNLP = "https://allennlp.s3.amazonaws.com/models/elmo"
NAMED_MODELS = {
    "small": f"{_ALLENNLP}/2x1024_128_2048cnn_1xhighway/elmo_2x1024_128_2048cnn_1xhighway_",
    "medium": f"{_ALLENNLP}/2x2048_256_2048cnn_1xhighway/elmo_2x2048_256_2048cnn_1xhighway_",
    "original": f"{_ALLENNLP}/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway_",
    "original_5.5b": f"{_ALLENNLP}/2x4096_512_2048cnn_2xhighway_5.5B/elmo_2x4096_512_2048cnn_2xhighway_5.5B_",
    "seqvec": "https://rostlab.org/~deepppi/embedding_repo/embedding_models/seqvec/",
}
NLPL = "http://vectors.nlpl.eu/repository"
# Languages of ELMoForManyLangs, whose models have the numbers from 136 on in release 11 of the NLPL repository.
MANYLANGS = ("ar bg ca cs cu da de el en es et eu fa fi fr ga gl grc he hi hr hu id it ja ko la lv nl nb nn pl pt ro "
             "ru sk sl sv tr ug uk ur vi zh").split()
_FIRST_OF_MANYLANGS = 136
DEFAULT_MODEL = "bundled"
MODEL_NAMES = (DEFAULT_MODEL, *NAMED_MODELS, "nlpl:NUMBER", "manylangs:LANGUAGE")
BUNDLED_DIRECTORY = Path(__file__).parents[1] / "pretrained"
SOFTMAX_FILE = "softmax.hdf5"  # beside a model's weights, where it has one
_VOCABULARY_NAMES = ("vocab.txt", "vocab.txt.gz")
MANYLANGS_WEIGHTS = "encoder.pkl"  # in the directory of a model of ELMoForManyLangs
_MANYLANGS_NAMES = (MANYLANGS_WEIGHTS, "token_embedder.pkl", "char.dic", "word.dic")  # and *.json
_BLOCK = 1 << 20
_FORBIDDEN = r'[<>:"|?*\\%]|[. ]$' if os.name == "nt" else ""  # in names of Windows' files
_UNSTATED = "not stated"  # a licence or a size
# RuntimeError for a password, OSError from bz2 and from seeks before the file's start.
_DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error, RuntimeError, OSError, ValueError)


@dataclass(frozen=True)
class ModelFiles:
    """Local paths of a model's options, weights and, where it has one, vocabulary."""

    options_file: Path
    weight_file: Path
    vocab_file: Path | None = None


def find_model(model: str | os.PathLike | None = None, *, options_file: str | os.PathLike | None = None,
               weight_file: str | os.PathLike | None = None) -> ModelFiles:
    """Local files of a model, fetched into the cache where they are remote.

    Either `model`: `bundled`, a name of `NAMED_MODELS`, `nlpl:NUMBER` of the NLPL repository (release 20),
    `manylangs:LANGUAGE` (`MANYLANGS`), a directory, a ZIP, the URL of a ZIP, or the URL of a directory
    where the file system can list one (`hf://owner/repository`, `s3://...`); or both `options_file` and `weight_file`,
    paths or URLs. A model of ELMoForManyLangs has its `config.json` and `encoder.pkl` in their places. Raises
    `FileNotFoundError` or `ConfigurationError` saying what is missing.
    """
    if model is None:
        return _two_files(options_file=options_file, weight_file=weight_file)
    if options_file is not None or weight_file is not None:
        raise ConfigurationError("model: expected either model or options_file and weight_file, got both")
    name = repository_url(check_path("model", model))
    if name == DEFAULT_MODEL:
        return _in_directory(BUNDLED_DIRECTORY)
    if name in NAMED_MODELS:
        return _named(name)
    path = _fetched(name) if _is_url(name) else Path(name)
    if path.is_dir():
        return _in_directory(path)
    if path.is_file() and zipfile.is_zipfile(path):
        return _in_directory(_unpacked(path))
    if path.exists():
        raise ConfigurationError(f"model: expected a directory or a ZIP with options.json and *.hdf5, got {path}, "
                                 "which is something else or a ZIP cut short")
    raise FileNotFoundError(f"model: expected one of {', '.join(MODEL_NAMES)}, a directory, a ZIP or a URL; "
                            f"found nothing at {path}")


def repository_url(name: str) -> str:
    """The URL that `nlpl:NUMBER` or `manylangs:LANGUAGE` stands for; any other name as it is."""
    kind, _, which = name.partition(":")
    if kind == "manylangs":
        check_choice("manylangs", which, MANYLANGS, ConfigurationError)
        return f"{NLPL}/11/{_FIRST_OF_MANYLANGS + MANYLANGS.index(which)}.zip"
    if kind != "nlpl":
        return name
    if not (which.isascii() and which.isdigit()):
        raise ConfigurationError(f"nlpl: expected the number of a model in {NLPL}/20.json, got {which!r}")
    return f"{NLPL}/20/{which}.zip"


def fetch(location: str | os.PathLike) -> Path:
    """Local path of a path or URL. A URL is downloaded once into the cache, atomically."""
    name = os.fspath(location)
    if not _is_url(name):
        return Path(name)
    target = cache_path(name)
    remedy = f"Fetched by other means, it belongs at {target}"
    try:
        store_once(target, functools.partial(interruptible(_copy), name, target.name))
    except ImportError as error:
        raise ImportError(f"fetching {name} needs a package that is not there ({error}): "
                          f"install elmo-fast[remote]. {remedy}") from error
    except Exception as error:
        reason = type(error).__name__ if str(error) == name else f"{type(error).__name__}: {error}"
        raise OSError(f"{name}: the download failed ({reason}); nothing was stored. {remedy}") from error
    return target


def cache_path(url: str) -> Path:
    """Where the cache keeps a URL's file: folders for its scheme and host, then its path.

    A user, a query and a fragment may be secret: they are part of the names as hashes.
    """
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    pieces = [parts.scheme, host + _hashed(user), *parts.path.removeprefix("/").split("/")]
    if not parts.path:
        pieces.pop()
    pieces[-1] += _hashed(parts.query + (parts.fragment and f"#{parts.fragment}"))
    if _FORBIDDEN:
        pieces = [re.sub(_FORBIDDEN, lambda found: f"%{ord(found[0]):02X}", piece) for piece in pieces]
    return cache_directory().joinpath(*(piece if piece.strip(".") else f"%{piece}" for piece in pieces))


def _hashed(text: str) -> str:
    return text and "." + hashlib.sha256(text.encode()).hexdigest()[:12]


def _two_files(**given: str | os.PathLike | None) -> ModelFiles:
    for name, value in given.items():
        check_path(name, value, ConfigurationError)
    found = []
    for name, value in given.items():
        path = fetch(value)
        if not path.is_file():
            raise FileNotFoundError(f"{name}: expected a file, found {'a directory' if path.is_dir() else 'nothing'} "
                                    f"at {path}")
        found.append(path)
    return ModelFiles(*found, vocabulary_in(found[1].parent))


def _named(name: str) -> ModelFiles:
    urls = [f"{NAMED_MODELS[name]}{kind}" for kind in ("options.json", "weights.hdf5")]
    try:
        return ModelFiles(*map(fetch, urls))
    except (OSError, ImportError) as error:
        also = "".join(f", and {url} at {cache_path(url)}" for url in urls if url not in str(error))
        raise FileNotFoundError(f"model {name!r}: {error}{also}") from error


def _fetched(url: str) -> Path:
    """Local path of what a model's URL names: a file, or a directory's model files, `options.json` the last of them."""
    folder = cache_path(url.rstrip("/"))
    if folder.is_dir() and any(_is_model_file(path.name) and path.suffix == ".json" for path in folder.iterdir()):
        return folder
    names = _remote_model_files(url)
    for name in sorted(names, key=lambda name: name.endswith(".json")):
        fetch(f"{url.rstrip('/')}/{name}")
    return folder if names else fetch(url)


def _remote_model_files(url: str) -> list[str]:
    """Names of the model files in a remote directory; none where the URL is no directory, or cannot be one."""
    if "::" in url or url.startswith(("http://", "https://")) or url.endswith(".zip"):
        return []
    try:
        import fsspec

        system, path = fsspec.url_to_fs(url)
        entries = system.ls(path, detail=True) if system.isdir(path) else []
    except ImportError as error:
        raise ImportError(f"reading {url} needs a package that is not there ({error}): install elmo-fast[remote]"
                          f"{', and huggingface_hub for hf://' if url.startswith('hf://') else ''}") from error
    except Exception as error:
        raise OSError(f"model: {url} cannot be listed ({type(error).__name__}: {error})") from error
    names = [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "file"]
    found = [name for name in names if _is_model_file(name)]
    if entries and not found:
        raise ConfigurationError(f"model {url}: expected options.json and *.hdf5, found "
                                 f"{', '.join(sorted(names)[:8])[:300]}")
    return found


def _in_directory(directory: Path) -> ModelFiles:
    if (directory / MANYLANGS_WEIGHTS).is_file():
        return ModelFiles(directory / "config.json", directory / MANYLANGS_WEIGHTS)
    names = sorted(path.name for path in directory.iterdir() if _is_model_file(path.name))
    options = _only(directory, "options.json", [name for name in names if name.endswith("options.json")])
    weights = _only(directory, "*.hdf5", [name for name in names if name.endswith(".hdf5") and name != SOFTMAX_FILE])
    return ModelFiles(options, weights, vocabulary_in(directory))


def vocabulary_in(directory: Path) -> Path | None:
    """The file of a vocabulary in a model's directory, where it has one."""
    return next((directory / name for name in _VOCABULARY_NAMES if (directory / name).is_file()), None)


def _only(directory: Path, wanted: str, found: list[str]) -> Path:
    exact = [name for name in found if name in (wanted, "model.hdf5", "weights.hdf5", "lm_weights.hdf5")]
    candidates = exact if len(exact) == 1 else found
    if len(candidates) != 1:
        raise ConfigurationError(f"model {directory}: expected one file {wanted}, "
                                 f"found {', '.join(candidates)[:300] or 'none'}")
    return directory / candidates[0]


def _unpacked(archive: Path) -> Path:
    """Directory with the model's members of a ZIP, unpacked into the cache once for each state of the archive."""
    status = archive.stat()
    key = f"{archive.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    target = cache_directory() / "unpacked" / f"{archive.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    store_once(target, functools.partial(_unpack, archive))
    return target


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    try:
        _unpack_members(archive, folder)
    except _DAMAGE as error:
        if isinstance(error, ConfigurationError) or getattr(error, "filename", None):  # that of a full disk
            raise
        raise ConfigurationError(f"model {archive}: expected a complete ZIP file without a password, "
                                 f"got one that cannot be unpacked ({error})") from error


def _unpack_members(archive: Path, part: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        wanted: dict[str, zipfile.ZipInfo] = {}
        many = any(name.rpartition("/")[2] == MANYLANGS_WEIGHTS for name in file.namelist())
        for info in file.infolist():
            name = info.filename.rpartition("/")[2]  # empty for a directory
            of_model = name in _MANYLANGS_NAMES or name.endswith(".json") if many else _is_model_file(name)
            if of_model and wanted.setdefault(name, info) is not info:
                raise ConfigurationError(f"model {archive}: expected one model inside, "
                                         f"found both {wanted[name].filename:.120} and {info.filename:.120}")
        if not many and {".hdf5", ".json"} - {Path(name).suffix for name in wanted}:
            raise ConfigurationError(f"model {archive}: expected options.json and *.hdf5 inside, "
                                     f"found {', '.join(sorted(file.namelist())[:8])[:300] or 'nothing'}")
        check_unpacked(f"model {archive}", sum(info.file_size for info in wanted.values()), archive.stat().st_size)
        for name, info in wanted.items():
            with file.open(info) as source, Disk(part / name, part) as copy:  # `source` has no more than `file_size`
                interruptible(shutil.copyfileobj)(source, copy, _BLOCK)
                copy.check()


def _is_model_file(name: str) -> bool:
    """Whether a model needs a file of this name; the `._` files that macOS puts beside others are not."""
    return not name.startswith(".") and (name.endswith(("options.json", ".hdf5")) or name in _VOCABULARY_NAMES)


def _is_url(name: str) -> bool:
    return "://" in name or "::" in name


def _copy(url: str, name: str, path: Path) -> None:
    import fsspec

    with fsspec.open(url, "rb") as source, open(path, "wb") as copy:
        expected = getattr(source, "size", None)
        with tqdm.wrapattr(source, "read", expected, desc=name, leave=False, disable=None) as watched:
            shutil.copyfileobj(watched, copy, _BLOCK)
        if expected not in (None, copy.tell()):
            raise OSError(f"{url}: expected {expected} bytes, got {copy.tell()}")


class PublicModel(NamedTuple):
    """A model as `load` names it. `size` counts parameters, or is that of the download.

    Sizes and licences are those that the models' own pages or archives state. None of them states a hash.
    """

    name: str
    language: str
    size: str
    licence: str
    source: str


def public_models() -> list[PublicModel]:
    """Every model that can be named; a single entry for the NLPL repository, whose catalogue has the numbers."""
    sizes = {"small": "13.6 M", "medium": "28.0 M", "original": "93.6 M", "original_5.5b": "93.6 M"}
    return [
        PublicModel(DEFAULT_MODEL, "English", "in the package", "Apache-2.0", "elmo_fast/pretrained"),
        *(PublicModel(name, "English", size, _UNSTATED, f"{NAMED_MODELS[name]}{{options.json,weights.hdf5}}")
          for name, size in sizes.items()),
        PublicModel("seqvec", "proteins", "93.6 M, 360 MB", "MIT (its repository)",
                    f"{NAMED_MODELS['seqvec']}{{options.json,weights.hdf5}}"),
        PublicModel("nlpl:NUMBER", "many", _UNSTATED, "see its meta.json", f"{NLPL}/20/NUMBER.zip, catalogue: "
                    f"{NLPL}/20.json"),
        *(PublicModel(f"manylangs:{language}", language, _UNSTATED, "MIT (its repository)",
                      repository_url(f"manylangs:{language}")) for language in MANYLANGS),
    ]


def public_model_lines() -> list[str]:
    """A line for each public model, in columns."""
    rows = [PublicModel("name", "language", "size", "licence", "where"), *public_models()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(f"{value:{width}}" for value, width in zip(row, widths)).rstrip() for row in rows]
