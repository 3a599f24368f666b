"""The CPU engine under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "run_sanitizers.sh"
EMPTY = "int main() { return 0; }"


def sanitizers_link(folder: Path) -> bool:
    source = folder / "empty.cpp"
    source.write_text(EMPTY)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    flags = ("-fsanitize=address,undefined", "-fsanitize=thread")
    return compiler is not None and all(
        subprocess.run([compiler, flag, source, "-o", folder / "empty"], capture_output=True).returncode == 0
        for flag in flags)


@pytest.mark.skipif(os.environ.get("ELMO_FAST_NO_NATIVE") == "1", reason="ELMO_FAST_NO_NATIVE=1 is set")
def test_the_engine_is_clean(tmp_path):
    if not sanitizers_link(tmp_path):
        pytest.skip("no g++ with AddressSanitizer and ThreadSanitizer")
    run = subprocess.run(["bash", SCRIPT, tmp_path / "build"], capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    assert "address: clean" in run.stdout and "thread: clean" in run.stdout
