"""Networks as compact files: NumPy's .npz with all layers behind each other, columns in as few bits as they need."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from sparsegen import arguments
from sparsegen.errors import MatrixError, SparsegenError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.readers.files import check_readable
from sparsegen.networks.model.network import Network
from sparsegen.system.numpy_load import load_numpy
from sparsegen.system.numpy_types import Array
from sparsegen.system.publish import publish_file, reported

VERSION = 1
MOST_LAYERS = 1 << 20
NEURON_BYTES, EDGE_BYTES = 16, 8  # in memory: a bias and an offset, a column and a value
ITEM_BYTES, HEADER_BYTES = 8, 10_000  # at most: of a number, and of what NumPy writes before an array
NAMES = ("version", "widths", "lengths", "columns", "values", "biases", "clip")


def save_network(network: Network, file: str | Path) -> None:
    """Write a network; the file appears whole.

    Values and biases that are all equal are stored once.

    Raises:
        OutputError: it cannot be written.
    """
    file = Path(arguments.location(file, "file"))
    columns = np.concatenate([layer.column_indices for layer in network.layers])
    with reported(file), publish_file(file) as stream:
        np.savez(
            stream,
            version=np.array(VERSION),
            widths=np.array([network.inputs, *(layer.shape[0] for layer in network.layers)]),
            lengths=np.concatenate([np.diff(layer.row_offsets) for layer in network.layers]),
            columns=columns.astype(np.uint16 if network.neurons <= 1 << 16 else np.int32),
            values=_once(np.concatenate([layer.values for layer in network.layers]).astype(np.float32)),
            biases=_once(np.concatenate(network.biases)),
            clip=np.array(network.clip),
        )


def load_network(file: str | Path) -> Network:
    """Read what `save_network` wrote.

    Raises:
        MatrixError: there is none, it is something else, cut off, or damaged.
    """
    file = Path(arguments.location(file, "file", MatrixError))
    check_readable(file)
    try:
        stored = load_numpy(file)
        if isinstance(stored, np.ndarray):
            raise ValueError("it holds one array")
        with stored:
            if missing := [name for name in NAMES if name not in stored.files]:
                raise ValueError(f"it has no {', '.join(missing)}; it holds {', '.join(stored.files)}")
            arrays = _arrays(stored, MemoryBudget.of_machine(str(file)))
    except (OSError, ValueError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise MatrixError(f"no file of a network, or cut off: {error}", source=str(file)) from None
    if arrays["version"].shape or arrays["version"] != VERSION:
        raise MatrixError(f"is of version {arrays['version']}, expected {VERSION}", source=str(file))
    try:
        return _network(arrays)
    except (IndexError, TypeError, ValueError, SparsegenError) as error:
        raise MatrixError(f"is damaged: {error}", source=str(file)) from None


def _arrays(stored: NpzFile, budget: MemoryBudget) -> dict[str, Array]:
    """The arrays, each of a size that those before it tell, so that few bytes do not become many in vain.

    Raises:
        ValueError: one of them is larger.
        MatrixError: together they do not fit in memory.
    """
    found: dict[str, Array] = {}
    archive = stored.zip
    assert archive is not None  # it is open

    def read(name: str, most: int) -> Array:
        nbytes = archive.getinfo(f"{name}.npy").file_size
        if nbytes > ITEM_BYTES * most + HEADER_BYTES:
            raise ValueError(f"its {name} take {nbytes} bytes, of {most} numbers at most")
        found[name] = stored[name]
        return found[name]

    read("version", 1)
    read("clip", 1)
    neurons = int(read("widths", MOST_LAYERS)[1:].sum())
    budget.require(NEURON_BYTES * neurons, "the network's neurons")
    edges = int(read("lengths", neurons).sum())
    budget.require(NEURON_BYTES * neurons + EDGE_BYTES * edges, "the network")
    read("columns", edges)
    read("values", max(1, edges))
    read("biases", max(1, neurons))
    return found


def _network(arrays: dict[str, Array]) -> Network:
    widths, lengths = arrays["widths"].astype(np.int64), arrays["lengths"].astype(np.int64)
    columns = arrays["columns"]
    values = np.broadcast_to(arrays["values"], columns.shape)
    biases = np.broadcast_to(arrays["biases"], lengths.shape)
    layers, of_layers, row, nonzero = [], [], 0, 0
    for before, width in zip(widths[:-1].tolist(), widths[1:].tolist(), strict=True):
        own = lengths[row : row + width]
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(own)))
        part = slice(nonzero, nonzero + int(offsets[-1]))
        layers.append(CsrMatrix((width, before), offsets, columns[part], values[part]))
        of_layers.append(biases[row : row + width])
        row, nonzero = row + width, part.stop
    if row != lengths.size or nonzero != columns.size:
        raise ValueError("widths, lengths and columns do not fit each other")
    return Network.of(layers, of_layers, float(arrays["clip"]))


def _once(array: Array) -> Array:
    """One element where all are equal."""
    return array[:1] if array.size and (array == array[0]).all() else array
