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
    """`files` have the bytes of the model's own files."""
    assert [files.options_file.read_bytes(), files.weight_file.read_bytes()] == [p.read_bytes() for p in paths(model)]
    assert (files.vocab_file and files.vocab_file.read_bytes()) == vocabulary


def left(folder, pattern="*"):
    """Names of the files below a folder."""
    return [path.name for path in folder.rglob(pattern) if path.is_file()]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a directory once `go` is set; lists paths in `seen`, and states a byte too many for paths in `longer`."""

    def __init__(self, *arguments, seen, longer, go, **options):
        self.seen, self.longer, self.go = seen, longer, go
        super().__init__(*arguments, **options)

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.seen.append(self.path)
        if self.go:
            self.go.wait(60)
        super().do_GET()

    def send_header(self, name, value):
        too_many = name == "Content-Length" and self.path in self.longer
        super().send_header(name, str(int(value) + 1) if too_many else value)


@contextlib.contextmanager
def served(directory, seen=None, longer=(), go=None):
    """The URL of a web server for a directory, on this machine."""
    handler = functools.partial(_Handler, directory=directory, seen=[] if seen is None else seen, longer=longer, go=go)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
