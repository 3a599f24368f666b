"""Whole models in bf16 tiles, on AMX or on its emulation: char encoder, LSTM, packed weights and lanes."""

import numpy as np
import pytest
import torch
from models import SENTENCES, SHAPES, bilm, files, options
from native_lstm import isa, tile_isas
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast import ElmoEmbedder, batch_to_ids, build_token_table
from elmo_fast.model.options import ConfigurationError

LIMITS = {"high": AGAINST_FLOAT64["high-amx"], "medium": AGAINST_FLOAT64["medium-bf16"]}
LARGER = options({"dim": 96, "projection_dim": 40, "cell_clip": 0.3, "proj_clip": 0.05}, {"filters": [[1, 20], [3, 50]]})


@pytest.fixture(params=tile_isas())
def tiles(request):
    with isa(request.param):
        yield


@pytest.fixture(params=["high", "medium"])
def precision(request):
    return request.param


@pytest.mark.parametrize("shape", ["two layers", "clips that fire", "no highway", "no projection", "tanh", "larger"])
def test_every_layer_is_within_the_tolerance(tiles, precision, shape):
    of = LARGER if shape == "larger" else SHAPES[shape]
    ids = batch_to_ids(SENTENCES)
    exact = bilm(of, backend="reference").double()(ids).activations
    found = bilm(of, backend="native", precision=precision)(ids).activations
    highest = bilm(of, backend="native")(ids).activations
    for one, other, plain in zip(found, exact, highest):
        assert relative_error(one, other) < LIMITS[precision]
        assert not torch.equal(one, plain)  # 16-bit products took part in every layer, the first included


def test_without_fp32_weights_the_bits_are_the_same(tiles, precision):
    whole, packed = (bilm(LARGER, backend="native", state="warm", precision=precision, keep_fp32=keep)
                     for keep in (True, False))
    ids = batch_to_ids(SENTENCES)
    for one, other in zip(whole(ids).activations, packed(ids).activations):
        assert torch.equal(one, other)
    assert packed._token_embedder.W_proj.is_meta
    with pytest.raises(ConfigurationError, match=f"keep_fp32=True.*'highest', got one .* packed for '{precision}'"):
        build_token_table(packed, ["<S>", "</S>", "One"])
    words = build_token_table(whole, ["<S>", "</S>", "One"])
    packed.token_table = words  # a table that was built with them serves a model without
    assert relative_error(packed.encode(["One"]), whole.encode(["One"])) < LIMITS[precision]


def test_a_sentence_has_the_same_bits_in_any_company(tiles, precision, tmp_path):
    embedder = ElmoEmbedder(*files(tmp_path, LARGER), backend="native", state="zero", precision=precision)
    sentences = [each for each in SENTENCES if each] * 12
    together = embedder.embed_batch(sentences)
    streamed = list(embedder.embed_sentences(sentences, 7))
    for k in (0, 3, 17):
        alone = embedder.embed_sentence(sentences[k])
        assert np.array_equal(alone, together[k]) and np.array_equal(alone, streamed[k])
