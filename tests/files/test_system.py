"""Where there is no POSIX: a simulated Windows (`tests/support/windows.py`), the package in it, and fallbacks."""

import os
import socket
import sys

import pytest

from elmo_fast import ConfigurationError, environment, random_weights
from elmo_fast.files.atomic import to_disk
from elmo_fast.model import weights
from elmo_fast.testing import options
from tests.support import windows
from tests.support.files import kill, names, write_model

REFUSALS = """
import errno, mmap, os, signal, subprocess, sys
from pathlib import Path

def refused(error, call, *arguments):
    try:
        call(*arguments)
    except error as raised:
        return getattr(raised, "errno", None)
    raise SystemExit(f"{call} accepted {arguments}")

for name in ("fcntl", "resource", "pwd"):
    refused(ImportError, __import__, name)
for module, names in ((os, ("fork", "sched_getaffinity", "sysconf", "geteuid", "register_at_fork", "O_DIRECTORY")),
                      (signal, ("SIGKILL", "SIGALRM", "SIGHUP", "setitimer"))):
    assert not [name for name in names if hasattr(module, name)]
Path("a").write_text("a"), Path("b").write_text("b"), Path("d").mkdir(), Path("d/c").write_text("c"), os.link("a", "l")
refused(FileExistsError, os.rename, "a", "b")
refused(FileExistsError, Path("a").rename, "b")
refused(PermissionError, os.replace, "d", "d")
refused(PermissionError, os.open, "d", os.O_RDONLY)
refused(PermissionError, open, "d")
assert refused(OSError, open, "a:b", "w") == errno.EINVAL
with open("a", "rb") as file:
    assert refused(OSError, os.fsync, file) == errno.EBADF
with open("a"), open("d/c"):
    for path in ("a", "l", "d/c"):
        for call in (os.unlink, os.remove, Path.unlink):
            refused(PermissionError, call, Path(path))
        refused(PermissionError, os.replace, path, "e")
        refused(PermissionError, os.replace, "b", path)
    refused(PermissionError, os.rename, "d", "e")
with open("a", "rb") as file:
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
refused(PermissionError, os.unlink, "a")
assert refused(OSError, open, "a", "w") == errno.EINVAL
content.close()
code = "import sys; file = open('a'); print(flush=True); sys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    refused(PermissionError, os.unlink, "a")
    child.stdin.close()
signal.signal(signal.SIGTERM, print)
os.unlink("a"), os.replace("b", "l"), os.rename("d", "e")
refused(UnicodeEncodeError, print, "\\u4e2d")
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGTERM)
"""
EMBED = """
import importlib, pkgutil
import elmo_fast

for module in pkgutil.walk_packages(elmo_fast.__path__, "elmo_fast."):
    if not module.name.endswith(("__main__", "_native")):
        try:
            importlib.import_module(module.name)
        except ImportError as error:  # of an optional library
            assert error.name not in ("fcntl", "grp", "pwd", "resource") and "halted" not in str(error), module
elmo = elmo_fast.load("model")
for _ in range(2):  # once in place of nothing, once of a file
    for name, options in (("v.h5", {}), ("p.h5", {"layout": "packed"}), ("v.npz", {}), ("v.npy", {"pool": "mean"})):
        elmo.save_vectors(name, ["a b", "c"], layers="top", **options)
        with elmo_fast.open_embeddings(name) as embeddings:
            assert len(embeddings) == 2 and embeddings[0].any()
opened = elmo_fast.open_embeddings("p.h5")
try:
    elmo.save_vectors("p.h5", ["a b", "c"])
except PermissionError as error:
    print(error)
opened.close()
elmo.save_vectors("p.h5", ["a b", "c"])
for _ in range(2):
    elmo_fast.write_token_table(elmo.bilm, ["a", "b"], "t.h5")
    assert len(elmo_fast.TokenTable.open("t.h5")) == 4
"""
FAILS = """
import gc, os, sys
import elmo_fast
from elmo_fast.embed import run
from elmo_fast.vectors.layouts import arrays, packed

def failing(call):
    def fail(*arguments):
        if "join" in [frame.f_code.co_name for frame in (sys._getframe(1), sys._getframe(2))]:
            raise OSError(28, "No space left on device")
        return call(*arguments)
    return fail

elmo = elmo_fast.load("model")
run.COMMIT_SECONDS = 0
gc.disable()

def save(name, **options):
    elmo.save_vectors(name, ["a b", "c", "d"], layers="top", batch_size=1, **options)
    with elmo_fast.open_embeddings(name) as embeddings:
        assert len(embeddings) == 3

working = arrays.Disk.check, packed._Rows.append
arrays.Disk.check, packed._Rows.append = map(failing, working)
for name, options in (("v.npy", {"pool": "mean"}), ("p.h5", {"layout": "packed"})):
    try:
        save(name, **options)
    except OSError as error:
        print(error)
print(sorted(os.listdir()))
arrays.Disk.check, packed._Rows.append = working
for name, options in (("v.npy", {"pool": "mean"}), ("p.h5", {"layout": "packed"}), ("v.npz", {}), ("v.h5", {})):
    save(name, resume=True, **options)
"""
LOCK = """
import sys
from elmo_fast.files.lock import locked
try:
    with locked("a") as part:
        part.write_text("half")
        print("locked", flush=True)
        sys.stdin.read()
except ValueError as error:
    print(error)
"""


