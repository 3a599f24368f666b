# ruff: noqa: RUF001
import random
import re
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_fast.text.tokenizers import find_tokenizer, is_tokenized

auto, penn, simple = map(find_tokenizer, ("auto", "penn", "simple"))
PIECES = ["don't", "n't", "'s", "it's", "Mr.", "U.S.", "e.g.", "I.", "J.", "No.", "5", "3.5", "1,000", "...", "—", "--",
          "-", "(", ")", '"', "'", "’", "‘", "“", "”", "…", "o'clock", "well-known", "a@b.c", "http://x.y/z", "www.",
          "&amp;", "<S>", "</S>", "<", "क्षि", "中文。", "é", "п’ять", "7:30", "9/11", "!?", "\u200d", "\u0301", "😀",
          " ", " ", "\n", ".", ",", "x", "ca", "N'T"]

LONG_SPACE = " " * 70_000

RAW = {
    LONG_SPACE + "Stop there.": "Stop there .",
    "They saw a play.": "They saw a play .",
    "“I can’t go—now… Really?” she said.": '" I ca n\'t go — now ... Really ? " she said .',
    "Mr. Fink-Nottle's play (at 7:30 p.m.) didn't cost $3.50, did it?":
        "Mr. Fink-Nottle 's play ( at 7:30 p.m. ) did n't cost $ 3.50 , did it ?",
    "He left the U.S. in 1990. It's No. 5; I said no.": "He left the U.S. in 1990 . It 's No. 5 ; I said no .",
    "DON'T! We'll see: they've 1,000 at nine o'clock": "DO N'T ! We 'll see : they 've 1,000 at nine o'clock",
    "Ask a.b@c.de, or http://x.org/y?z=1.": "Ask a.b@c.de , or http://x.org/y?z=1 .",
    "I don't know!": "I do n't know !", "He said (and meant) it": "He said ( and meant ) it",
    "вона сказала: п’ять.": "вона сказала : п’ять .", "वह गया।": "वह गया ।",
    "cafe\u0301, naïve.": "cafe\u0301 , naïve .",
    "<S> said: Tom &amp; I.": "<S> said : Tom &amp; I ."}
TOKENIZED = ["They did n't see Mr. Fink-Nottle 's play .", "I ate an apple", "", " ", ". . .", "in the U.S.",
             "He left at 7 p.m.", 'He said : " No , thanks ! " ( so did I ) .', "l' homme n' est pas là .", "我爱你。",
             "สวัสดีครับ", "@-@ <unk> 3.5 % :)", "Tom &amp; I &quot; x &quot;", "and so on etc.", "rock 'n' roll ...",
             "I don't know , it's late ."]


@pytest.mark.parametrize("text, tokens", RAW.items())
def test_raw_text_is_tokenized_as_in_the_penn_treebank(text, tokens):
    assert not is_tokenized(text) and " ".join(auto(text)) == " ".join(penn(text)) == tokens


@pytest.mark.parametrize("text", TOKENIZED)
def test_tokenized_text_is_split_at_whitespace(text):
    assert is_tokenized(text) and auto(text) == text.split()


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text(max_size=20),
                 st.text("aI.n't' ’-5@&;,\"(\u0301п/", max_size=14)))
def test_tokens_are_tokenized_into_themselves(text):
    """Only whitespace is lost, apart from straightened quotes and ellipses."""
    for tokenize in (penn, auto):
        tokens = tokenize(text)
        assert tokenize(" ".join(tokens)) == tokens and all(tokens)
    straight = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "…": "..."})
    assert "".join(penn(text)).translate(straight) == re.sub(r"\s", "", text).translate(straight)


def test_long_texts_take_linear_time():
    """Repetitions on which a search could restart at every character, as clients of the server may send them."""
    for piece in ("a.", "a@", "a&", "n't", "(", "don't", "www.!", "x'", "\u0301", "A. ", "((a"):
        text = piece * (50_000 // len(piece))
        began = time.process_time()
        tokens = penn(text), is_tokenized(text)
        assert time.process_time() - began < 3, piece
        assert "".join(tokens[0]) == text.replace(" ", "")


@pytest.mark.parametrize("tokenize", [penn, simple])
@pytest.mark.parametrize("piece", ["1,", "x-", "a\U00011001"])
def test_a_very_long_word_is_divided(piece, tokenize):
    """A match blocks the interpreter and so the other threads of a server."""
    text = piece * 100_000 + "1"
    began = time.process_time()
    tokens = tokenize(text)
    assert time.process_time() - began < 3 and "".join(tokens) == text
    assert max(map(len, tokens)) <= 50_000


@pytest.mark.long
@pytest.mark.parametrize("tokenize", [auto, penn, simple])
@pytest.mark.parametrize("piece", [" ", "1,", "a.", "\U00011001", "\u2019", "x\u2019 ", "J. "])
def test_a_long_text_does_not_hold_the_interpreter(piece, tokenize):
    """Processor time of the process while another thread wants to run, which other processes do not change."""
    text, pauses, is_done = "They" + piece * 1_000_000, [0.0], threading.Event()
    thread = threading.Thread(target=_watch, args=(pauses, is_done))
    thread.start()
    tokenize(text)
    is_done.set()
    thread.join()
    assert max(pauses) < 0.15


def _watch(pauses, is_done):
    while not is_done.is_set():
        began = time.process_time()
        time.sleep(0.001)
        pauses.append(time.process_time() - began)


def test_a_long_text_has_the_tokens_of_a_short_one():
    many = 9000
    assert auto("The cat sat on the mat . " * many) == "The cat sat on the mat .".split() * many
    assert auto("The cat, it sat. " * many) == "The cat , it sat .".split() * many
    draw = random.Random(0)
    texts = ["".join([*draw.choices(PIECES, k=12), " end"]) for _ in range(3000)]
    for tokenize in (penn, simple):
        assert tokenize("\n".join(texts)) == [token for text in texts for token in tokenize(text)]
