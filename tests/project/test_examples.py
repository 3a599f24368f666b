"""The examples run on the bundled model and print their figures; sizes are cut where an example allows it."""

import os
import re

import pytest

from tests.support.files import ROOT, python


def run(*arguments):
    return python(*arguments, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "2")).stdout


def test_the_readmes_three_lines():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) == 3
    exec(code, names := {})
    embedded = [list(part.shape) for part in names["elmo"].embed(eval(re.search(r"encode\((.*)\)", code)[1]))]
    assert (names["vectors"] != 0).all() and embedded == [embedded[0]] * 2
    text = " ".join(readme.split())
    assert f"one vector a sentence, `{list(names['vectors'].shape)}`" in text and f"here `{embedded[0]}` twice" in text


def test_each_library_of_the_readmes_table_has_a_test_that_runs_its_line():
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("| library | |\n|---|---|\n")[1].split("\n\n")[0]
    libraries = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/integrations").glob("test_*.py"))
    assert sorted(libraries) == sorted(re.findall(r'run_documented_code\("(.*?)"\)', tests))


@pytest.mark.long
def test_tagger(shared):
    out = run("examples/tagger.py", "--text", shared / "text", "--sentences", 150, "--epochs", 3)
    figures = {name.strip(): float(value) for name, value in re.findall(r"^(.*?)\s+([\d.]+)% of", out, re.MULTILINE)}
    assert figures["this model"] > 30 and set(figures) == {"this model", "random weights"}


@pytest.mark.long
def test_sentiment(shared):
    out = run("examples/sentiment.py", "--text", shared / "text", "--sentences", 150, "--epochs", 0.5)
    rows = re.findall(r"^(\w.*\S)\s+([\d.]+)%\s+([\d.]+)%$", out, re.MULTILINE)
    assert {name.split(", ")[0] for name, *_ in rows} == {"tuned", "as it came", "random weights"} and len(rows) == 6
    assert all(30 < float(value) <= 100 for _, *values in rows for value in values)
