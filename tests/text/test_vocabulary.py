import bz2
import gzip
import lzma

import numpy as np
import pytest

from elmo_fast import UnicodeCharsVocabulary, Vocabulary

WORDS = ["the", ".", "Āt", "<S>", "</S>", "<UNK>"]


def write(folder, words, name="vocab.txt"):
    opener = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}.get(name.rpartition(".")[2], open)
    with opener(folder / name, "wt", encoding="utf-8") as file:
        file.write("\n".join(words))
    return folder / name


@pytest.mark.parametrize("sentence, options, expected", [
    ("the cat .", {}, [3, 0, 5, 1, 4]),
    (". cat the", {"reverse": True}, [4, 1, 5, 0, 3]),
    (["the cat", "."], {"split": False}, [3, 5, 1, 4]),
    ("", {}, [3, 4]),
])
def test_encode(tmp_path, sentence, options, expected):
    ids = Vocabulary(write(tmp_path, WORDS)).encode(sentence, **options)
    assert ids.tolist() == expected and ids.dtype == np.int32


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.txt.gz", "vocab.bz2", "vocab.xz"])
@pytest.mark.parametrize("lines, words, specials", [
    (WORDS, WORDS, (3, 4, 5)),
    (["<S>", "a", "</S>", "a", "<S>"], ["<S>", "a", "</S>", "a", "<S>"], (4, 2, -1)),  # the last of equal lines
    (["<S>", "!!!MAXTERMID", "</S>", "a"], ["<S>", "</S>", "a"], (0, 1, -1)),  # has no id
    (["  <S>\t", "", "a\r"], ["<S>", "", "a"], (0, -1, -1)),  # outer whitespace is stripped, blank lines count
    (["a"], ["a"], (-1, -1, -1)),
])
def test_lines_and_their_ids(tmp_path, name, lines, words, specials):
    vocabulary = Vocabulary(write(tmp_path, lines, name), validate_file=lines is WORDS)
    assert [vocabulary.id_to_word(k) for k in range(vocabulary.size)] == words
    assert (len(vocabulary), vocabulary.bos, vocabulary.eos, vocabulary.unk) == (len(words), *specials)
    last = {word: number for number, word in enumerate(words)}
    assert {word: vocabulary.word_to_id(word) for word in words} == last
    assert words[0] in vocabulary and "cat" not in vocabulary and vocabulary.decode([0]) == words[0]
    unknown = specials[2]
    assert vocabulary.encode("a b").tolist() == [specials[0], last.get("a", unknown), unknown, specials[1]]


@pytest.mark.parametrize("missing", ["<S>", "</S>", "<UNK>"])
def test_validation_names_the_special_word_that_is_missing(tmp_path, missing):
    path = write(tmp_path, [word for word in WORDS if word != missing])
    with pytest.raises(ValueError, match=f"{path}.*missing {missing}$"):
        Vocabulary(path, validate_file=True)
    if missing != "<UNK>":
        with pytest.raises(ValueError, match=f"missing {missing}$"):
            UnicodeCharsVocabulary(path, 50)


@pytest.mark.parametrize("name, content, expected", [
    ("vocab.txt.gz", b"the\n", ": expected a complete gzip file, got {}"),
    ("vocab.txt.gz", gzip.compress(b"the\n" * 90, mtime=0)[:-20], ": expected a complete gzip file, got {}"),
    ("vocab.txt.xz", lzma.compress(b"the\n" * 90)[:-20], ": expected a complete xz file, got {}"),
    ("vocab.txt.bz2", b"the\n", ": expected a complete bzip2 file, got {}"),
    ("vocab.txt.gz", gzip.compress(b"a\n" * (17 << 20)), " {}: expected at most 33,554,432 bytes when unpacked"),
    ("vocab.txt", b"caf\xe9\n", " {}: expected UTF-8")])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"vocabulary{expected.format(path)}"):
        Vocabulary(path)


def test_character_ids_of_words(tmp_path):
    vocabulary = UnicodeCharsVocabulary(write(tmp_path, WORDS), 5)
    assert vocabulary.word_char_ids.tolist() == [
        [258, 116, 104, 101, 259],
        [258, 46, 259, 260, 260],
        [258, 196, 128, 116, 259],
        [258, 256, 259, 260, 260],
        [258, 257, 259, 260, 260],
        [258, 60, 85, 78, 259],
    ]
    assert vocabulary.word_char_ids.dtype == np.int32 and vocabulary.max_word_length == 5
    assert vocabulary.word_to_char_ids("thhhh").tolist() == [258, 116, 104, 104, 259]
    assert vocabulary.word_to_char_ids("</S>").tolist() == vocabulary.eos_chars.tolist()


@pytest.mark.parametrize("reverse, first, last", [(False, 256, 257), (True, 257, 256)])
def test_encode_chars(tmp_path, reverse, first, last):
    vocabulary = UnicodeCharsVocabulary(write(tmp_path, WORDS), 4)
    expected = [[258, first, 259, 260], [258, 97, 259, 260], [258, 46, 259, 260], [258, last, 259, 260]]
    for sentence, split in (("a .", True), (["a", "."], False)):
        ids = vocabulary.encode_chars(sentence, reverse=reverse, split=split)
        assert ids.tolist() == expected and ids.dtype == np.int32
    assert vocabulary.encode_chars("", reverse=reverse).tolist() == [expected[0], expected[-1]]
