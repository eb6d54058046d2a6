"""A sparse network: its layers' weights and biases, and all of them as the one matrix that operators take."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from sparsegen import arguments
from sparsegen.errors import ConfigError, MatrixError
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix
from sparsegen.matrix.formats import as_csr
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import BIAS_COLUMNS, split_bias
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Layers of weights and biases.

    Attributes:
        layers: weights of each layer, float32, its neurons × the neurons before it, every size at most ``neurons``.
        biases: float32, one array for each layer, with a value for each of its neurons.
        clip: upper limit of activations.
        neurons: neurons of the widest layer; others are filled up to it with neurons that stay zero.
    """

    layers: tuple[CsrMatrix, ...]
    biases: tuple[Array, ...]
    clip: float
    neurons: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "neurons", max(max(layer.shape) for layer in self.layers))

    def __repr__(self) -> str:
        return f"<Network: {len(self.layers)} layers of up to {self.neurons} neurons, {self.edges} weights>"

    @classmethod
    def of(cls, layers: Sequence[object], bias: object, clip: float) -> Network:
        """A network of anything that `as_csr` takes, checked.

        Args:
            layers: matrices, neurons × the neurons before.
            bias: one number for all, or for each layer a number or as many as it has neurons.

        Raises:
            MatrixError: no list, no layer, widths that do not follow each other, a last layer without neurons,
                weights or biases that are not finite.
            ConfigError: a clip that is no number above 0.
        """
        # One matrix is no list of them, and neither is a number in an array.
        if not isinstance(layers, Iterable) or getattr(layers, "ndim", 3) in (0, 2):
            raise MatrixError(
                f"expected a list of matrices, one for each layer, got {type(layers).__name__}",
                place="layers",
            )
        with ThreadPoolExecutor() as pool:
            matrices = tuple(pool.map(_in_float32, itertools.count(), layers))
        if not matrices:
            raise MatrixError("expected at least one layer", place="layers")
        for i, (one, after) in enumerate(itertools.pairwise(matrices)):
            if after.shape[1] != one.shape[0]:
                raise MatrixError(
                    f"it takes {after.shape[1]} neurons, but layer {i} has {one.shape[0]}",
                    place=f"layer {i + 1}",
                )
        if not matrices[-1].shape[0]:  # the layer before it would be the last of the stacked matrix
            raise MatrixError("the last layer has no neurons", place=f"layer {len(matrices) - 1}")
        for i, matrix in enumerate(matrices):
            if not np.isfinite(matrix.values).all():
                at = int(np.argmin(np.isfinite(matrix.values)))
                raise MatrixError(f"weights must be finite, got {matrix.values[at]}", place=f"layer {i}")
        limit = arguments.number(clip, "clip")
        if not limit > 0:
            raise ConfigError(f"clip = {clip}: expected a number above 0")
        return cls(matrices, _biases(matrices, bias), float(limit))

    @property
    def inputs(self) -> int:
        """Neurons before the first layer."""
        return self.layers[0].shape[1]

    @property
    def outputs(self) -> int:
        """Neurons of the last layer."""
        return self.layers[-1].shape[0]

    @property
    def edges(self) -> int:
        """Weights of all layers."""
        return sum(layer.nnz for layer in self.layers)

    @property
    def largest_bias(self) -> float:
        return max((float(bias.max()) for bias in self.biases if bias.size), default=0.0)

    def stacked(self, dtype: DType, some: range | None = None) -> CsrMatrix:
        """Layers below each other, the biases in three more columns; see `SparseNetworkProblem`.

        Every neuron stores all three parts of its bias, also those that are zero, so that the pattern is the same for
        every bias and dtype.

        Args:
            some: layers that follow each other, by number; by default all. All but the network's last one have as many
                neurons as the widest of the network, so that others can take these.

        Raises:
            MatrixError: together they have 2³¹ nonzeros or more.
        """
        width, last = self.neurons, len(self.layers) - 1
        numbers = range(last + 1) if some is None else some
        if sum(self.layers[i].nnz for i in numbers) + BIAS_COLUMNS * width * len(numbers) > MAX_INDEX:
            raise MatrixError(
                f"{self.edges} weights and biases are over the 32-bit index range; infer with memory=, which takes "
                "some layers at a time"
            )

        rows = [self.outputs if number == last else width for number in numbers]
        firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(rows)))
        lengths = np.full(firsts[-1], BIAS_COLUMNS, dtype=np.int64)
        for first, number in zip(firsts, numbers, strict=False):
            own = np.diff(self.layers[number].row_offsets)
            lengths[first : first + own.size] += own
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        columns = np.empty(int(offsets[-1]), dtype=np.int32)
        values = np.empty(int(offsets[-1]), dtype=np.float32)

        def stack(at: int) -> None:
            layer, bias = self.layers[numbers[at]], self.biases[numbers[at]]
            some = slice(firsts[at], firsts[at + 1])
            padded = np.zeros(rows[at], dtype=np.float32)
            padded[: bias.size] = bias
            here = slice(offsets[some.start], offsets[some.stop])
            own = lengths[some] - BIAS_COLUMNS
            ends = offsets[some.start + 1 : some.stop + 1] - offsets[some.start]
            is_bias = np.zeros(here.stop - here.start, dtype=bool)
            for i in range(BIAS_COLUMNS):
                is_bias[ends - BIAS_COLUMNS + i] = True
            assert own.sum() == layer.nnz
            columns[here][is_bias] = np.tile(np.arange(width, width + BIAS_COLUMNS, dtype=np.int32), rows[at])
            columns[here][~is_bias] = layer.column_indices
            values[here][is_bias] = split_bias(padded, dtype).reshape(-1)
            values[here][~is_bias] = layer.values

        with ThreadPoolExecutor() as pool:
            list(pool.map(stack, range(len(numbers))))
        return CsrMatrix((offsets.size - 1, width + BIAS_COLUMNS), offsets, columns, values)


def _in_float32(number: int, layer: object) -> CsrMatrix:
    try:
        found = as_csr(layer)
    except MatrixError as error:
        raise MatrixError(str(error), source=f"layer {number}") from error
    with np.errstate(over="ignore"):
        return found.with_values(found.values.astype(np.float32))


def _biases(layers: tuple[CsrMatrix, ...], bias: object) -> tuple[Array, ...]:
    given = list(bias) if isinstance(bias, list | tuple) else [bias] * len(layers)
    if len(given) != len(layers):
        raise MatrixError(f"expected a bias for each of {len(layers)} layers, got {len(given)}", place="bias")
    found = []
    for i, (layer, one) in enumerate(zip(layers, given, strict=True)):
        try:
            array = np.asarray(one, dtype=np.float32)
        except (TypeError, ValueError):
            raise MatrixError(f"expected numbers, got {type(one).__name__}", place=f"bias {i}") from None
        if array.ndim and array.shape != (layer.shape[0],):
            raise MatrixError(
                f"expected one number or {layer.shape[0]} of them, got shape {array.shape}", place=f"bias {i}"
            )
        if not np.isfinite(array).all():
            raise MatrixError("biases must be finite", place=f"bias {i}")
        found.append(np.broadcast_to(array, (layer.shape[0],)).astype(np.float32))
    return tuple(found)
