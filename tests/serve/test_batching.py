"""The queue and the engine thread: texts take turns."""

from elmo_fast import ElmoEmbedder
from tests.support import models
from tests.support.serving import SECONDS, Gate, batching, texts_of


def test_a_long_text_does_not_delay_a_short_text():
    bilm = models.bilm(state="warm")
    gate = Gate(bilm)  # where the engine waits
    with batching.Batching(ElmoEmbedder.from_bilm(bilm), bilm.state, slots=2) as queue:
        long = queue.submit(texts_of([9000]))
        gate.wait()  # its first chunk of many
        short = queue.submit(texts_of([4]))
        gate.let_pass()
        gate.wait()  # the chunk with the short text in it
        gate.let_pass()
        assert short.future.result(SECONDS)[0].shape[1] == 4
        assert not long.future.done()
        gate.open()
        assert long.future.result(SECONDS)[0].shape[1] == 9000
