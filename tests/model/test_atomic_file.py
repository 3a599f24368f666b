import errno
import os
import signal

import numpy as np
import pytest

from elmo_fast.model import atomic_file
from elmo_fast.model.atomic_file import atomic_hdf5, atomic_path, check_target
from elmo_fast.stops import stoppable
from tests.support.files import names

FULL = OSError(errno.ENOSPC, "No space left on device")


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


def test_where_nothing_can_be_written_is_refused(tmp_path):
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


@pytest.mark.parametrize("failure", [FULL, KeyboardInterrupt()])
@pytest.mark.parametrize("good_writes", [0, 1, 5, 20, 60])
def test_a_failed_write_at_any_time_is_raised_at_the_end(tmp_path, monkeypatch, failure, good_writes):
    class FailingDisk(atomic_file.Disk):
        writes = 0

        def write(self, values):
            self.writes += 1
            if self.writes > good_writes:
                self.failure = failure
            return super().write(values)

    monkeypatch.setattr(atomic_file, "Disk", FailingDisk)
    (tmp_path / "a").write_text("old")
    with pytest.raises(type(failure)), atomic_hdf5(tmp_path / "a") as (file, _):
        for number in range(100):
            file[str(number)] = np.ones(100)
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_long_body_can_ask(tmp_path):
    with pytest.raises(OSError, match="No space left on device: '.*/a'$"), atomic_hdf5(tmp_path / "a") as (_, disk):
        disk.check()
        disk.failure = FULL
        disk.check()
        pytest.fail("nothing was raised")
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_wait_for_the_end_of_the_block(number):
    steps = []

    def handler(*_):
        steps.append("handler")
        raise KeyboardInterrupt

    before = signal.signal(number, handler)
    try:
        with pytest.raises(KeyboardInterrupt), stoppable():
            signal.raise_signal(number)
            steps.append("block")
        assert steps == ["block", "handler"] and signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
