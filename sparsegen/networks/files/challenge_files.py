"""Files of the Sparse DNN Challenge: layers, images and categories as tab-separated text, numbered from one.

A layer's line is a neuron before it, a neuron of it and the weight (Y ← Y · W); an image's is its number, a pixel and
1; a category's is the number of an input that lives through all layers.
Source: graphchallenge.mit.edu, Sparse Deep Neural Network.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import scipy.sparse

from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, FAN_IN, challenge_bias
from sparsegen.system.numpy_types import Array
from sparsegen.system.publish import publish_text, reported
from sparsegen.system.quantities import counted
from sparsegen.system.regular import open_regular

LAYER_NAME = re.compile(r"n(\d+)-l(\d+)\.tsv")


def layer_file(folder: Path, neurons: int, layer: int) -> Path:
    """Path of a layer in the challenge's folders, counted from one."""
    return folder / f"n{neurons}-l{layer}.tsv"


def read_challenge(folder: Path, *, layers: int | None = None) -> Network:
    """The network of a folder of layers, with the challenge's bias and clip.

    Args:
        layers: number of layers to read; by default all of the folder.

    Raises:
        MatrixError: no layers or one that is missing, damaged or cut off; the message names file and line.
    """
    named = [m for path in folder.glob("*.tsv") if (m := LAYER_NAME.fullmatch(path.name))]
    widths = sorted({int(m[1]) for m in named})
    if len(widths) != 1:
        found = f"widths {', '.join(map(str, widths))}" if widths else "no such file"
        raise MatrixError(
            f"expected layers n<neurons>-l<number>.tsv of one width, found {found}", source=str(folder)
        )
    (neurons,) = widths
    count = max(int(m[2]) for m in named) if layers is None else layers
    for number in range(1, count + 1):
        if not layer_file(folder, neurons, number).is_file():
            raise MatrixError(f"layer {number} of {count} is missing", source=str(folder))
    made = [read_layer(layer_file(folder, neurons, i + 1), neurons) for i in range(count)]
    _require_whole(made, folder)
    return Network.of(made, challenge_bias(neurons), CLIP)


def _require_whole(layers: list[CsrMatrix], folder: Path) -> None:
    """Checks for a cut-off file: it is the only layer with fewer weights than the challenge's.

    Raises:
        MatrixError: a layer's file was cut off at the end of a line.
    """
    lacking = [i for i, layer in enumerate(layers) if layer.nnz < FAN_IN * layer.shape[0]]
    others = [layer.nnz == FAN_IN * layer.shape[0] for i, layer in enumerate(layers) if i not in lacking]
    if len(lacking) == 1 and others and all(others):
        neurons, (number,) = layers[0].shape[0], lacking
        raise MatrixError(
            f"has {layers[number].nnz} weights, and every other layer {FAN_IN * neurons}: the file is cut off",
            source=str(layer_file(folder, neurons, number + 1)),
        )


def read_layer(file: Path, neurons: int) -> CsrMatrix:
    """A layer's weights, neurons × the neurons before.

    Raises:
        MatrixError: see `read_challenge`.
    """
    rows = _numbers(file, columns=3)
    if not len(rows):
        raise MatrixError("the file has no weights: it is cut off, or no layer", source=str(file))
    before, after = (_indices(rows[:, i], neurons, file) for i in (0, 1))
    with np.errstate(over="ignore"):
        values = rows[:, 2].astype(np.float32)
    if not np.isfinite(values).all():
        raise MatrixError(
            "weights must be finite",
            source=str(file),
            place=f"line {int(np.argmin(np.isfinite(values))) + 1}",
        )
    return _csr(after, before, values, (neurons, neurons), file)


