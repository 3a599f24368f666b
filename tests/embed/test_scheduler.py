"""The scheduler without a model: which steps of which sentences run in a chunk."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_fast.embed.scheduler import Scheduler, Sentence
from elmo_fast.model.token_table.table import TokenTable

LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([0, 1, 500, 10_000])), max_size=60)
SLOTS = st.one_of(st.integers(1, 6), st.integers(1, 300))


def rows_of(tokens):
    return np.zeros(len(tokens) + 2, np.int32)


class Run:
    """Plans and checks chunk after chunk; `steps` and `width` bound a chunk, `ahead` the reading.

    `passed_over` are the sentences that do not run; like the others they are given out after the chunk.
    """

    def __init__(self, scheduler, steps, width, ahead, passed_over=()):
        self.scheduler, self.limits, self.largest_ahead = scheduler, (steps, width, ahead), 0
        self.passed_over, self.given_out = passed_over, 0
        self.done, self.slots, self.orders = {}, {}, {}

    def chunk(self, is_undone=False):
        """Plan a chunk, twice if the first is undone; False at the end."""
        pieces = self.scheduler.plan(*self.limits)
        if is_undone:
            self.scheduler.undo(pieces)
            # a new plan may read further, which was not needed before, but runs the same pieces of the same sentences
            again = self.scheduler.plan(*self.limits)
            assert [(one.sentence.number, *one[1:]) for one in pieces] == [
                (one.sentence.number, *one[1:]) for one in again]
            pieces = again
        steps = {}
        for sentence, slot, begin, end in pieces:
            assert self.done.get(sentence.number, 0) == begin < end <= len(sentence.rows)
            assert self.slots.setdefault(sentence.number, slot) == slot
            self.done[sentence.number] = end
            steps[slot] = steps.get(slot, 0) + end - begin
            if not begin:
                self.orders.setdefault(slot, []).append(sentence.number)
        assert len(steps) <= self.limits[1] and max(steps.values(), default=0) <= self.limits[0]
        self.largest_ahead = max(self.largest_ahead, self.scheduler.ahead)
        for sentence, _, _, end in pieces:
            self.scheduler.ahead -= end if end == len(sentence.rows) else 0
        new = self.passed_over[self.given_out:]
        self.given_out += len(new)
        self.scheduler.ahead -= sum(len(sentence.rows) for sentence in new)
        return bool(pieces or new)


@settings(max_examples=30)
@given(LENGTHS, SLOTS, st.integers(1, 200), st.integers(1, 300), st.integers(1, 3000), st.booleans(), st.booleans(),
       st.data())
def test_every_sentence_runs_once_in_one_slot(lengths, slots, steps, width, ahead, carried, runs_empty, data):
    passed_over = []
    scheduler = Scheduler(slots, rows_of, passed_over.append, carried, runs_empty)
    scheduler.read_from(["a"] * length for length in lengths)
    run, undone = Run(scheduler, steps, min(width, slots), ahead, passed_over), data.draw(st.sets(st.integers(0, 9)))
    chunks = 0
    while run.chunk(chunks in undone):
        chunks += 1
    alone = [number for number in range(len(lengths)) if slots == 1 or (
        number == len(lengths) - 1 and not number % slots)]  # in their batches of `slots`
    skipped = [number for number in alone if carried and not runs_empty and not lengths[number]]
    assert [sentence.number for sentence in passed_over] == skipped
    assert run.done == {number: length + 2 for number, length in enumerate(lengths) if number not in skipped}
    assert scheduler.read == len(lengths) and scheduler.is_at_end
    for slot, numbers in run.orders.items():
        assert numbers == sorted(numbers) and (not carried or {number % slots for number in numbers} == {slot})
    assert run.largest_ahead <= ahead + max(lengths, default=0) + 2


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), SLOTS, st.integers(1, 20), st.data())
def test_a_dropped_sentence_stops(lengths, slots, steps, data):
    scheduler, source = Scheduler(slots, rows_of, None, False, False), iter([["a"] * length for length in lengths])
    scheduler.take_from(lambda: next(source, None))
    run, dropped, at_drop = Run(scheduler, steps, slots, 1 << 30), set(), {}
    for chunk in itertools.count():
        if not run.chunk(chunk % 3 == 0):
            break
        for number in data.draw(st.sets(st.sampled_from(sorted(run.done)), max_size=3)):
            if run.done[number] < lengths[number] + 2:
                dropped.add(number)
                at_drop[number] = run.done[number]
        scheduler.drop(dropped)
    assert run.done == {number: at_drop.get(number, length + 2) for number, length in enumerate(lengths)}


@given(LENGTHS.filter(len), st.integers(1, 8), st.integers(1, 50), st.integers(0, 20))
def test_batches_run_again_after_a_restart(lengths, slots, steps, chunks):
    scheduler = Scheduler(slots, rows_of, lambda sentence: None, True, True)
    scheduler.read_from(["a"] * length for length in lengths)
    first = Run(scheduler, steps, slots, 1000)
    for _ in range(chunks):
        first.chunk()
    read = scheduler.read
    waiting = {(span.number, span.slot, span.begin) for span in scheduler.waiting(read)}
    assert waiting == {(number, number % slots, first.done.get(number, 0)) for number in range(read)
                       if first.done.get(number, 0) < lengths[number] + 2}
    scheduler.restart()
    second = Run(scheduler, steps, slots, 1 << 30)
    while second.chunk():
        pass
    assert second.done == {number: length + 2 for number, length in enumerate(lengths)}


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=20), st.integers(1, 6), st.integers(1, 4))
def test_vectors_of_tokens_keep_their_rows(sentences, capacity, most):
    """A reduced cache, too, has the vector of every token in flight at its row."""
    vector = {token: float(ord(token[-1])) for token in ["<", ">", *"abcdefgh"]}
    cache, in_flight = TokenTable(), []
    for number, tokens in enumerate(sentences):
        in_flight = [*in_flight[-2:], (Sentence(number, cache.number(tokens, "<>")), ["<", *tokens, ">"])]
        while new := cache.unencoded(most):
            assert len(new) <= most
            cache.append(torch.tensor([[vector[token]] for token in new]))
        cache.reduce(capacity, [sentence for sentence, _ in in_flight])
        for sentence, bounded in in_flight:
            assert cache.encoded[sentence.rows.astype(np.int64), 0].tolist() == [vector[t] for t in bounded]
        assert len(cache.encoded) <= max(capacity, 2 * 24) + 8
