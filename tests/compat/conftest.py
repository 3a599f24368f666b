import pytest


@pytest.fixture
def vocab(tmp_path):
    """A vocabulary file of bilm-tf."""
    path = tmp_path / "vocab.txt"
    path.write_text("<S>\n</S>\n<UNK>\nsea\nsalt\ngrey\nand\nthe\nof\nwind\n", encoding="utf-8")
    return path
