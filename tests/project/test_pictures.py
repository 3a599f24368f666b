"""The numbers on the docs' pictures, and in the docs' sentences, are those of the bundled model today."""

import hashlib
import json
import re

import numpy as np
import pytest

import elmo_fast
from elmo_fast import ContextIndex, compare
from tests.support.files import ROOT, run

PICTURES, CORPUS = ROOT / "docs" / "pictures", ROOT / "examples" / "senses.txt"
DRAWN = json.loads((PICTURES / "numbers.json").read_text(encoding="utf-8"))
FIRST, SECOND = "The children play in the garden .", "A new play opened last night ."  # as in make.py


@pytest.fixture(scope="module")
def elmo():
    return elmo_fast.load(device="cpu")


def assert_drawn(name, expected):
    """Numbers agree in the digits of the picture except the last, where both may be rounded."""
    numbers = DRAWN[name]["numbers"]
    digits = np.array([len(number.partition(".")[2]) for number in numbers])
    assert len(numbers) == len(expected)
    assert (np.abs(np.array(numbers, float) - expected) <= 1.01 * 10.0**-digits).all()


@pytest.mark.parametrize("name", DRAWN)
def test_the_numbers_are_of_this_picture(name):
    assert hashlib.sha256((PICTURES / name).read_bytes()).hexdigest() == DRAWN[name]["sha256"]


def test_the_readme_shows_the_output_of_its_command(capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command, = re.findall(r"^elmo-fast compare (.*) -o compare.png$", readme, re.MULTILINE)
    table = run(capsys, "compare", *re.findall('"(.*?)"', command), "--device", "cpu")[1]
    assert_drawn("compare.png", [float(number) for number in re.findall(r"-?\d\.\d{4}", table)])


def test_nearest_contexts_are_those_of_the_command(capsys):
    rows = run(capsys, "nearest", CORPUS, "--word", "play", "--top", "5", "--device", "cpu")[1]
    assert_drawn("nearest.png", [float(row.split("\t")[0]) for row in rows.splitlines() if row[:5] != "query"])


@pytest.mark.parametrize("name", ["page.png", "page-phone.png"])
def test_the_page_shows_cosines_of_the_model(elmo, name):
    comparison = compare(elmo, FIRST, SECOND)
    layers, mixed = comparison.layers(), comparison.mixed([1 / 3] * 3)
    index = ContextIndex.build(elmo, CORPUS.read_text(encoding="utf-8").splitlines())
    play, among = elmo.embed([SECOND], "average")[0][2], index.occurrences("play")
    near = [each.similarity for each in index.nearest(play, 10, among=among)]
    # The mixture, the sentences, the first cell in the mixture and in every layer, the layers, the nearest contexts.
    assert_drawn(name, [*mixed.ravel(), elmo.similarity(FIRST, SECOND), mixed[0, 0], *layers[:, 0, 0], *layers.ravel(),
                        *near])
