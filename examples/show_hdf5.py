"""Print what an HDF5 file of embeddings holds: python examples/show_hdf5.py embeddings.hdf5"""

import sys

import h5py

SHOWN = 20


def describe(dataset: h5py.Dataset) -> str:
    """The shape and type of a dataset of numbers, the text of a dataset of strings."""
    if h5py.check_string_dtype(dataset.dtype) is None:
        return f"{'x'.join(map(str, dataset.shape)) or 'scalar'} {dataset.dtype}"
    text = ", ".join(map(str, dataset.asstr()[...].ravel()))
    return text if len(text) <= 80 else f"{text[:77]}..."


def order(item) -> tuple:
    """Sentences by number, everything else before them."""
    name = item[0]
    return (1, int(name), name) if name.isdecimal() else (0, 0, name)


def main(path: str) -> None:
    with h5py.File(path, "r") as file:
        datasets = []
        file.visititems(lambda name, item: datasets.append((name, item)) if isinstance(item, h5py.Dataset) else None)
        print(f"{path}: {len(datasets)} datasets")
        for name, dataset in sorted(datasets, key=order)[:SHOWN]:
            print(f"  {name}: {describe(dataset)}")
        if len(datasets) > SHOWN:
            print(f"  ... and {len(datasets) - SHOWN} more")


if __name__ == "__main__":
    main(*sys.argv[1:])
