"""`allennlp.common.file_utils`: local files for paths and URLs."""

import os

from elmo_fast.arguments import check_path
from elmo_fast.files.downloads import fetch

__all__ = ["cached_path"]


def cached_path(url_or_filename: str | os.PathLike) -> str:
    """Return the local path of a file or URL; a URL is downloaded once, into `ELMO_FAST_CACHE`.

    `FileNotFoundError` if the path does not exist. The variable replaces AllenNLP's argument `cache_dir`.
    """
    path = fetch(check_path("url_or_filename", url_or_filename))
    if not path.exists():
        raise FileNotFoundError(f"url_or_filename: expected a file or URL, found nothing at {path}")
    return str(path)
