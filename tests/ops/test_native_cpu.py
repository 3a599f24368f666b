"""The C++ engine: how its LSTM is called, and models on it: batch mates, edits, packed weights, threads and forks."""

import copy
import ctypes
import mmap
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ElmoEmbedder, batch_to_ids
from elmo_fast.ops import weight_snapshot
from elmo_fast.ops.linear import cpu as linear
from elmo_fast.ops.projected_lstm import cpu as projected_lstm
from tests.support.engines import (
    BF16_DOTS,
    BF16_WEIGHTS,
    HIGHEST,
    ISAS,
    LOW,
    NATIVE,
    TILES,
    altered,
    isa,
    native,
    needs_native,
)
from tests.support.files import python
from tests.support.models import SENTENCES, SHAPES, bilm
from tests.support.op_cases import lstm_case, on_threads

pytestmark = needs_native


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def packed_at(address, sizes):
    """A copy of the packed weights that lie at an address."""
    size = native.lstm_packed_size(*sizes, 0)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).copy()


# ---- calls of the LSTM -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", HIGHEST, ids=str)
@pytest.mark.parametrize("offset", [4, 20])
def test_packed_weights_may_lie_anywhere(engine, offset):
    case, raw = lstm_case((30, 50, 20)), np.empty(1 << 17, np.uint8)

    def move(address):
        packed, begin = packed_at(address, (30, 50, 20)), -raw.ctypes.data % 64 + offset
        raw[begin : begin + packed.size] = packed
        return raw.ctypes.data + begin

    expected = case.run(engine)
    with altered("lstm_forward", packed=move):
        assert all(torch.equal(*pair) for pair in zip(case.run(engine), expected))


