"""A model's files: two paths, a directory, an archive, a URL, or a name; downloads are stored in a cache."""

import difflib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elmo_fast.arguments import check_file, check_path
from elmo_fast.environment import cache_directory, install_line
from elmo_fast.errors import ConfigurationError, parsing
from elmo_fast.files.archives import Member, is_archive, open_archive
from elmo_fast.files.atomic import DeferredErrorFile, store_once
from elmo_fast.files.downloads import cache_path, fetch, fetch_any, is_url
from elmo_fast.files.hdf5 import check_unpacked, is_hdf5, open_hdf5
from elmo_fast.files.stops import interruptible
from elmo_fast.weights.families import ALLENNLP, BILM_TF, SAFETENSORS, Family, family_of
from elmo_fast.weights.public import DEFAULT_MODEL, MODEL_NAMES, NAMED_MODELS, public_copies

BUNDLED_DIRECTORY = Path(__file__).parents[1] / "pretrained"
_OPTIONS, _WEIGHTS = "options.json", "*.hdf5, *.h5 or *.safetensors"
_VECTORS = ".npz", ".npy", ".parquet", ".arrow", ".feather"  # suffixes
_TOGETHER = ("--options-file and --weight-file are given together (train: --from-options, --from-weights; Python: "
             "options_file, weight_file)")
_BLOCK = 1 << 20


def name_of(model: str | os.PathLike) -> str:
    """The last part of what names a model; of its absolute path if it is a file or directory."""
    path = check_path("model", model)
    return Path(os.path.abspath(path) if os.path.exists(path) else path).name


@dataclass(frozen=True)
class ModelFiles:
    """Local paths of a model's options, weights and vocabulary (if any), and the family that reads them."""

    options_file: Path
    weight_file: Path
    vocab_file: Path | None = None
    family: Family = BILM_TF


def find_model(model: str | os.PathLike | None = None, *, options_file: str | os.PathLike | None = None,
               weight_file: str | os.PathLike | None = None) -> ModelFiles:
    """Local files of a model; remote files are downloaded into the cache.

    Either `model`: a name (`model.public`), whose public copies are tried in order, a directory, a ZIP or tar, the URL
    of one, or the URL of a directory where the file system can list one (`hf://owner/repository`, `s3://...`); or both
    `options_file` and `weight_file`, paths or URLs. A directory or archive has `*options.json` and one file `*.hdf5`,
    `*.h5` or `*.safetensors`, or bio_embeddings' `options_file` and `weights_file`; a model of ELMoForManyLangs has
    `config.json` and `encoder.pkl` instead; AllenNLP's `model.tar.gz` has `fta/*options_file` and `weights.th`, from
    which the model is written into the cache. Raises `FileNotFoundError` or `ConfigurationError`, which say what is
    missing, or how to use a file that is not a model, and `UnavailableError` with a line for each address of a name.
    """
    if model is None:
        return _two_files(options_file=options_file, weight_file=weight_file)
    if options_file is not None or weight_file is not None:
        raise ConfigurationError("model: expected either model or options_file and weight_file, got both")
    name = check_path("model", model)
    if name == DEFAULT_MODEL:
        return _in_directory(BUNDLED_DIRECTORY)
    if copies := public_copies(name):
        options, *weights = fetch_any(f"model {name!r}", copies)
        return ModelFiles(options, *weights) if weights else _in_directory(_unpacked(options))
    path = _fetched(name) if is_url(name) else Path(name)
    if path.is_dir():
        return _in_directory(path)
    if path.is_file() and path.suffix not in _VECTORS and is_archive(path):
        return _in_directory(_unpacked(path))
    if path.exists():
        raise ConfigurationError(f"model: expected a directory, ZIP or tar with {_OPTIONS} and {_WEIGHTS}, got {path}, "
                                 f"which is {_what_is(path)}")
    near = difflib.get_close_matches(name, (DEFAULT_MODEL, *NAMED_MODELS), n=1, cutoff=0.75)
    raise FileNotFoundError(f"model: expected one of {', '.join(MODEL_NAMES)}, a directory, a ZIP or tar, or a URL; "
                            f"found nothing at {path}" + (f"; did you mean {near[0]}?" if near else ""))


