import pytest

from elmo_fast.embed import run as embed_run
from elmo_fast.engine import stream as slot_stream


@pytest.fixture
def short_sections(monkeypatch):
    """Commit after every group, and read little ahead."""
    monkeypatch.setattr(embed_run, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", 32)