def test_the_simulation_refuses_what_windows_refuses(tmp_path):
    windows.run(tmp_path, "-c", REFUSALS, status=-15)  # SIGTERM is not delivered to the handler
    assert names(tmp_path) == [".processes", "e", "l"]


def test_files_are_written_and_replaced_there(tmp_path):
    write_model(tmp_path / "model")
    before = names(tmp_path)
    out, errors = windows.run(tmp_path, "-c", EMBED)
    assert "expected a file that can be replaced (" in out
    assert out.endswith(f"on Windows, close it in other programs: '{tmp_path / 'p.h5'}'\n") and not errors
    assert set(names(tmp_path)) - set(before) == {".processes", "p.h5", "t.h5", "v.h5", "v.json", "v.npy", "v.npz"}


@pytest.mark.long
def test_a_run_that_fails_over_mapped_segments_removes_its_files_there(tmp_path):
    write_model(tmp_path / "model")
    out, errors = windows.run(tmp_path, "-c", FAILS)
    left = [".processes", "model", "p.h5.part", "v.npy.part"]  # to be resumed
    assert out == 2 * "[Errno 28] No space left on device\n" + f"{left}\n", errors
    assert names(tmp_path) == [".processes", "model", "p.h5", "v.h5", "v.json", "v.npy", "v.npz"]


def test_a_process_there_has_a_lock_until_it_is_killed(tmp_path):
    holder = windows.start(tmp_path, "-c", LOCK)
    assert holder.stdout.readline() == "locked\n", holder.communicate()
    out, _ = windows.run(tmp_path, "-c", LOCK)
    assert out == (f"output {tmp_path / 'a'}: expected no other process to write it, found process {holder.pid} on "
                   f"{socket.gethostname()}, which has locked {tmp_path / 'a.lock'}\n")
    kill(holder)
    (left,) = tmp_path.glob("a.*.part")
    assert names(tmp_path) == [".processes", left.name, "a.lock", "a.lock.db"]
    out, errors = windows.run(tmp_path, "-c", LOCK)
    assert (out, errors, names(tmp_path)) == ("locked\n", "", [".processes"])


def test_what_a_system_does_not_say_is_not_known(monkeypatch):
    assert 1 <= environment.cores() <= os.cpu_count()
    assert environment.memory_size() > 1 << 28 and environment.peak_memory() > 1 << 24
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert (environment.cores(), environment.memory_size(), environment.peak_memory()) == (os.cpu_count(), None, None)
    assert random_weights(options())  # of which nobody knows whether they fit


def test_weights_larger_than_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(weights, "memory_size", lambda: 1 << 10)
    with pytest.raises(ConfigurationError, match="expected a model whose weights fit"):
        random_weights(options())


def test_a_file_and_the_names_of_a_directory_go_to_the_disk(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("a")
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.readlink(f"/proc/self/fd/{number}")),
                                                     fsync(number)))
    to_disk(tmp_path / "a")
    to_disk(tmp_path)
    assert synced == [str(tmp_path / "a"), str(tmp_path)]