def _what_is(path: Path) -> str:
    """Describe a file that is not a model, and say how to pass a part of a model, or how to read vectors."""
    kind = {SAFETENSORS: "a safetensors file", ".json": "a JSON file"}.get(path.suffix)
    has_vectors = path.suffix in _VECTORS
    if is_hdf5(path):
        with open_hdf5(path, "model") as file:
            kind, has_vectors = "an HDF5 file", "RNN_0" not in file
    if has_vectors:
        return "a file of vectors or other arrays; elmo_fast.open_embeddings reads, elmo-fast nearest searches them"
    return f"{kind}: {_TOGETHER}" if kind else "an unknown file or a truncated archive"


def is_name(model: str) -> bool:
    """Whether `find_model` takes the string as the name of a model, or as a URL, rather than as a path."""
    return model == DEFAULT_MODEL or is_url(model) or bool(public_copies(model))


def _two_files(**given: str | os.PathLike | None) -> ModelFiles:
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 1:
        raise ConfigurationError(f"{missing[0]}: expected a path or URL, got None; {_TOGETHER}")
    checked = {name: check_path(name, value, ConfigurationError) for name, value in given.items()}
    options, weights = (Path(check_file(name, fetch(value))) for name, value in checked.items())
    family = family_of([weights.name])
    if is_hdf5(options):
        raise ConfigurationError(f"options_file {options}: expected JSON, got HDF5: options_file is the first of the "
                                 "two, weight_file the second")
    return _readable(ModelFiles(options, weights, vocabulary_in(weights.parent), family))


def _fetched(url: str) -> Path:
    """Download the file, or the model files of the directory, at a URL, the options last; returns the local path."""
    folder = cache_path(url.rstrip("/"))
    stored = _names(folder) if folder.is_dir() else []
    if any(map(family_of(stored).is_options, stored)):
        return folder
    names = _remote_model_files(url)
    for name in sorted(names, key=family_of(names).is_options):
        fetch(f"{url.rstrip('/')}/{name}")
    return folder if names else fetch(url)


def _remote_model_files(url: str) -> list[str]:
    """Names of the model files in a remote directory; empty if the URL is not a directory, or cannot be a directory."""
    if "::" in url or url.startswith(("http://", "https://")) or url.endswith(".zip"):
        return []
    try:
        import fsspec

        system, path = fsspec.url_to_fs(url)
        entries = system.ls(path, detail=True) if system.isdir(path) else []
    except ImportError as error:
        name = "hub" if url.startswith("hf://") else "remote" if error.name == "fsspec" else ""
        remedy = f": {install_line(name)}" if name else ""  # fsspec names the packages of other file systems
        raise ImportError(f"reading {url} needs a package that is missing ({error}){remedy}") from error
    except Exception as error:
        raise OSError(f"model: {url} cannot be listed ({type(error).__name__}: {error})") from error
    names = [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "file"]
    model_files = list(filter(family_of(names).is_file, names))
    if entries and not model_files:
        raise ConfigurationError(f"model {url}: expected {_OPTIONS} and {_WEIGHTS}, found "
                                 f"{', '.join(sorted(names)[:8])[:300]}")
    return model_files


def _in_directory(directory: Path) -> ModelFiles:
    names = _names(directory)
    family = family_of(names)
    options = _only(directory, family, _OPTIONS, list(filter(family.is_options, names)))
    weights = _only(directory, family, _WEIGHTS, list(filter(family.is_weights, names)))
    return _readable(ModelFiles(options, weights, vocabulary_in(directory, family), family))


def _readable(files: ModelFiles) -> ModelFiles:
    """The files, or for AllenNLP's those of the model that is made of them in the cache, once for each version."""
    if files.family is not ALLENNLP:
        return files
    sources = files.options_file, files.weight_file
    return _in_directory(_stored(functools.partial(_convert, *sources), *sources))


def _convert(options_file: Path, weight_file: Path, folder: Path, name: str = "model") -> None:
    folder.mkdir(exist_ok=True)
    ALLENNLP.implementation.convert(options_file, weight_file, folder, name)


def vocabulary_in(directory: Path, family: Family = BILM_TF) -> Path | None:
    """The vocabulary file in a model's directory, or None."""
    return next((directory / name for name in family.vocabularies if (directory / name).is_file()), None)