def write_challenge(network: Network, folder: Path) -> None:
    """The layers of a network of equal widths, one file each; the files appear whole.

    Of a deeper network that was there before, the layers behind the last are removed.

    Raises:
        MatrixError: layers of several widths.
        OutputError: the folder or a file cannot be written.
    """
    neurons = network.neurons
    if any(layer.shape != (neurons, neurons) for layer in network.layers):
        raise MatrixError("the challenge's files are for layers of equal width")
    with reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for i, layer in enumerate(network.layers):
        by_input = layer.transposed()
        before = np.repeat(np.arange(neurons), np.diff(by_input.row_offsets)) + 1
        lines = zip(
            before.tolist(), (by_input.column_indices + 1).tolist(), by_input.values.tolist(), strict=True
        )
        text = "".join(f"{b}\t{a}\t{value:.9g}\n" for b, a, value in lines)
        _write(layer_file(folder, neurons, i + 1), text)
    with reported(folder):
        behind = len(network.layers) + 1
        while (stale := layer_file(folder, neurons, behind)).exists():
            stale.unlink()
            behind += 1


def read_images(file: Path, neurons: int, *, count: int | None = None) -> Array:
    """Images, uint8, images × neurons.

    Args:
        count: number of images; by default as many as the last number says.

    Raises:
        MatrixError: damaged or cut off, or a pixel that is none; the message names file and line.
    """
    rows = _numbers(file, columns=3)
    most = int(rows[:, 0].max(initial=0)) if count is None else count
    image, pixel = _indices(rows[:, 0], most, file), _indices(rows[:, 1], neurons, file)
    found = np.zeros((most, neurons), dtype=np.uint8)
    found[image, pixel] = rows[:, 2] != 0
    return found


def read_categories(file: Path, inputs: int) -> Array:
    """int64, sorted: the inputs that live, numbered from zero.

    Raises:
        MatrixError: damaged, or a number beyond the inputs.
    """
    return np.unique(_indices(_numbers(file, columns=1)[:, 0], inputs, file))


def write_categories(live: Array, file: Path) -> None:
    """Inputs that live, numbered from zero.

    Raises:
        OutputError: the file cannot be written.
    """
    _write(file, "".join(f"{number}\n" for number in (np.sort(np.asarray(live)) + 1).tolist()))


def _write(file: Path, text: str) -> None:
    with reported(file):
        publish_text(file, text)


def _numbers(file: Path, *, columns: int) -> Array:
    """float64, lines × columns."""
    try:
        with open_regular(file) as stream:
            text = stream.read().decode("ascii")
    except OSError as error:
        raise MatrixError(f"cannot be read: {error.strerror}", source=str(file)) from None
    except ValueError as error:  # also of a name that no file can have
        raise MatrixError(f"cannot be read: {error}", source=str(file)) from None
    if text and not text.endswith("\n"):
        raise MatrixError("the last line has no end: the file is cut off", source=str(file))
    lines = text.splitlines()
    try:
        found = np.array([line.split() for line in lines], dtype=np.float64)
    except ValueError:
        found = np.zeros((0, 0))
    if lines and found.shape != (len(lines), columns):
        place = next((i for i, line in enumerate(lines) if not _is_row(line, columns)), 0)
        raise MatrixError(
            f"expected {counted(columns, 'number')}, got {lines[place]!r}",
            source=str(file),
            place=f"line {place + 1}",
        )
    return found.reshape(len(lines), columns)


def _is_row(line: str, columns: int) -> bool:
    try:
        return len([float(word) for word in line.split()]) == columns
    except ValueError:
        return False


def _indices(numbers: Array, most: int, file: Path) -> Array:
    """int64 from zero, of numbers from one."""
    wrong = (numbers < 1) | (numbers > most) | (numbers != np.floor(numbers))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise MatrixError(
            f"{numbers[at]:g} is no whole number from 1 to {most}", source=str(file), place=f"line {at + 1}"
        )
    return numbers.astype(np.int64) - 1


def _csr(rows: Array, columns: Array, values: Array, shape: tuple[int, int], file: Path) -> CsrMatrix:
    found = scipy.sparse.csr_array((values, (rows, columns)), shape=shape)
    if found.nnz != values.size:
        raise MatrixError("some weight stands there twice", source=str(file))
    found.sort_indices()
    return CsrMatrix(shape, found.indptr, found.indices, found.data)
