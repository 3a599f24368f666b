"""Files import from lower floors only, and without cycles; the test reads the sources with `ast`."""

import ast
from graphlib import CycleError, TopologicalSorter

from tests.support.files import ROOT

# The package itself is above its exports and below the command. BASEMENT: by the room that imports it in functions.
FLOORS = {"errors": -4, "arguments": -3, "environment": -3, "files": -2,
          "kernels": -1, "_native": -1, "_build_info": -1, "text": 0, "weights": 1, "vectors": 1, "engine": 2, "ops": 3,
          "nn": 4, "embed": 5, "train": 5, "explore": 6, "compat": 7, "serve": 7, "scale": 7, "integrations": 7,
          "bench": 7, "testing": 7, "": 8, "cli": 9}
BASEMENT = {"kernels": "ops", "_native": "engine", "_build_info": "engine"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _module(path):
    """elmo_fast/ops/linear.py -> elmo_fast.ops.linear; kernels/highway.py -> elmo_fast.kernels.highway."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "elmo_fast" else ("elmo_fast", *parts))


def _folder(module):
    """elmo_fast.ops.linear -> ops; elmo_fast -> the empty name; a `__main__` is part of the command."""
    return "cli" if module.endswith(".__main__") else [*module.removesuffix(".__init__").split("."), ""][1]


def _imported_names(node):
    """(module, name) pairs that a syntax node imports."""
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        return [(arg.value, None) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return []


def _imports(node, modules, lazy=False):
    """(target module, inside a function?) of every import of the project's own code below a node."""
    for base, name in _imported_names(node):
        joined = f"{base}.{name}"
        is_module = name and (joined in modules or f"{joined}.__init__" in modules or _folder(joined) in BASEMENT)
        target = joined if is_module else base
        if target.split(".")[0] in ("elmo_fast", "kernels", ""):
            yield (f"{target}.__init__" if f"{target}.__init__" in modules else target), lazy
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, modules, lazy or isinstance(node, FUNCTIONS))


def _breach(module, target, lazy):
    importer, imported = _folder(module), _folder(target)
    if target.startswith("."):
        return "a relative import, which this test does not follow"
    if target.split(".")[0] == "kernels":
        return "the kernels are imported as elmo_fast.kernels"
    if importer not in FLOORS or imported not in FLOORS:
        return f"{(importer if importer not in FLOORS else imported)!r} belongs to no floor"
    if imported == "cli" != importer:
        return "nothing imports cli"
    if imported == "testing" != importer:
        return "testing is for tests and benchmarks"
    if importer != imported and imported in BASEMENT and not (importer == BASEMENT[imported] and lazy):
        return f"{imported} is for {BASEMENT[imported]} alone, inside a function"
    if importer != imported and FLOORS[imported] >= FLOORS[importer]:
        return f"floor {FLOORS[imported]} is not below floor {FLOORS[importer]}"
    return None


def breaches(files):
    """One line for every breach in `files`, a dict of module name -> source."""
    lines, graph = [], {}
    for module, text in files.items():
        tree = ast.parse(text)
        edges = set(_imports(tree, files))
        graph[module] = {target for target, _ in edges}
        lines += [f"{module} -> {target}: {reason}" for target, lazy in sorted(edges)
                  if (reason := _breach(module, target, lazy))]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        lines.append(f"cycle: {' -> '.join(error.args[1])}")
    return lines


def test_no_import_breaks_the_rules():
    paths = [*ROOT.glob("elmo_fast/**/*.py"), *ROOT.glob("kernels/*.py")]
    files = {_module(path): path.read_text(encoding="utf-8") for path in paths if path.stem != "_build_info"}
    assert {"elmo_fast.__init__", "elmo_fast.kernels.__init__"} <= files.keys()
    assert breaches(files) == []
