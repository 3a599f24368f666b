"""Where there is no POSIX: a simulated Windows (`tests/support/windows.py`), the package in it, and fallbacks."""

import os
import sys
from pathlib import Path

import pytest

from elmo_fast import ConfigurationError, environment, random_weights
from elmo_fast.files.atomic import to_disk
from elmo_fast.model import weights
from elmo_fast.testing import options
from tests.support import windows
from tests.support.files import kill, names, python, write_model

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
import importlib, pkgutil, sys
import elmo_fast

# They import modules of POSIX, since this simulation is of an installation on POSIX.
sys.modules.update(dict.fromkeys(("datasets", "huggingface_hub", "sentence_transformers", "transformers")))

for module in pkgutil.walk_packages(elmo_fast.__path__, "elmo_fast."):
    if not module.name.endswith(("__main__", "_native")):
        try:
            importlib.import_module(module.name)
        except ImportError as error:  # of an optional library
            assert 'pip install ".[' in str(error) or (
                error.name not in ("fcntl", "grp", "pwd", "resource") and "halted" not in str(error)), module
elmo = elmo_fast.load("model")
for _ in range(2):  # once in place of nothing, once of a file
    for name, options in (("v.h5", {}), ("v.npz", {}), ("v.npy", {"pool": "mean"})):
        elmo.save_vectors(name, ["a b", "c"], layers="top", **options)
        with elmo_fast.open_embeddings(name) as embeddings:
            assert len(embeddings) == 2 and embeddings[0].any()
opened = elmo_fast.open_embeddings("v.h5")
try:
    elmo.save_vectors("v.h5", ["a b", "c"])
except PermissionError as error:
    print(error)
opened.close()
elmo.save_vectors("v.h5", ["a b", "c"])
for _ in range(2):
    elmo_fast.write_token_table(elmo.bilm, ["a", "b"], "t.h5")
    assert len(elmo_fast.TokenTable.open("t.h5")) == 4
"""
FAILS = """
import gc, os, sys
import elmo_fast
from elmo_fast.embed import run
from elmo_fast.vectors.layouts import arrays

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

working = arrays.DeferredErrorFile.check
arrays.DeferredErrorFile.check = failing(working)
try:
    save("v.npy", pool="mean")
except OSError as error:
    print(error)
print(sorted(os.listdir()))
arrays.DeferredErrorFile.check = working
for name, options in (("v.npy", {"pool": "mean"}), ("v.npz", {}), ("v.h5", {})):
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


@pytest.mark.long
def test_files_are_written_and_replaced_there(tmp_path):
    write_model(tmp_path / "model")
    before = names(tmp_path)
    out, errors = windows.run(tmp_path, "-c", EMBED)
    assert "expected a file that can be replaced (" in out
    assert out.endswith(f"on Windows, close it in other programs: '{tmp_path / 'v.h5'}'\n") and not errors
    assert set(names(tmp_path)) - set(before) == {".processes", "t.h5", "v.h5", "v.json", "v.npy", "v.npz"}


@pytest.mark.long
def test_a_run_that_fails_over_mapped_segments_removes_its_files_there(tmp_path):
    write_model(tmp_path / "model")
    out, errors = windows.run(tmp_path, "-c", FAILS)
    left = [".processes", "model", "v.npy.part"]  # to be resumed
    assert out == f"[Errno 28] No space left on device\n{left}\n", errors
    assert names(tmp_path) == [".processes", "model", "v.h5", "v.json", "v.npy", "v.npz"]


def test_a_process_there_has_a_lock_until_it_is_killed(tmp_path):
    holder = windows.start(tmp_path, "-c", LOCK)
    assert holder.stdout.readline() == "locked\n", holder.communicate()
    out, _ = windows.run(tmp_path, "-c", LOCK)
    assert out == (f"output {tmp_path / 'a'}: expected no other process or thread to write it, found one that has "
                   f"locked {tmp_path / 'a.lock'}\n")
    kill(holder)
    (left,) = tmp_path.glob("a.*.part")
    assert names(tmp_path) == [".processes", left.name, "a.lock"]
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


def control_groups(root, mountinfo, cgroup, files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("\n".join(f"32 31 0:29 {line}" for line in mountinfo))
    (root / "proc/self/cgroup").write_text("\n".join(cgroup))
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


V1 = "/ /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
V2 = "/ /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize("mountinfo, cgroup, files, quota", [
    ([V2], ["0::/"], {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
    ([V2], ["0::/a/b"],
     {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 0.5),
    ([V2], ["0::/a"], {"sys/fs/cgroup/a/cpu.max": "400000 100000", "sys/fs/cgroup/cpu.max": "max 100000"}, 4),
    ([V2], ["0::/a"], {"sys/fs/cgroup/cpu.stat": "usage_usec 1"}, None),
    ([V1, V2], ["4:cpu,cpuacct:/a", "0::/"], {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
                                              "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}, 2),
    ([V1], ["4:cpu,cpuacct:/a"], {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                                  "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}, None),
    # inside a container that sees the host's paths
    ([V1.replace("/ ", "/docker/x ", 1)], ["4:cpu,cpuacct:/docker/x"],
     {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000"}, 2),
    ([V2.replace("/ ", "/docker/x ", 1)], ["0::/elsewhere"], {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
    (["/ /proc rw - proc proc rw"], ["4:memory:/a"], {}, None),
])
def test_the_quota_of_control_groups(tmp_path, mountinfo, cgroup, files, quota):
    control_groups(tmp_path, mountinfo, cgroup, files)
    assert environment.cpu_quota(tmp_path) == quota


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert environment.cpu_quota(tmp_path) is None


@pytest.mark.parametrize("quota, processors", [(0.5, 1), (1.9, 1), (2.0, 2), (64.0, 4), (None, 4)])
def test_processors_are_the_least_of_affinity_and_quota(monkeypatch, quota, processors):
    monkeypatch.setattr(environment, "affinity", lambda: 4)
    monkeypatch.setattr(environment, "_quota_at_start", lambda: quota)
    assert environment.cores() == processors


CHOSEN = """
import sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
import torch
torch.set_num_threads(2)
from elmo_fast.ops import cpu, doctor
print(cpu.threads(), *(line for line in doctor.report() if line.startswith("threads")))
"""


def test_in_a_group_with_the_time_of_one_processor_one_thread_is_chosen():
    group = Path("/sys/fs/cgroup/cpu" if Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists() else "/sys/fs/cgroup",
                 f"elmo-fast-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text("100000")
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text("100000 100000")
        else:
            pytest.skip("the control group has no quota of time")
        done = python("-c", CHOSEN, group)
    finally:
        group.rmdir()
    assert done.stdout.split()[0] == "1" and "a quota of 1\n" in done.stdout


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
