"""The thread that writes: its errors reach the caller, keys stay unique across segments, its queue is bounded."""

import pytest

from elmo_fast import ConfigurationError
from elmo_fast.embed import writer
from elmo_fast.embed.corpus import Target, write_corpus
from elmo_fast.embed.readers import Text
from tests.support.files import names
from tests.support.sections import embed, model

pytestmark = pytest.mark.usefixtures("short_sections")


def test_errors_of_the_writer_reach_the_caller_and_end_the_queue(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_QUEUED_BYTES", 100)
    taken = []

    def texts():
        for number in range(10_000):
            taken.append(number)
            yield Text("a/." if number == 7 else str(number), "a", ["a"])

    with pytest.raises(ConfigurationError, match="got 'a/.'"):
        write_corpus(texts(), model("zero").runner(1), Target(tmp_path / "o.h5", "allennlp"), commit_seconds=1000)
    assert len(taken) < 9_000 and names(tmp_path) == []


@pytest.mark.parametrize("name, options, message", [
    ("o.h5", {}, "output: expected different identifiers, got 'twice' twice"),
    ("o.npz", {}, "output: expected different identifiers, got 'twice' twice"),
    ("o.h5", {"use_sentence_keys": True}, "use_sentence_keys: expected different sentences, got 'b' twice"),
])
def test_a_key_given_twice_is_refused_across_segments(tmp_path, name, options, message):
    def texts():
        for number in range(100):
            yield Text("twice" if number in (2, 30) else str(number), "b" if number in (2, 30) else f"a{number}", ["a"])
        pytest.fail("read to the end")

    target = Target(tmp_path / name, "npz" if name == "o.npz" else "allennlp", options=options)
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        write_corpus(texts(), model("zero").runner(3), target)


def test_the_queue_is_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_QUEUED_BYTES", 5000)
    most, write = [0], writer.SegmentWriter.write

    def writing(self, text, vectors):
        write(self, text, vectors)
        most[0] = max(most[0], self._bytes - vectors.nbytes)

    monkeypatch.setattr(writer.SegmentWriter, "write", writing)
    embed(tmp_path / "o.h5", texts=[["a"] * (1 + number % 30) for number in range(200)], seconds=1000)
    assert 0 <= most[0] <= 5000