def page_flags(address):
    """Of the mapping that holds an address."""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            begin, end = (int(number, 16) for number in name.split("-"))
        elif name == "VmFlags:" and begin <= address < end:
            return rest
    return []


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages on this system")
def test_packed_weights_in_huge_and_in_small_pages_give_the_same_bits():
    sizes = 64, 1024, 128
    case, size = lstm_case(sizes), native.lstm_packed_size(*sizes, 0)
    small = mmap.mmap(-1, size)
    small.madvise(mmap.MADV_NOHUGEPAGE)

    def move(address):
        assert "hg" in page_flags(address + size // 2)
        small[:] = packed_at(address, sizes).tobytes()
        moved = ctypes.addressof(ctypes.c_char.from_buffer(small))
        assert "hg" not in page_flags(moved)
        return moved

    expected = case.run(NATIVE)
    with altered("lstm_forward", packed=move):
        assert all(torch.equal(*pair) for pair in zip(case.run(NATIVE), expected))


def rows_at(base, rows, step):
    """Addresses of rows [2, S] that lie `step` bytes apart, -1: null."""
    return torch.where(rows < 0, 0, base + rows.long() * step)


@pytest.mark.parametrize("engine", HIGHEST, ids=str)
@pytest.mark.parametrize("way", ["rows", "addresses", "addresses, added"])
def test_inputs_and_outputs_may_lie_anywhere(engine, way, monkeypatch):
    case, written = lstm_case((6, 19, 6), [4, 2, 2], gathered=False), torch.full((13, 12), torch.nan)
    call, order = case.given(case.leaves())
    inputs, adds = call.inputs.detach().contiguous(), way == "addresses, added"
    rows = int32([0, 3, 12, -1, 4, 9, 8, 7], [5, 4, 3, 2, 1, 0, -1, 12])
    halves = 4 * torch.tensor([[0], [6]])  # bytes
    inputs_at = rows_at(inputs.data_ptr(), torch.arange(8).expand(2, -1), 48) + halves
    outputs = rows_at(written.data_ptr(), rows, 48)
    outputs = torch.where(outputs == 0, 0, outputs + halves)
    in_text_order, *state = case.run(engine)
    expected = [half[tokens] for half, tokens in zip(in_text_order.chunk(2, 1), order)]
    forward = native.lstm_forward

    def elsewhere(**arguments):
        arguments["outputs"] = outputs.data_ptr()
        if way == "rows":
            return forward(**arguments)
        common = {name: value for name, value in arguments.items() if name not in ("rows", "input_rows")}
        return native.lstm_forward_at(**common | {"inputs": inputs_at.data_ptr()}, add_input=adds)

    monkeypatch.setattr(native, "lstm_forward", elsewhere)
    _, *found = case.run(engine)
    assert all(map(torch.equal, found, state))
    for half, named, right, x in zip(written.chunk(2, 1), rows, expected, inputs.chunk(2, 1)):
        assert torch.equal(half[named[named >= 0]], (right + x if adds else right)[named >= 0])
        assert int(half.isnan().sum()) == 6 * (13 - 7)


@pytest.mark.parametrize("inputs_at, adds, message", [
    (torch.zeros(6, dtype=torch.int64), False, "inputs: expected no null"),
    (torch.ones(6, dtype=torch.int64), True, "add_input: expected false, or as many columns")])
def test_wrong_addresses_are_refused(inputs_at, adds, message, monkeypatch):
    def at_addresses(rows, input_rows, inputs, **common):
        return native.lstm_forward_at(**common, inputs=inputs_at.data_ptr(), add_input=adds)

    case = lstm_case((4, 8, 2), [2, 1])
    monkeypatch.setattr(native, "lstm_forward", at_addresses)
    with pytest.raises(ValueError, match=message):
        case.run(NATIVE)


@pytest.mark.parametrize("changes, message", [
    ({"inputs": 0}, "inputs"), ({"rows": 0}, "rows"), ({"input_rows": -1}, "input_rows"), ({"outputs": 0}, "outputs"),
    ({"batch_sizes": int32(1, 2)}, "batch_sizes"), ({"batch_sizes": int32(3, 0)}, "batch_sizes"),
    ({"batch_sizes": int32(2, 2, -1), "steps": 3}, "batch_sizes"),
    ({"rows": int32([0, 1, 2], [0, 1, 3])}, "rows"), ({"rows": int32([0, -1, 2], [0, 1, 2])}, "rows"),
    ({"cell_clip": 0.0}, "clip"), ({"proj_clip": float("nan")}, "clip"), ({"threads": 0}, "threads"),
    ({"precision": 4}, "precision"), ({"packed_size": lambda size: size - 1}, "packed"),
    ({"packed": torch.zeros(1 << 16, dtype=torch.uint8)}, "packed"), ({"dim": 7}, "packed: expected lstm"),
])
def test_wrong_sizes_are_refused(changes, message):
    case = lstm_case((4, 8, 2), [2, 1])
    case.run(NATIVE)
    with altered("lstm_forward", **changes), pytest.raises(ValueError, match=message):
        case.run(NATIVE)


@pytest.mark.skipif(len(ISAS) < 2, reason="one instruction set here")
def test_what_another_instruction_set_packed_is_refused():
    case, kept = lstm_case((4, 8, 2)), []

    def keep(address):
        kept.append(packed_at(address, (4, 8, 2)))
        return address

    with isa(ISAS[0]), altered("lstm_forward", packed=keep):
        case.run(NATIVE)
    with (isa(ISAS[1]), altered("lstm_forward", packed=kept[0].ctypes.data, packed_size=kept[0].size),
          pytest.raises(ValueError, match=f"packed.*{ISAS[1]}.*{ISAS[0]}")):
        case.run(NATIVE)


def test_steps_without_rows_change_nothing():
    case = lstm_case(lengths=[0, 0])
    with altered("lstm_forward", batch_sizes=int32(0, 0), steps=2):
        _, *state = case.run(NATIVE)
    assert all(torch.equal(each, case.operands[name].float()) for name, each in zip("hc", state))


def test_pairs_of_bf16_need_tiles():
    with isa("generic"):
        assert native.lstm_isa(1) == "" and native.lstm_isa(2) == "generic"
        with pytest.raises(ValueError, match="high needs AMX"):
            native.lstm_packed_size(4, 8, 2, 1)


def test_packed_size_is_within_a_tenth():
    for engine in (*HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW):
        number = native.precisions[engine.precision]
        plain = {"medium": 2, "low": 1}.get(engine.precision, 4) * 2 * (1024 * 16384 + 16384 + 4096 * 512)
        with isa(engine.isa):
            assert native.lstm_packed_size(512, 4096, 512, number) <= 1.1 * plain
            highway = native.epilogues["highway"]
            assert native.linear_packed_size(128, 128, highway, number) <= 1.1 * 8 * (128 * 128 + 128)


def four_threads():
    """Torch itself has one thread: its own do not outlive a fork."""
    with altered("lstm_forward", threads=4):
        return [each.numpy() for each in on_threads(1, lstm_case((16, 40, 8)).run, NATIVE)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_its_own_threads():
    expected = four_threads()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert all(map(np.array_equal, pool.apply_async(four_threads).get(timeout=60), expected))


FORK = """
import multiprocessing
import numpy as np
import torch
from torch.nn.modules import module
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

def settings():
    hooks = [module._global_forward_hooks, module._global_forward_pre_hooks, _global_optimizer_post_hooks,
             _global_optimizer_pre_hooks]
    return [torch.get_num_threads(), torch.get_num_interop_threads(), *map(len, hooks),
            torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.get_default_dtype()]

def embed():
    vectors = list(elmo.embed(texts))
    return vectors, settings()

torch.set_num_threads(2)
before = settings()
import elmo_fast
import elmo_fast.train.loop

elmo, texts = elmo_fast.load(), [" ".join(f"word{k * n % 997}" for k in range(30)) for n in range(100)]
expected, after = embed()  # on the threads of PyTorch, which the children lack
assert after == before
with multiprocessing.get_context("fork").Pool(2) as pool:
    calls = pool.apply_async(elmo.embed, (texts,)), pool.apply_async(embed)  # the first reads the model
    read, (inherited, in_child) = (call.get(timeout=200) for call in calls)
assert all(map(np.array_equal, read, expected)) and all(map(np.array_equal, inherited, expected))
assert in_child == before
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_embeds_after_its_parent_did_and_changes_no_setting_of_pytorch():
    """The bundled model: a small one does not start PyTorch's threads."""
    python("-c", FORK)


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_a_sentence_has_the_same_bits_beside_any_others(state):
    embedder = ElmoEmbedder.from_bilm(bilm(SHAPES["clips that fire"], backend="native", state=state))
    together = embedder.embed_batch(SENTENCES)
    alone = [embedder.embed_sentence(sentence) for sentence in SENTENCES]
    turned = embedder.embed_batch(SENTENCES[::-1])[::-1]
    streamed = list(embedder.embed_sentences(SENTENCES, 2))
    for one, *others in zip(together, alone, turned, streamed):
        assert all(np.array_equal(one, other) for other in others)


def test_ids_and_strings_give_the_same_bits():
    activations, mask = bilm(backend="native")(batch_to_ids(SENTENCES))
    packed, _ = bilm(backend="native").embed_tokens(SENTENCES)
    assert all(torch.equal(one[mask], other) for one, other in zip(activations, packed))


@pytest.mark.parametrize("name", [f"_elmo_lstm.{name}" for name in ("W_0_1_1", "B_0_0", "W_P_0_1_0")] + [
    f"_token_embedder.{name}" for name in ("W_cnn_1", "b_cnn_0", "W_carry_0", "b_transform_1", "W_proj", "b_proj",
                                           "char_embed")])
def test_an_edit_is_seen(name):
    model, ids = bilm(backend="native", state="zero"), batch_to_ids(SENTENCES)
    before = model(ids).activations[-1]
    with torch.no_grad():
        model.get_parameter(name).mul_(1.5).add_(0.125)
    after = model(ids).activations
    assert not torch.equal(before, after[-1])
    fresh = BiLm(model.options, model.weights(), backend="native", state="zero")(ids).activations
    assert all(torch.equal(one, other) for one, other in zip(after, fresh))


def test_packed_weights_go_with_the_model():
    count = len(weight_snapshot._current)
    model = bilm(backend="native")
    model(batch_to_ids(SENTENCES))
    assert len(weight_snapshot._current) > count
    twin = copy.deepcopy(model)
    del model
    assert len(weight_snapshot._current) == count
    twin(batch_to_ids(SENTENCES))
    del twin
    assert len(weight_snapshot._current) == count


@pytest.mark.parametrize("edit, counts", [
    (lambda w: w.add_(1), True), (lambda w: w[1:].zero_(), True), (lambda w: w.sum(), False),
    (lambda w: w.view(-1), False)])
def test_edits_in_place_change_the_key(edit, counts):
    w = torch.ones(4, 3)
    before = weight_snapshot.version_key(w)
    edit(w)
    assert (weight_snapshot.version_key(w) != before) == counts


def test_a_model_made_in_inference_mode_packs_its_weights_once(monkeypatch):
    with torch.inference_mode():
        model, ids, w = bilm(backend="native", state="zero"), batch_to_ids(SENTENCES), torch.ones(3)
        first = torch.stack(model(ids).activations)
        for module in (linear, projected_lstm):
            monkeypatch.setattr(module, "aligned_bytes", None)  # allocates packed weights
        assert torch.equal(torch.stack(model(ids).activations), first)
    assert weight_snapshot.version_key(w) != weight_snapshot.version_key(w)
    with torch.no_grad():
        model.get_parameter("_elmo_lstm.W_0_0_0").mul_(2)
    with pytest.raises(TypeError, match="NoneType"):
        model(ids)
