"""The code of README and docs, to be run: Python blocks in one namespace a page, shell blocks line by line."""

import contextlib
import io
import json
import re
import shlex
import tomllib
from pathlib import Path

import torch

from elmo_fast import Elmo, cli
from tests.support.files import ROOT
from tests.support.training import TINY

# Flags that keep a documented command short.
_SMALLER = {"--from-model": " --negatives 9 --max-steps 2 --batch-size 3", "elmo-fast bench": " --seconds 1"}
_SENTENCES = ["The children play in the garden .", "A new play opened last night .", "She saw the bank of the river ."]


def blocks(page, *languages):
    """(language, code) of the fenced blocks of a page of those languages, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    matches = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(language, code) for language, code in matches if language in languages]


def write_world(folder: Path) -> None:
    """Write the files that the pages name: texts, a vocabulary, and a small trained model with its softmax."""
    (folder / "text").mkdir(parents=True)
    (folder / "text" / "one.txt").write_text("\n".join(_SENTENCES * 20) + "\n", encoding="utf-8")
    (folder / "domain").mkdir()
    (folder / "domain" / "one.txt").write_text("\n".join(_SENTENCES * 9) + "\n", encoding="utf-8")
    (folder / "heldout.txt").write_text("\n".join(_SENTENCES * 90) + "\n", encoding="utf-8")
    for name in ("sentences.txt", "text.txt"):
        (folder / name).write_text("\n".join(_SENTENCES) + "\n", encoding="utf-8")
    (folder / "proteins.fasta").write_text(">sp|P1|ONE\nMKVLA\n>sp|P2|TWO\nMKV\n", encoding="utf-8")
    content = {**TINY, "char_cnn": {**TINY["char_cnn"], "max_characters_per_token": 50}, "n_epochs": 1, "max_steps": 3}
    (folder / "options.json").write_text(json.dumps(content), encoding="utf-8")
    with contextlib.chdir(folder):
        for line in ("vocab 'text/*.txt' vocab.txt",
                     "train start --train 'text/*.txt' --vocab vocab.txt --options-file options.json --quiet",
                     "export start model_directory --softmax"):
            assert run_command(line) == 0, line
        (folder / "options.json").write_bytes((folder / "start" / "options.json").read_bytes())
        (folder / "weights.hdf5").write_bytes((folder / "model_directory" / "weights.hdf5").read_bytes())
        torch.save(Elmo("options.json", "weights.hdf5", 1).state_dict(), "weights.th")


def run_command(line: str) -> int:
    """Exit status of `elmo-fast` with these arguments, run in this process; the output is dropped."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        return cli.main(shlex.split(line))
    return cli.REFUSED


def shell_lines(code: str) -> list[str]:
    """Commands of a shell block, without comments and continued lines joined."""
    return [line for line in (re.sub(r"(^|\s)#.*$", "", line).strip() for line in code.replace("\\\n", " ").split("\n"))
            if line]


def check_other_command(line: str) -> None:
    """Check the files, targets and flags of a command that needs minutes, a network or another machine."""
    words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=.*", word) or "make" not in line]
    program, *arguments = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    program = Path(program).name
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets), line
    elif program in ("pip", "pipx", "uvx"):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = [extra for group in re.findall(r"\[([\w,-]+)\]", line) for extra in group.split(",")]
        assert set(extras) <= set(project["optional-dependencies"]), line
    elif "-m" in arguments:
        module = arguments[arguments.index("-m") + 1]
        if module == "pytest":
            assert all((ROOT / word).exists() for word in arguments if "/" in word), line
            return
        path = ROOT / module.replace(".", "/")
        source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__main__.py"
        flags = [word.split("=")[0] for word in arguments if word.startswith("--") and program != "torchrun"]
        text = source.read_text(encoding="utf-8") + (ROOT / "benchmarks/common.py").read_text(encoding="utf-8")
        assert all(f'"{flag}"' in text for flag in flags), line
    else:
        script = next(word for word in (line.split()[0], *arguments) if "/" in word)
        assert (ROOT / script).is_file(), line


def run_page(page: str, names: dict) -> None:
    """Run the page's blocks in the current folder; `names` are the names that its Python code presupposes."""
    for language, code in blocks(page, "python", "bash"):
        if language == "python":
            exec(compile(code, page, "exec"), names)
            continue
        for line in shell_lines(code):
            if line.startswith("elmo-fast ") and "import-tf" in code:  # run, with TensorFlow, in tests/train
                cli.make_parser().parse_args(shlex.split(line)[1:])
            elif line.startswith("elmo-fast "):
                smaller = next((flags for part, flags in _SMALLER.items() if part in line), "")
                assert run_command(line.removeprefix("elmo-fast ") + smaller) == 0, f"{page}: {line}"
            else:
                check_other_command(line)


def run_documented_code(library):
    """Run the library's block in docs/integrations.md, and its README line with the same imports: names of both."""
    page = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {library}\n")[1].split("\n## ")[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    names, fresh = {}, {}
    exec(code, names)
    imports = [line for line in code.splitlines() if line.startswith(("import ", "from "))]
    line = re.search(rf"^\| {library} \| `(.*)` \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    exec("\n".join([*imports, line]), fresh)
    return names, fresh
