"""Vectors from `elmo-fast serve`."""

import argparse
import io
import json
import os
import urllib.request

import numpy as np


def embed(url: str, texts: list[str], **wanted) -> list[np.ndarray]:
    """Vectors of texts; `wanted` are `layers`, `pool` and `dtype`. Raises `HTTPError`, whose body has the reason."""
    headers = {"Content-Type": "application/json", "Accept": "application/octet-stream",
               "Authorization": f"Bearer {os.environ.get('ELMO_FAST_KEY', '')}"}
    request = urllib.request.Request(f"{url}/v1/embed", json.dumps({"texts": texts, **wanted}).encode(), headers)
    with urllib.request.urlopen(request) as answer, np.load(io.BytesIO(answer.read())) as arrays:
        return [arrays[str(number)] for number in range(len(texts))]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("url", help="where the server listens, such as http://127.0.0.1:8000")
parser.add_argument("text", nargs="+")
arguments = parser.parse_args()
for vectors in embed(arguments.url, arguments.text):
    print(vectors.shape, f"{vectors.mean():+.6f}")
