import pytest

from tests.support import models
from tests.support.files import tiny, write_model


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Options and weights of `models.bilm()`, three layers of 22 values; no test writes to them."""
    return tuple(map(str, models.files(tmp_path_factory.mktemp("model"), models.options())))


@pytest.fixture
def folder(tmp_path):
    """The folder of a tiny model, three layers of 8 values."""
    return write_model(tmp_path / "model", tiny(lstm__dim=12))


@pytest.fixture
def vocab(tmp_path):
    """A vocabulary file of bilm-tf, with words in its first and last line."""
    path = tmp_path / "vocab.txt"
    path.write_text("sea\nsalt\n<S>\n</S>\n<UNK>\ngrey\nand\nthe\nof\nwind\n", encoding="utf-8")
    return path
