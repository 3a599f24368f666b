import errno

import numpy as np
import pytest
from tests.support.files import names

from elmo_fast.model import atomic_file as module
from elmo_fast.model.atomic_file import atomic_hdf5

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("failure", [FULL, KeyboardInterrupt()])
@pytest.mark.parametrize("good_writes", [0, 1, 5, 20, 60])
def test_a_failed_write_at_any_time_is_raised_at_the_end(tmp_path, monkeypatch, failure, good_writes):
    class FailingDisk(module.Disk):
        writes = 0

        def write(self, values):
            self.writes += 1
            if self.writes > good_writes:
                self.failure = failure
            return super().write(values)

    monkeypatch.setattr(module, "Disk", FailingDisk)
    (tmp_path / "a").write_text("old")
    with pytest.raises(type(failure)):
        with atomic_hdf5(tmp_path / "a") as (file, _):
            for number in range(100):
                file[str(number)] = np.ones(100)
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_long_body_can_ask(tmp_path):
    with pytest.raises(OSError, match="No space left on device: '.*/a'$"):
        with atomic_hdf5(tmp_path / "a") as (_, disk):
            disk.check()
            disk.failure = FULL
            disk.check()
            pytest.fail("nothing was raised")
    assert names(tmp_path) == []
