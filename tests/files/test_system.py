"""Systems without POSIX: a simulated Windows (`tests/support/windows.py`), the package on it, and quotas."""

import pytest

from elmo_fast import ConfigurationError, environment, random_weights
from elmo_fast.weights import datasets
from tests.support import windows
from tests.support.files import names, write_model
from tests.support.models import options

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
            assert 'pip install "elmo-fast[' in str(error) or (
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


@pytest.mark.long
def test_files_are_written_and_replaced_on_windows(tmp_path):
    write_model(tmp_path / "model")
    before = names(tmp_path)
    out, errors = windows.run(tmp_path, "-c", EMBED)
    assert "expected a file that can be replaced (" in out
    assert out.endswith(f"on Windows, close it in other programs: '{tmp_path / 'v.h5'}'\n") and not errors
    assert set(names(tmp_path)) - set(before) == {".processes", "t.h5", "v.h5", "v.json", "v.npy", "v.npz"}


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
    ([V1, V2], ["4:cpu,cpuacct:/a", "0::/"], {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
                                              "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}, 2),
    ([V1], ["4:cpu,cpuacct:/a"], {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                                  "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}, None),
    # inside a container that sees the host's paths
    ([V1.replace("/ ", "/docker/x ", 1)], ["4:cpu,cpuacct:/docker/x"],
     {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000"}, 2),
    (["/ /proc rw - proc proc rw"], ["4:memory:/a"], {}, None),
])
def test_the_quota_of_control_groups(tmp_path, mountinfo, cgroup, files, quota):
    control_groups(tmp_path, mountinfo, cgroup, files)
    assert environment.cpu_quota(tmp_path) == quota


MEMORY_V1 = "/ /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory"
UNLIMITED = "9223372036854771712\n"


@pytest.mark.parametrize("mountinfo, cgroup, files, size", [
    ([V2], ["0::/"], {"sys/fs/cgroup/memory.max": "4096\n"}, 4096),
    ([V2], ["0::/a/b"], {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "8192\n"}, 8192),
    ([V2], ["0::/a/b"], {"sys/fs/cgroup/a/b/memory.max": "4096\n", "sys/fs/cgroup/a/memory.max": "8192\n"}, 4096),
    ([V1, MEMORY_V1, V2], ["5:memory:/a", "4:cpu,cpuacct:/a", "0::/"],
     {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096\n", "sys/fs/cgroup/cpu/a/memory.limit_in_bytes": "1\n"},
     4096),
    # inside a container that sees the host's paths
    ([MEMORY_V1.replace("/ ", "/docker/x ", 1)], ["5:memory:/docker/x"],
     {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n"}, 4096),
    *((*groups, files, None) for groups in (([MEMORY_V1], ["5:memory:/"]), ([V2], ["0::/"])) for files in (
        {}, {"sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED, "sys/fs/cgroup/memory.max": "max\n"},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes": "", "sys/fs/cgroup/memory.max": "?"})),
])
def test_the_memory_of_control_groups(tmp_path, mountinfo, cgroup, files, size):
    control_groups(tmp_path, mountinfo, cgroup, files)
    assert environment.memory_size(tmp_path) == (size or environment.memory_size(tmp_path / "none"))


@pytest.mark.parametrize("value", ["true", "True", "yes", "on", "2", " 1", "-1"])
def test_a_switch_has_two_values(monkeypatch, value):
    monkeypatch.setenv("ELMO_FAST_NO_NATIVE", value)
    with pytest.raises(ConfigurationError, match=f"^ELMO_FAST_NO_NATIVE: expected 0 or 1, got '{value}'$"):
        environment.is_set("ELMO_FAST_NO_NATIVE")
    for off in ("", "0"):
        monkeypatch.setenv("ELMO_FAST_NO_NATIVE", off)
        assert not environment.is_set("ELMO_FAST_NO_NATIVE")


def test_weights_larger_than_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(datasets, "memory_size", lambda: 1 << 10)
    with pytest.raises(ConfigurationError, match="expected a model whose weights fit"):
        random_weights(options())
