import os

import pytest
from tests.support.files import names

from elmo_fast.model.atomic_file import check_target, atomic_path


def test_a_file_takes_its_name_at_the_end(tmp_path):
    with atomic_path(tmp_path / "a") as part:
        part.write_text("new")
        assert not (tmp_path / "a").exists()
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_keeps_the_old_file(tmp_path, error):
    (tmp_path / "a").write_text("old")
    with pytest.raises(error):
        with atomic_path(tmp_path / "a") as part:
            part.write_text("new")
            raise error
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_failed_directory_is_removed_whole(tmp_path):
    with pytest.raises(ValueError):
        with atomic_path(tmp_path / "a") as part:
            (part / "b").mkdir(parents=True)
            raise ValueError
    assert names(tmp_path) == []


def test_of_two_directories_the_first_stays(tmp_path):
    with atomic_path(tmp_path / "a") as first, atomic_path(tmp_path / "a") as second:
        for part in (first, second):
            part.mkdir()
        (second / "second").touch()
        (first / "first").touch()
    assert names(tmp_path) == ["a"] and names(tmp_path / "a") == ["second"]


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    with atomic_path(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "file").read_text() == "new"
    assert names(tmp_path / "far") == ["file"]


def test_a_device_or_pipe_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path / "pipe"):
        with pytest.raises(PermissionError, match="^output: expected an ordinary file"):
            check_target(path, "output")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="^output: expected a path that can be written"):
        check_target(tmp_path / "closed" / "a", "output")
