"""Download the files of URLs once into a cache."""

import functools
import hashlib
import os
import re
import shutil
import urllib.parse
from pathlib import Path

from tqdm import tqdm

from elmo_fast.arguments import check_path
from elmo_fast.environment import cache_directory, install_line
from elmo_fast.files.atomic import store_once
from elmo_fast.files.stops import interruptible

_BLOCK = 1 << 20
_FORBIDDEN = r'[<>:"|?*\\%]|[. ]$' if os.name == "nt" else ""  # in file names on Windows


def fetch(location: str | os.PathLike) -> Path:
    """Local path of a path or URL. A URL is downloaded once into the cache, atomically.

    `FileNotFoundError` where the server has no such file; any other failure is an `OSError` that states the cause.
    """
    name = check_path("location", location)
    if not is_url(name):
        return Path(name)
    target = cache_path(name)
    remedy = f"Fetched by other means, it belongs at {target}"
    try:
        store_once(target, functools.partial(interruptible(_copy), name, target.name))
    except ImportError as error:
        raise ImportError(f"fetching {name} needs a package that is not there ({error}): "
                          f"{install_line('remote')}. {remedy}") from error
    except Exception as error:
        while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
            error = error.__cause__  # fsspec calls every failed connection FileNotFoundError
        status = getattr(error, "status", None)
        kind = FileNotFoundError if status == 404 or isinstance(error, FileNotFoundError) else OSError
        raise kind(f"{name}: the download failed ({_reason(error, name)}); nothing was stored. {remedy}") from error
    return target


def _reason(error: BaseException, url: str) -> str:
    """Why a download failed: what the server answered, if it answered, else the error."""
    text, status = str(error), getattr(error, "status", None)
    if status is not None:
        return f"the server answered {status} {getattr(error, 'message', '')}".rstrip()
    if isinstance(error, FileNotFoundError) and text == url and url.startswith(("http://", "https://")):
        return "the server answered 404 Not Found"  # for which fsspec raises an error with the URL alone
    return f"{type(error).__name__}: {text}" if text and text != url else type(error).__name__


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
    """Whether a name, as `local_path` gives it, is a URL, also one in another (`zip://a::https://b`)."""
    return "://" in name or "::" in name


def _copy(url: str, name: str, path: Path) -> None:
    import fsspec

    # With trust_env aiohttp heeds HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
    web = {kind: {"client_kwargs": {"trust_env": True}} for kind in ("http", "https") if f"{kind}://" in url}
    with fsspec.open(url, "rb", **web) as source, open(path, "wb") as copy:
        expected = getattr(source, "size", None)
        with tqdm.wrapattr(source, "read", expected, desc=name, leave=False, disable=None) as watched:
            shutil.copyfileobj(watched, copy, _BLOCK)
        if expected not in (None, copy.tell()):
            raise OSError(f"{url}: expected {expected} bytes, got {copy.tell()}")
