"""Models whose fp32 weights were dropped: memory, the calls that still work, and refusals."""

import copy
import pickle

import numpy as np
import pytest

from elmo_fast import BiLm, ConfigurationError, ElmoEmbedder, load, read_weights, write_weights
from elmo_fast.ops.backend import native_module, number_of
from elmo_fast.testing import options
from tests.support.engines import needs_native
from tests.support.files import write_model
from tests.support.models import SENTENCES, bilm, weights

pytestmark = needs_native
SIZES = options({"dim": 256, "projection_dim": 64},
                {"embedding": {"dim": 16}, "filters": [[1, 32], [3, 112], [5, 128]], "n_highway": 1})


@pytest.fixture
def folder(tmp_path):
    write_weights(write_model(tmp_path / "model", SIZES.to_dict()) / "weights.hdf5", weights(SIZES))
    return tmp_path / "model"


@pytest.mark.parametrize("precision", ["low", "medium"])
def test_load_keeps_only_packed_weights(folder, precision):
    elmo, whole = load(folder, precision=precision), BiLm.from_model(folder, precision=precision, state="warm")
    assert elmo.bilm.is_packed and not whole.is_packed
    expected = ElmoEmbedder.from_bilm(whole).embed_batch(SENTENCES)
    for vectors, expected_vectors in zip(elmo.embed(SENTENCES), expected, strict=True):
        np.testing.assert_array_equal(vectors, expected_vectors)
    matrices = sum(value.numel() for name, value in whole.named_parameters() if value.dim() == 2
                   and "char_embed" not in name)
    size = sum(value.nbytes for value in elmo.bilm.parameters() if not value.is_meta)
    assert size < 0.1 * 4 * matrices


@pytest.mark.parametrize("precision, megabytes", [("low", 94), ("highest", 371)])
def test_the_size_of_the_original_in_memory(precision, megabytes):
    """Packed sizes of two LSTM layers, two highway layers and the projection, as in docs/numbers.md."""
    module, number = native_module()[0], number_of(precision)
    lstm = 2 * module.lstm_packed_size(512, 4096, 512, number)
    highway = 2 * module.linear_packed_size(2048, 2048, module.epilogues["highway"], number)
    projection = module.linear_packed_size(2048, 512, module.epilogues["none"], number)
    assert (lstm + highway + projection) / 1e6 == pytest.approx(megabytes, rel=0.02)


def test_load_keeps_fp32_weights_that_the_engine_reads(folder):
    assert not load(folder).bilm.is_packed
    assert not load(folder, precision="low", backend="torch").bilm.is_packed


def test_weights_are_read_from_the_file_again(folder, tmp_path):
    elmo = load(folder, precision="low")
    for name, values in elmo.bilm.weights().items():
        np.testing.assert_array_equal(values, weights(SIZES)[name])
    assert elmo.bilm.fingerprint() == load(folder).bilm.fingerprint()
    write_weights(tmp_path / "copy.hdf5", elmo.bilm.weights())
    np.testing.assert_array_equal(read_weights(tmp_path / "copy.hdf5", SIZES)["CNN_proj/W_proj"],
                                  weights(SIZES)["CNN_proj/W_proj"])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda elmo: pickle.loads(pickle.dumps(elmo))])
def test_copies_read_the_file_again(folder, duplicate):
    elmo = load(folder, precision="low")
    elmo.bilm.state = "carry"
    first = elmo._embedder.embed_batch(SENTENCES)
    clone = duplicate(elmo)
    assert clone.bilm.is_packed and clone.bilm.state == "carry"
    expected = elmo._embedder.embed_batch(SENTENCES)
    assert not np.array_equal(first[0], expected[0])
    for vectors, expected_vectors in zip(clone._embedder.embed_batch(SENTENCES), expected, strict=True):
        np.testing.assert_array_equal(vectors, expected_vectors)


def test_a_changed_file_is_refused(folder):
    elmo = load(folder, precision="low")
    write_weights(folder / "weights.hdf5", weights(SIZES, seed=7))
    for call in (elmo.bilm.weights, lambda: copy.deepcopy(elmo)):
        with pytest.raises(RuntimeError, match=r"weights: expected those that the model was made of in .*weights.hdf5"):
            call()


def test_calls_that_need_fp32_weights_are_refused(folder):
    elmo = load(folder, precision="low")
    for call in (elmo.bilm.state_dict, lambda: elmo.bilm.to("cpu"), elmo.bilm.half):
        with pytest.raises(RuntimeError, match="weights: expected fp32 weights in memory, but .* were dropped"):
            call()
    elmo.bilm.precision = "highest"
    with pytest.raises(RuntimeError, match="weights: expected fp32 weights to pack .*read the model again"):
        elmo.embed(SENTENCES)
    with pytest.raises(RuntimeError, match="weights: expected fp32 weights in memory"):
        bilm(backend="native").drop_fp32().weights()
    with pytest.raises(ConfigurationError, match="drop_fp32: expected a model that the native engine runs on the CPU"):
        bilm(backend="reference").drop_fp32()


def test_a_pickle_of_a_whole_model_has_no_path(folder):
    assert str(folder).encode() not in pickle.dumps(BiLm.from_model(folder))
