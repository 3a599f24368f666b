"""Every code block of README and docs runs, on a small model; slow commands are checked for the names in them."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import recorded, tokenization
from elmo_fast import LoadedElmo, cli, load, open_embeddings
from tests.support import docs
from tests.support.files import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "elmo_fast/pretrained/README.md",
         *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
# Pages whose code is run elsewhere, and where.
ELSEWHERE = {"docs/integrations.md": "tests/integrations, with the real libraries",
             "docs/scaling.md": "tests/scale, with Ray, and below",
             "docs/formats.md": "tests/integrations, with the real libraries",
             "docs/serving.md": "tests/serve, against a server",
             "elmo_fast/pretrained/README.md": "nowhere: the training of the bundled model takes days"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "world"
    docs.write_world(folder)
    return folder


class Task(torch.nn.Linear):
    """The user's own model in docs/migrating.md: vectors to a loss."""

    def forward(self, vectors):
        return super().forward(vectors).sum()


NAMES = {"docs/migrating.md": {"task": Task(10, 1), "batches": [[["First", "."], ["Second", "."]]]}}


SLOW = ["docs/performance.md", "docs/pictures.md"]
WITH_CODE = [page for page in PAGES if page not in ELSEWHERE and docs.blocks(page, "python", "bash")]


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=pytest.mark.long if page in SLOW else ()) for page in WITH_CODE])
def test_the_code_of_a_page(page, world, tmp_path, monkeypatch):
    shutil.copytree(world, tmp_path / "page")
    monkeypatch.chdir(tmp_path / "page")
    docs.run_page(page, dict(NAMES.get(page, {})))


def test_paths_of_the_architecture_exist():
    """Paths in backquotes start at the root or at elmo_fast/, or are a file's name alone (in the text on ops)."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"`([\w./]+(?:/|\.(?:py|h|cpp|cuh|txt|toml)))`", text) if "NAME" not in path}
    names = {path.name for folder in ("elmo_fast", "csrc", "kernels") for path in (ROOT / folder).rglob("*.*")}
    assert len(paths) > 40
    assert [path for path in paths if not ((ROOT / path).exists() or (ROOT / "elmo_fast" / path).exists()
                                           or ("/" not in path and path in names))] == []


def test_the_reference_of_the_command_has_every_subcommand():
    """docs/hooks.py inserts the parser's help at the name of a subcommand."""
    page = (ROOT / "docs/command.md").read_text(encoding="utf-8")
    (commands,) = (action.choices for action in cli.make_parser()._actions if isinstance(action.choices, dict))
    assert sorted(re.findall(r"^<!-- command: (.+) -->$", page, re.MULTILINE)) == sorted(commands)


def test_the_rule_of_defaults():
    """That of docs/choosing.md on tokenizers and states, for commands and Python."""
    (commands,) = (action.choices for action in cli.make_parser()._actions if isinstance(action.choices, dict))
    files = {"embed": "in.txt out.h5", "score": "in.txt", "substitutes": "in.txt", "nearest": "in.txt --word play"}
    rest = {"compare": "a b", "serve": "", "seqvec": "-i in.fasta -o out.h5"}
    given = {name: vars(commands[name].parse_args(words.split())) for name, words in (files | rest).items()}
    assert {given[name]["tokenizer"] for name in files} == {"whitespace"}
    assert {given[name].get("tokenizer", "auto") for name in rest} == {"auto"}
    assert {name for name in given if given[name]["state"] == "carry"} == {"embed", "seqvec"}
    for call in (LoadedElmo.embed, LoadedElmo.stream, LoadedElmo.encode, LoadedElmo.save_vectors):
        defaults = {name: value.default for name, value in inspect.signature(call).parameters.items()}
        assert (defaults["state"], defaults["tokenizer"]) == ("warm", "auto")


def test_the_cosine_of_a_word_with_its_period():
    """That of docs/input.md."""
    first, second = load().encode_words(["play", "play."])
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    page = " ".join((ROOT / "docs/input.md").read_text(encoding="utf-8").split())
    assert f"with the bundled model their cosine is {cosine:.2f})" in page


@pytest.mark.parametrize("page", [*PAGES, "Dockerfile"])
def test_commands_have_their_flags(page):
    """In any block, also one that no test runs, and in sentences."""
    (commands,) = (action.choices for action in cli.make_parser()._actions if isinstance(action.choices, dict))
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    for name, rest in re.findall(r"\belmo-fast ([a-z-]+)([^`\n]*)", text):
        known = commands[name]._option_string_actions if name in commands else {}
        assert set(re.findall(r"(?<=\s)--[a-z][\w-]*", rest)) <= {*known}, (name, rest)


@pytest.mark.long
def test_the_shell_code_of_large_corpora(tmp_path):
    """As written, but for the numbers of processes and cores and the GPUs, in bash."""
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "corpus").mkdir()
    for part in ("00", "10"):
        parquet.write_table(pa.table({"text": ["It rained.", "They don't play."]}),
                            tmp_path / "corpus" / f"{part}.parquet")
    (tmp_path / "corpus.txt").write_text("It rained .\nThey play .\n" * 20)
    expected = load().encode(["It rained.", "They don't play."])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for _, code in docs.blocks("docs/scaling.md", "bash"):
        for pattern, ours in (("taskset -c \\S+", ""), (" --device cuda:.LOCAL_RANK", ""), ("-n l/8", "-n l/2"),
                              ("--nproc-per-node 8", "--nproc-per-node 2")):
            code = re.sub(pattern, ours, code)
        process = subprocess.run(["bash", "-euc", code], cwd=tmp_path, env={**os.environ, "PATH": path},
                                 capture_output=True, text=True)
        assert process.returncode == 0, code + process.stderr
    for folder, copies in (("vectors", 2), ("vectors-0", 1), ("vectors-1", 1)):
        with open_embeddings(tmp_path / folder) as stored:
            np.testing.assert_array_equal(np.stack(list(stored)), np.tile(expected, (copies, 1)))
    for rank in range(2):
        with open_embeddings(tmp_path / f"vectors.{rank}.h5") as stored:
            assert len(stored) == 20


def test_the_compose_file_has_flags_of_serve():
    block, = (code for _, code in docs.blocks("docs/serving.md", "text") if code.startswith("services:"))
    arguments = cli.make_parser().parse_args(["serve", *re.search("command: (.*)", block)[1].split()])
    assert (arguments.model, arguments.api_key_file) == ("original", "/run/key")
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "ELMO_FAST_CACHE=/home/elmo/models" in dockerfile and "models:/home/elmo/models" in block


@pytest.mark.parametrize("page", PAGES)
def test_blocks_have_a_language_and_links_a_target(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    opened = re.findall(r"^```(\w*)$", text, re.MULTILINE)[::2]
    assert set(opened) <= {"python", "bash", "text", "json", "html", "dockerfile"}, opened
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.long
def test_the_table_of_tokenizers(shared, monkeypatch, capsys):
    """docs/input.md has what `python -m benchmarks.tokenization` prints."""
    files = [*sorted((shared / "text").glob("*.conllu")), shared / "corpus" / "heldout.txt"]
    monkeypatch.setattr(sys, "argv", ["tokenization", *map(str, files)])
    tokenization.main()
    assert capsys.readouterr().out == recorded.text("tokenizers")
