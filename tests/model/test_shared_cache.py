"""The cache of models, shared by processes: the first process fetches and unpacks a model for all."""

import contextlib
import os
import shutil
import signal
import threading

import pytest

from elmo_fast.weights.sources import cache_path, fetch, find_model
from tests.support.files import kill, names, start, start_until, until

pytestmark = pytest.mark.usefixtures("cache")
HOLDER = """
import time
from pathlib import Path
from elmo_fast.files.atomic import store_once

def make(part):
    {write}
    print("writing", flush=True)
    time.sleep(60)

store_once(Path({target!r}), make)
"""
FIND = "from elmo_fast.weights.sources import fetch, find_model\nprint({call}, flush=True)"


@pytest.fixture
def slow_web(tmp_path, serve):
    """A server whose answers wait for `go`: its URL, `go`, and the requested paths."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "weights.hdf5").write_bytes(b"weights")
    go, requests = threading.Event(), []
    return f"{serve(tmp_path / 'web', requests, go=go)}/weights.hdf5", go, requests


def hold(target, write="part.write_bytes(b'half')"):
    target.parent.mkdir(parents=True, exist_ok=True)
    return start_until("writing", HOLDER.format(target=str(target), write=write))


def waits_for(target):
    return f"waiting for another process or thread, which writes {target}\n"


def test_a_second_process_waits_and_uses_the_copy(slow_web, cache):
    url, go, requests = slow_web
    first = start(FIND.format(call=f"fetch({url!r})"))
    until(lambda: requests)
    second = start(FIND.format(call=f"fetch({url!r})"))
    assert second.stderr.readline().endswith(waits_for(cache_path(url)))
    go.set()
    for process in (first, second):
        out, errors = process.communicate(timeout=60)
        assert out == f"{cache_path(url)}\n" and "waiting" not in errors
    assert requests == ["/weights.hdf5"] and cache_path(url).read_bytes() == b"weights"
    assert names(cache_path(url).parent) == ["weights.hdf5"]


def test_partial_files_of_a_killed_process_are_removed(slow_web, model, tmp_path):
    url, go, _ = slow_web
    go.set()
    archive = shutil.make_archive(str(tmp_path / "m"), "zip", model)
    unpacked = find_model(archive).options_file.parent
    whole = names(unpacked)
    shutil.rmtree(unpacked)
    for target, write, call in ((cache_path(url), "part.write_bytes(b'half')", f"fetch({url!r})"),
                                (unpacked, "(part.mkdir(), (part / 'options.json').touch())",
                                 f"find_model({archive!r}).options_file")):
        first = hold(target, write)
        second = start(FIND.format(call=call))
        assert second.stderr.readline().endswith(waits_for(target))
        assert len(names(target.parent)) == 2
        kill(first)
        out, errors = second.communicate(timeout=60)
        assert out.startswith(str(target)) and not errors
        assert names(target.parent) == [target.name]
    assert names(unpacked) == whole


def test_a_process_that_waits_can_be_stopped(model, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "m"), "zip", model)
    unpacked = find_model(archive).options_file.parent
    shutil.rmtree(unpacked)
    first = hold(unpacked)
    for number, arguments in ((signal.SIGINT, ["info", archive]), (signal.SIGTERM, ["info", archive])):
        second = start(arguments)
        assert second.stderr.readline() == f"WARNING: {waits_for(unpacked)}"
        second.send_signal(number)
        out, errors = second.communicate(timeout=30)
        assert (second.returncode, out, errors.count("\n")) == (1, "", 1) and "interrupted" in errors
    assert len(names(unpacked.parent)) == 2
    kill(first)


def test_a_complete_copy_is_read_without_a_lock(slow_web, model, tmp_path, cache):
    url, go, requests = slow_web
    go.set()
    archive = shutil.make_archive(str(tmp_path / "m"), "zip", model)
    results = fetch(url), find_model(archive)
    folders = [folder for folder, _, _ in os.walk(cache)]  # a lock would write into them
    with contextlib.ExitStack() as stack:
        for folder in folders:
            os.chmod(folder, 0o500)
            stack.callback(os.chmod, folder, 0o700)
        assert (fetch(url), find_model(archive)) == results
    assert len(requests) == 1
