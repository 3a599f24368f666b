"""Models as archives and on a web server, for the tests of where models come from."""

import contextlib
import functools
import http.server
import threading
import zipfile

from tests.support.files import paths


def pack(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def contents(model, folder="", **more):
    options, weights = (path.read_bytes() for path in paths(model))
    return {f"{folder}options.json": options, f"{folder}model.hdf5": weights, **more}


def assert_is(files, model, vocabulary=None):
    """The files found hold what the model's own files hold."""
    assert [files.options_file.read_bytes(), files.weight_file.read_bytes()] == [p.read_bytes() for p in paths(model)]
    assert (files.vocab_file and files.vocab_file.read_bytes()) == vocabulary


def left(folder, pattern="*"):
    """Names of the files below a folder."""
    return [path.name for path in folder.rglob(pattern) if path.is_file()]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a directory: paths are noted in `seen`, and the sizes of those in `longer` are a byte too large."""

    def __init__(self, *arguments, seen, longer, **options):
        self.seen, self.longer = seen, longer
        super().__init__(*arguments, **options)

    def log_message(self, *_):
        pass

    def send_head(self):
        self.seen.append(self.path)
        return super().send_head()

    def send_header(self, name, value):
        too_many = name == "Content-Length" and self.path in self.longer
        super().send_header(name, str(int(value) + 1) if too_many else value)


@contextlib.contextmanager
def served(directory, seen=None, longer=()):
    """The URL of a web server for a directory, on this machine."""
    handler = functools.partial(_Handler, directory=directory, seen=[] if seen is None else seen, longer=longer)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