def _only(directory: Path, family: Family, wanted: str, names: list[str]) -> Path:
    preferred = [name for name in names if name in family.preferred]
    candidates = preferred if len(preferred) == 1 else names
    if len(candidates) != 1:
        raise ConfigurationError(f"model {directory}: expected one file {wanted}, "
                                 f"found {', '.join(candidates)[:300] or 'none'}"
                                 f"{'' if candidates else _remedy(directory)}")
    return directory / candidates[0]


def _remedy(directory: Path) -> str:
    """How to make a model from a directory without a model, if it looks like a training run."""
    names = {path.name for path in directory.iterdir()}
    if "weights.th" in names:
        return ("; give model.tar.gz, or elmo-fast export --from-module weights.th with the --options-file of the "
                "ELMo model in it")
    if any(name.endswith(".index") for name in names):
        return "; elmo-fast import-tf makes a training run of TensorFlow checkpoints, elmo-fast export a model of it"
    if names & {"checkpoints", _OPTIONS} or any(name.endswith(".pt") for name in names):
        return "; elmo-fast export makes a model of a training run"
    return ""


def _names(directory: Path) -> list[str]:
    """Names of the files in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir() if not path.is_dir())


def _unpacked(archive: Path) -> Path:
    """Directory with the model files of an archive, unpacked into the cache once for each version of the archive."""
    return _stored(functools.partial(_unpack, archive), archive)


def _stored(write: Callable[[Path], None], *sources: Path) -> Path:
    """A directory in the cache that `write` has filled for this version of some files.

    A copy keeps the time and often the size of an earlier version, but neither the inode nor the time of change.
    """
    states = [(path.resolve(), path.stat()) for path in sources]
    key = ":".join(f"{path}:{state.st_size}:{state.st_mtime_ns}:{state.st_ino}:{state.st_ctime_ns}"
                   for path, state in states)
    name = f"{sources[-1].stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    target = cache_directory() / "unpacked" / name
    store_once(target, write)
    return target


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    expected = "a complete ZIP or tar file without a password, got one that cannot be unpacked"
    with parsing(f"model {archive}", expected), open_archive(archive) as members:
        wanted: dict[str, Member] = {}
        names = [re.split(r"[/\\]", member.path)[-1] for member in members]  # no path leads out of `folder`
        family = family_of(names)
        for name, member in zip(names, members):
            if family.is_file(name) and wanted.setdefault(name, member) is not member:
                raise ConfigurationError(f"model {archive}: expected one model inside, "
                                         f"found both {wanted[name].path:.120} and {member.path:.120}")
        if not (any(map(family.is_options, wanted)) and any(map(family.is_weights, wanted))):
            raise ConfigurationError(f"model {archive}: expected {_OPTIONS} and {_WEIGHTS} inside, "
                                     f"found {_listed([member.path for member in members])[:300]}")
        check_unpacked(f"model {archive}", sum(member.size for member in wanted.values()), archive.stat().st_size)
        for name, member in wanted.items():
            # `source` ends after `member.size` bytes.
            with member.open() as source, DeferredErrorFile(folder / name, folder) as copy:
                interruptible(shutil.copyfileobj)(source, copy, _BLOCK)
    if family is ALLENNLP:
        options = folder / _only(archive, family, "*options_file", list(filter(family.is_options, wanted))).name
        _convert(options, folder / "weights.th", folder, f"model {archive}:")
        for name in wanted.keys() - {_OPTIONS}:
            (folder / name).unlink()


def _listed(paths: list[str]) -> str:
    """The first members of an archive that is not a model, and what to do with a PyTorch checkpoint."""
    remedy = ""
    if any(path.endswith("/data.pkl") for path in paths):
        remedy = "; this is a PyTorch checkpoint: elmo-fast export makes a model of a training run"
    if any(path.endswith("weights.th") for path in paths):
        remedy = ("; AllenNLP's archive lacks the options, since 1.0: elmo-fast export OUT --from-module weights.th "
                  "--options-file options.json makes a model of its weights and the options that config.json names")
    return (", ".join(sorted(paths)[:8]) or "nothing") + remedy
