"""Run the notebooks of examples/ in place, and save their pictures here: `make pictures` does it.

    python docs/pictures/notebooks.py [first_vectors ...]

needs nbclient, ipykernel and matplotlib. Times, versions and identifiers of cells, which differ in every run, are not
saved.
"""

import argparse
import base64
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PICTURES = Path(__file__).resolve().parent
FOLDER = PICTURES.parents[1] / "examples"
SECONDS = 560  # for one cell, on a busy machine


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in a new kernel; `CellExecutionError` for a cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(path.parent)}},
                            record_timing=False, extra_arguments=["--log-level=ERROR"])
    return client.execute()


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The same cells and outputs, with numbers as identifiers and without the metadata of a run."""
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
                         "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    return notebook


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    """The PNG files among the outputs, in order."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [base64.b64decode(output.data["image/png"]) for output in outputs if "image/png" in output.get("data", {})]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks, without .ipynb (default: all)")
    for name in parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        notebook = clean(run(path))
        nbformat.write(notebook, path)
        for number, picture in enumerate(pictures(notebook), start=1):
            (PICTURES / f"{name}_{number}.png").write_bytes(picture)
        print(f"{name}: {len(pictures(notebook))} pictures, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
