import json
import sys

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """With several threads the small work of a dry run would only wait for busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """Run a benchmark with arguments: its document, or the error on stderr of a run without a file."""
    def run(module, *arguments):
        out = tmp_path / "out" / "results.json"
        out.unlink(missing_ok=True)
        monkeypatch.setattr(sys, "argv", [module.__name__, "--out", str(out), *map(str, arguments)])
        status, errors = module.main(), capsys.readouterr().err
        assert (status, out.exists()) in ((0, True), (1, False)), errors
        if status:
            return errors
        assert list(out.parent.iterdir()) == [out] and str(tmp_path) not in out.read_text()
        return json.loads(out.read_text())
    return run
