"""Bounds of the tree, and its lines by room: `python -m tests.support.weight` prints the table of CONTRIBUTING.md."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import PurePosixPath

from tests.support.files import ROOT

FILE, ROOM, FUNCTION, LIST = 350, 12, 40, 10  # lines, files, lines, arguments
PRODUCT, TESTS, WORDS = 32_080, 27_000, 35_000
_SOURCES = (".py", ".h", ".cpp", ".cu", ".cuh", ".js", ".css", ".html")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def tree():
    """The text of all files under version control, and of new ones that git does not ignore, by path."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, text=True,
                            capture_output=True).stdout.split("\n")
    paths = [path for path in listed if path.endswith((*_SOURCES, ".md")) and (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


def is_product(path):
    return path.endswith(_SOURCES) and path.split("/")[0] in ("elmo_fast", "csrc", "kernels")


def is_test(path):
    return path.startswith("tests/") and path.endswith(_SOURCES)


def is_document(path):
    return path.endswith(".md") and not path.startswith("benchmarks/results/")


def breaches(files):
    """One line for every file, room, function and argument list of the product beyond its bound."""
    product = {path: text for path, text in files.items() if is_product(path)}
    messages = [f"{path}: {lines} lines" for path, text in product.items() if (lines := text.count("\n")) > FILE]
    rooms = Counter(str(PurePosixPath(path).parent) for path in product)
    messages += [f"{room}/: {count} files" for room, count in rooms.items() if count > ROOM]
    for path, text in product.items():
        if path.startswith("elmo_fast/") and path.endswith(".py"):
            messages += [f"{path}:{line}" for line in _functions(text)]
    return sorted(messages)


def _functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _FUNCTIONS):
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION:
                yield f"{node.lineno}: {node.name} has {lines} lines"
            listed = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len(listed) - (listed[:1] in (["self"], ["cls"]))
            if count > LIST:
                yield f"{node.lineno}: {node.name} has {count} arguments"


def totals(files):
    """Lines of the product, lines of the tests, and words of the documents."""
    def lines(kind):
        return sum(text.count("\n") for path, text in files.items() if kind(path))

    return (lines(is_product), lines(is_test),
            sum(len(text.split()) for path, text in files.items() if is_document(path)))


def rooms(files):
    """(kind, room) -> lines of sources in a room of the product or of the tests, words of documents in a folder."""
    counts = Counter()
    for path, text in files.items():
        parts = path.split("/")
        if is_product(path):
            counts["product", "/".join(parts[: 2 if len(parts) > 2 else 1])] += text.count("\n")
        elif is_test(path):
            counts["tests", "/".join(parts[: 2 if len(parts) > 2 else 1])] += text.count("\n")
        elif is_document(path):
            counts["documents (words)", parts[0] if len(parts) > 1 else "."] += len(text.split())
    return dict(sorted(counts.items()))


def table(counts):
    """The rooms as Markdown."""
    lines = [f"| {kind} | `{room}` | {count:,} |" for (kind, room), count in counts.items()]
    return "\n".join(["| what | room | lines |", "|---|---|---|", *lines])


def read_table(text):
    """The rooms of the table between the markers in a page."""
    inside = re.search(r"<!-- weight -->(.*?)<!-- /weight -->", text, re.DOTALL)[1]
    return {(kind, room): int(count.replace(",", ""))
            for kind, room, count in re.findall(r"^\| ([^|]+) \| `([^|`]+)` \| ([\d,]+) \|$", inside, re.MULTILINE)}


def differences(stated, actual):
    """Rooms whose stated lines are more than 3 % from their lines, and rooms that one side lacks."""
    return [f"{kind}, {room}: {stated.get((kind, room), 0):,} in the table, {actual.get((kind, room), 0):,} in the tree"
            for kind, room in sorted(stated.keys() | actual.keys())
            if abs(stated.get((kind, room), 0) - actual.get((kind, room), 0)) > 0.03 * actual.get((kind, room), 0)]


if __name__ == "__main__":
    print(table(rooms(tree())))
