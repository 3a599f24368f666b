"""Atomic files and directories, and the lock on an output: refused writers and removed leftovers."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.files.atomic import atomic_path, check_target
from elmo_fast.files.hdf5 import atomic_hdf5
from elmo_fast.files.lock import locked
from tests.support.files import full_disk, kill, names, run, start_until, until, write_model


def test_a_file_takes_its_name_at_the_end(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")  # a symbolic link is followed
    for path, file in ((tmp_path / "a", tmp_path / "a"), (tmp_path / "link", tmp_path / "far" / "file")):
        with atomic_path(path) as part:
            part.write_text("new")
            assert not file.exists()
        assert file.read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["a", "far", "link"] and names(tmp_path / "far") == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_keeps_the_old_file(tmp_path, error):
    (tmp_path / "a").write_text("old")
    with pytest.raises(error), atomic_path(tmp_path / "a") as part:
        part.write_text("new")
        raise error
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_targets_that_cannot_be_written_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path / "pipe"):
        with pytest.raises(PermissionError, match="^output: expected an ordinary file"):
            check_target(path, "output")
    for path, error, message in (("", FileNotFoundError, "expected a file's path, got an empty one"),
                                 *((tmp_path / path, FileNotFoundError, "expected an existing directory")
                                   for path in ("no/a", "pipe/a")),
                                 (f"{tmp_path}/new/", FileNotFoundError, "expected an existing directory"),
                                 (tmp_path, IsADirectoryError, "expected a file's path, got the directory")):
        with pytest.raises(error, match=f"^output: {message}"):
            check_target(path, "output")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="^output: expected a path that can be written"):
        check_target(tmp_path / "closed" / "a", "output")


@pytest.mark.parametrize("size", [0, 100, 3000, 10_000, 40_000])
def test_a_full_disk_at_any_time_keeps_the_old_file(tmp_path, size):
    (tmp_path / "a").write_text("old")
    with (full_disk(size), pytest.raises(OSError, match="File too large: '.*/a'$"),
          atomic_hdf5(tmp_path / "a") as (file, _)):
        for number in range(100):
            file[str(number)] = np.ones(100)
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


# ---- locks ----

HOLDER = """
import os, signal, sys, time
from elmo_fast.files.lock import locked
with locked({target!r}) as part:
    part.write_text("half")
    if {forks}:
        os.fork() or time.sleep(60)
    print("locked", flush=True)
    time.sleep(60)
"""


def hold(target, forks=False):
    return start_until("locked", HOLDER.format(target=str(target), forks=forks))


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    target = tmp_path / "a"
    target.write_text("old")
    process = hold(target)
    message = (f"^output {target}: expected no other process or thread to write it, found one that has locked "
               f"{target}.lock$")
    for writer in (atomic_path, atomic_hdf5, locked):
        with pytest.raises(ConfigurationError, match=message), writer(target):
            pytest.fail("two writers")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ConfigurationError, match=message), atomic_path(tmp_path / "link"):
        pytest.fail("two writers")
    (leftover,) = tmp_path.glob("a.*.part")
    (tmp_path / "a.mine.part").write_text("of the user")
    kill(process)
    assert names(tmp_path) == sorted(["a", "a.lock", "a.mine.part", leftover.name, "link"])
    with atomic_path(target) as part:
        part.write_text("new")
        assert not leftover.exists()
    assert names(tmp_path) == ["a", "a.mine.part", "link"] and target.read_text() == "new"


@pytest.mark.parametrize("name, arguments", [
    ("out.h5", ["embed", "in.txt", "out.h5", "--all", "--quiet", "--model", "model"]),
    ("out.h5", ["cache", "vocab.txt", "out.h5", "--quiet", "--model", "model"]),
    ("out.h5", ["seqvec", "-i", "in.fasta", "-o", "out.h5", "--model", "model", "--cpu", "--silent"]),
    ("words.txt", ["vocab", "in.txt", "words.txt", "--processes", 1]), ("out", ["export", "run", "out"]),
    ("out", ["import-tf", "model.ckpt-1", "out"])], ids=lambda value: value[0] if isinstance(value, list) else "")
def test_a_second_command_on_an_output_is_refused(tmp_path, capsys, monkeypatch, name, arguments):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    (tmp_path / "in.txt").write_text("a b\n")
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    (tmp_path / "in.fasta").write_text(">p|1\nMK\n")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for file in ("run/checkpoints/step-00000001.pt", "model.ckpt-1.index"):  # present, never read
        (tmp_path / file).touch()
    process = hold(tmp_path / name)
    before = names(tmp_path)
    status, _, errors = run(capsys, *arguments)
    kill(process)
    assert (status, errors.count("\n")) == (2, 1)
    assert f"output {tmp_path / name}: expected no other process or thread to write it, found one that" in errors
    assert names(tmp_path) == before


def test_a_forked_worker_does_not_keep_the_lock_of_a_killed_process(tmp_path):
    process = hold(tmp_path / "a", forks=True)
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)

    def is_free():
        try:
            with locked(tmp_path / "a"):
                return names(tmp_path) == ["a.lock"]
        except ConfigurationError:
            return False

    until(is_free, 20)  # the child first has to close the file
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("name", ["a.0123abcd.part", "a.part", "b.elmo-0123abcd.part", "a.elmo-0123abcd.part.old"])
def test_files_of_other_programs_with_similar_names_stay(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with atomic_path(tmp_path / "a") as part:
        part.write_text("new")
    assert names(tmp_path) == sorted(["a", name]) and (tmp_path / name).read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_partial_file_of_another_user_stays(tmp_path):
    (tmp_path / "a.elmo-0123abcd.part").touch()
    os.chown(tmp_path / "a.elmo-0123abcd.part", 12345, 12345)
    with atomic_path(tmp_path / "a") as part:
        part.write_text("new")
    assert names(tmp_path) == ["a", "a.elmo-0123abcd.part"]
