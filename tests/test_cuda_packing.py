"""The packing of the CUDA tiers against a NumPy model of it, and how layers are cut into blocks."""

import numpy as np
import pytest
from cuda_simulator import BF16, FP16, ROUND
from native_lstm import address, aligned_bytes, native

SHARED = 227 * 1024  # bytes that a block may have on Hopper
H200 = (132, SHARED, 8)
A100 = (108, 163 * 1024, 1)


def bits16(x, operand):
    """The 16-bit numbers that values are rounded to."""
    rounded = ROUND[operand](x)
    if operand == FP16:
        return rounded.astype(np.float16).view(np.uint16)
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)


def a_tile(block):
    """[16, 16] rows and columns -> [32, 8] as a warp's threads hold it: rows g and g + 8, columns 4 q to 4 q + 3."""
    g, q = np.divmod(np.arange(32), 4)
    registers = [block[g + 8 * (r % 2), 4 * q + 2 * (r // 2) + e] for r in range(4) for e in range(2)]
    return np.stack(registers, axis=1)


def model(w, b, p, operand):
    """One direction's records, uint8. w [P, 4D] -> gates by unit, group, 16 columns and tile; projection; biases."""
    projection, dim = len(w), len(b) // 4
    units, width = -(-dim // 16), -(-projection // 16) * 16
    gates = np.zeros((4, units * 16, width), np.float32)  # [gate, cell, column of h]
    gates[:, :dim, :projection] = w.reshape(projection, 4, dim).transpose(1, 2, 0)
    biases = np.zeros((4, units * 16), np.float32)
    biases[:, :dim] = b.reshape(4, dim)
    if p is not None:
        rows = np.zeros((width, units * 16), np.float32)
        rows[:projection, :dim] = p.T
    records = []
    for unit in range(units):
        for group in range(2):
            cells = slice(unit * 16 + group * 8, unit * 16 + group * 8 + 8)
            for k in range(0, width, 16):
                for pair in (0, 2):  # (i, j), then (f, o)
                    block = gates[pair : pair + 2, cells, k : k + 16].reshape(16, 16)
                    records.append(bits16(a_tile(block), operand))
        if p is not None:
            for tile in range(0, width, 16):
                records.append(bits16(a_tile(rows[tile : tile + 16, unit * 16 : unit * 16 + 16]), operand))
        both = [biases[:, unit * 16 + group * 8 : unit * 16 + group * 8 + 8] for group in range(2)]
        records.append(np.stack(both))
    return np.concatenate([each.ravel().view(np.uint8) for each in records])


@pytest.mark.parametrize("operand", [FP16, BF16])
@pytest.mark.parametrize("dim,projection", [(37, 11), (16, 16), (64, 32), (1, 1), (5, 2), (20, 40), (130, 33)])
def test_packing_is_the_model(dim, projection, operand):
    rng = np.random.default_rng(dim)
    w = [rng.standard_normal((projection, 4 * dim)).astype(np.float32) for _ in range(2)]
    b = [rng.standard_normal(4 * dim).astype(np.float32) for _ in range(2)]
    p = [None if dim == projection else rng.standard_normal((dim, projection)).astype(np.float32) for _ in range(2)]
    packed = aligned_bytes(native.cuda_lstm_packed_size(dim, projection))
    native.cuda_lstm_pack(dim, projection, operand, [address(each) for each in w], [address(each) for each in b],
                          [address(each) for each in p], address(packed), packed.size)
    assert (packed == np.concatenate([model(w[d], b[d], p[d], operand) for d in range(2)])).all()


def test_roundings():
    """Ties, overflow, denormals and NaN: the fp16 and bf16 of NumPy and of the packing agree."""
    rng = np.random.default_rng(0)
    chosen = np.float32([0, 1, 65504, 65519.9, 65520, 1e30, 6.1e-5, 6e-8, 2.98e-8, 2.99e-8, 1e-12, 1.00048828125,
                         1.00146484375, np.inf, 3.39e38])
    values = np.concatenate([chosen, -chosen, chosen / 3,
                             rng.integers(0, 2**32, 4000, np.uint32).view(np.float32)])
    values = np.resize(values, (64, 64)).astype(np.float32)
    zeros, packed = np.zeros(64, np.float32), aligned_bytes(native.cuda_lstm_packed_size(16, 64))
    projection = np.zeros((16, 64), np.float32)
    for operand in (FP16, BF16):
        native.cuda_lstm_pack(16, 64, operand, [address(values)] * 2, [address(zeros)] * 2, [address(projection)] * 2,
                              address(packed), packed.size)
        with np.errstate(over="ignore"):
            expected = model(values, zeros, projection, operand)
        found, expected = (each[: 16 * 4 * 64 * 2].view(np.uint16) for each in (packed, expected))
        nan = (lambda x: (x & 0x7FFF) > (0x7C00 if operand == FP16 else 0x7F80))
        assert nan(expected).any() and (nan(found) == nan(expected)).all()
        assert (found[~nan(found)] == expected[~nan(found)]).all()


@pytest.mark.parametrize("device", [H200, A100])
@pytest.mark.parametrize("dim,projection", [(4096, 512), (2048, 256), (1024, 128), (512, 512), (37, 11), (1, 1),
                                            (16384, 1024)])
def test_plans_cover_the_layer_within_the_device(device, dim, projection):
    for persistent in (False, True):
        for lanes in (1, 8, 9, 32, 33, 64, 300):
            plan = native.cuda_lstm_plan(persistent, dim, projection, device, lanes)
            if plan["reason"]:
                assert persistent
                continue
            assert plan["blocks"] * plan["units_per_block"] * 16 >= dim
            assert plan["shared"] <= device[1] and plan["units_per_block"] <= 4
            assert plan["blocks"] % plan["cluster"] == 0 and plan["cluster"] <= device[2]
            assert plan["lane_tiles"] * 8 >= min(lanes, 8)
            if persistent:
                assert plan["blocks"] <= device[0] and plan["lane_tiles"] * 8 >= lanes


def test_the_original_size_fits_an_h200():
    """128 blocks hold 32 cells each: 160 KB of weights, which is 21 MB for a direction."""
    plan = native.cuda_lstm_plan(True, 4096, 512, H200, 32)
    assert (plan["reason"], plan["blocks"], plan["units_per_block"]) == (None, 128, 2)
    assert native.cuda_lstm_packed_size(4096, 512) // 2 // 128 == 164352
    steps = native.cuda_lstm_plan(False, 4096, 512, H200, 64)
    assert (steps["reason"], steps["blocks"], steps["cluster"], steps["lane_tiles"]) == (None, 64, 8, 8)


def test_what_does_not_fit_is_said():
    assert "shared memory" in native.cuda_lstm_plan(True, 4096, 512, (108, 163 * 1024, 1), 8)["reason"]
    assert "64 on each" in native.cuda_lstm_plan(True, 4096, 512, (60, SHARED, 8), 8)["reason"]  # a slice of a GPU
    assert "32 lanes" in native.cuda_lstm_plan(True, 4096, 512, H200, 33)["reason"]
    assert "64 on each" in native.cuda_lstm_plan(True, 16384, 128, H200, 1)["reason"]
    assert "shared memory" in native.cuda_lstm_plan(False, 64, 65536, (4, 48 * 1024, 1), 1)["reason"]
    for bad in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="shape"):
            native.cuda_lstm_plan(False, *bad, H200, 1)
    with pytest.raises(ValueError, match="lanes"):
        native.cuda_lstm_plan(False, 4, 2, H200, 0)
    with pytest.raises(ValueError, match="packed"):
        native.cuda_lstm_pack(4, 2, FP16, [0, 0], [0, 0], [0, 0], 0, 7)
