"""Download the files of URLs once into a cache."""

import functools
import hashlib
import logging
import os
import re
import shutil
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from elmo_fast.arguments import check_path
from elmo_fast.environment import cache_directory, install_line
from elmo_fast.errors import MissingModelError, UnavailableError
from elmo_fast.files.atomic import store_once
from elmo_fast.files.stops import interruptible

_BLOCK = 1 << 20
_SILENCE = 60.0  # seconds after which a server that sends nothing is given up
_FORBIDDEN = r'[<>:"|?*\\%]|[. ]$' if os.name == "nt" else ""  # in file names on Windows

_logger = logging.getLogger(__name__)


class RemoteFile(NamedTuple):
    """The URL of a file, and its size in bytes and SHA-256 in hexadecimal digits, None where they are not known."""

    url: str
    size: int | None = None
    sha256: str | None = None


def fetch(location: str | os.PathLike) -> Path:
    """Local path of a path or URL. A URL is downloaded once into the cache, atomically.

    `FileNotFoundError` where the server has no such file; any other failure is an `OSError` that states the cause.
    """
    name = check_path("location", location)
    return _stored(RemoteFile(name)) if is_url(name) else Path(name)


def fetch_any(what: str, copies: Sequence[Sequence[RemoteFile]]) -> list[Path]:
    """Local paths of the files of a copy: the first copy in the cache, else the first that can be downloaded.

    `UnavailableError`, which calls the copies `what`, has a line for every address with its answer.
    """
    in_cache = [copy for copy in copies if all(cache_path(file.url).exists() for file in copy)]
    answers: dict[str, str | OSError] = {}
    for copy in in_cache[:1] or copies:
        for file in copy:
            try:
                answers[file.url] = f"in the cache, {_stored(file)}"
            except OSError as error:
                answers[file.url] = error
                _logger.info("%s: %s", what, _answer(file.url, error))
                break
            except ImportError as error:
                urls = "".join(f", and {member.url} at {cache_path(member.url)}" for member in copy if member != file)
                raise ImportError(f"{what}: {error}{urls}") from error
        else:
            failures = [_answer(url, answer) for url, answer in answers.items() if isinstance(answer, OSError)]
            if failures:
                _logger.warning("%s: downloaded from %s; before, %s", what, copy[0].url, "; ".join(failures))
            return [cache_path(file.url) for file in copy]
    raise _unavailable(what, copies, answers)


def _unavailable(what: str, copies: Sequence[Sequence[RemoteFile]],
                 answers: dict[str, str | OSError]) -> UnavailableError:
    urls = [file.url for copy in copies for file in copy]
    lines = [f"{what}: none of its {len(copies)} public copies can be had",
             *(_answer(url, answers.get(url, "not asked, because the options are missing")) for url in urls),
             ('Got from elsewhere, it is loaded by its path: load("model.zip"), or load("directory") of options.json '
              "and weights.hdf5; in the command as MODEL or --model"),
             f"Stored as {' and '.join(str(cache_path(file.url)) for file in copies[0])}, it is found by its name"]
    failures = [answer for answer in answers.values() if isinstance(answer, OSError)]
    missing = all(isinstance(failure, FileNotFoundError) for failure in failures)
    return (MissingModelError if missing else UnavailableError)("\n  ".join(lines))


def _answer(url: str, answer: str | OSError) -> str:
    return f"{url}: {' '.join(str(getattr(answer, 'reason', answer)).split())}"


def _stored(file: RemoteFile) -> Path:
    """The path in the cache of a file, downloaded and checked if it is not there."""
    target = cache_path(file.url)
    remedy = f"Fetched by other means, it belongs at {target}"
    try:
        store_once(target, functools.partial(interruptible(_download), file, target.name))
    except ImportError as error:
        raise ImportError(f"fetching {file.url} needs a package that is not there ({error}): "
                          f"{install_line('remote')}. {remedy}") from error
    except Exception as error:
        response = getattr(error, "response", None)  # of the errors that requests raises for a status
        if response is None:
            reason = answer = f"{type(error).__name__}: {error}"
        else:
            answer = f"{response.status_code} {getattr(response, 'reason', '')}".rstrip()
            reason = f"the server answered {answer}"
        is_absent = isinstance(error, FileNotFoundError) or getattr(response, "status_code", None) == 404
        failure = (FileNotFoundError if is_absent else OSError)(
            f"{file.url}: the download failed ({reason}); nothing was stored. {remedy}")
        failure.reason = answer
        raise failure from error
    return target


def cache_path(url: str) -> Path:
    """The path of a URL's file in the cache: folders for its scheme and host, then its path.

    A user, a query and a fragment may be secret, so the names contain hashes of them.
    """
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    pieces = [parts.scheme, host + _hashed(user), *parts.path.removeprefix("/").split("/")]
    if not parts.path:
        pieces.pop()
    pieces[-1] += _hashed(parts.query + (parts.fragment and f"#{parts.fragment}"))
    if _FORBIDDEN:
        pieces = [re.sub(_FORBIDDEN, lambda match: f"%{ord(match[0]):02X}", piece) for piece in pieces]
    return cache_directory().joinpath(*(piece if piece.strip(".") else f"%{piece}" for piece in pieces))


def _hashed(text: str) -> str:
    return text and "." + hashlib.sha256(text.encode()).hexdigest()[:12]


def is_url(name: str) -> bool:
    """Whether a name, as `local_path` gives it, is a URL, also a URL in another (`zip://a::https://b`)."""
    return "://" in name or "::" in name


def _download(file: RemoteFile, name: str, path: Path) -> None:
    """Write a remote file to `path`; `OSError` if its size or SHA-256 differs from a known one."""
    if file.url.startswith(("http://", "https://")):
        _download_web(file.url, name, path)
    else:
        _copy(file.url, path)
    size = path.stat().st_size
    if file.size not in (None, size):
        raise OSError(f"{file.url}: expected {file.size} bytes of this file, got {size}")
    if file.sha256 is not None:
        import pooch

        if (digest := pooch.file_hash(path)) != file.sha256.lower():
            raise OSError(f"{file.url}: expected the SHA-256 {file.sha256.lower()}, got {digest}")


def _download_web(url: str, name: str, path: Path) -> None:
    """Download over HTTP, through the proxy that the environment names, with a bar on a terminal.

    A download may take hours, as long as bytes arrive. data.bioembeddings.com answers 406 to clients without a name.
    """
    import pooch
    from tqdm import tqdm

    # The bar needs a total before the server sends one, because pooch asks for the bar's truth value.
    with tqdm(desc=name, total=1, unit="B", unit_scale=True, leave=False, disable=None) as bar:
        download = pooch.HTTPDownloader(bar, _BLOCK, headers={"User-Agent": "elmo-fast"}, timeout=_SILENCE)
        download(url, path, None)


def _copy(url: str, path: Path) -> None:
    """Copy a file of another file system (`hf://`, `s3://`)."""
    import fsspec

    with fsspec.open(url, "rb") as source, open(path, "wb") as copy:
        expected = getattr(source, "size", None)
        shutil.copyfileobj(source, copy, _BLOCK)
        if expected not in (None, copy.tell()):
            raise OSError(f"{url}: expected {expected} bytes, got {copy.tell()}")
