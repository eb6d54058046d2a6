"""``sparse_network``: all layers of a sparse neural network, one after another, for many inputs."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.matrix.column_sets import SIDE, tiles_of_groups
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators.base.cost import Cost, matrix_bytes
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import batch_size, element_type, size, trait
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import LoneRow, Problem
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import WARP, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

BIAS_COLUMNS = 3  # behind the neurons' columns of the matrix
MOST_OF_AN_INPUT = 0.32  # largest fraction of a random input's neurons that are on
LAYERS_SAMPLED = 8  # layers sampled for features
LEAST_SAMPLED, MOST_SAMPLED = 64, 1 << 20  # least inputs, and most of their neurons, to count how many live
DEVICE_CHUNK = 1 << 26  # the same on a device, 32 bytes each
LEAST_CHECKED, MOST_CHECKED = 512, 1 << 24  # inputs, and their neurons, on which a variant is verified
LAYERS_AHEAD = 16  # layers whose weights are made in float64 at a time
CHUNK = 1 << 22  # neurons times inputs of which the reference is computed together


class Activation(StrEnum):
    """The operation on a neuron's sum.

    ``dying_relu`` is ReLU whose biases count only where they are negative, so that an input without a live neuron stays
    without one, and need not be computed any further.
    """

    RELU = "relu"
    DYING_RELU = "dying_relu"
    NONE = "none"


class Readout(StrEnum):
    """The network's result: the last layer's neurons of each input, or their sum."""

    NEURONS = "neurons"
    TOTALS = "totals"


class SparseNetworkOperator(Operator):
    """All layers of one network in one launch."""

    problem: SparseNetworkProblem

    def __call__(self, y: object, out: object = None, stream: object = None) -> Any:
        """Infer; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            y: n × neurons, the inputs, one a row, contiguous, of the problem's dtype and finite.
        """
        if out is not None and out is y:
            raise OperandError("out: expected another array than y, which is read while out is written")
        return self._run((y, None), out, stream)


@dataclass(frozen=True, slots=True)
class SparseNetworkProblem(Problem):
    """Y ← f(Y · Wᵀ + b), layer after layer, for n inputs; the layers' matrices W stand below each other.

    The matrix is m × k with k = neurons + 3. Its rows l · neurons to (l + 1) · neurons - 1 are layer l's neurons, by
    the layer before; the last layer may have fewer. The last three columns are the bias, split in three: with the unit
    roundoff u of the dtype it is w₀ + u · w₁ + u² · w₂, so that 16 bits hold a float32 bias (`split_bias`).

    Y and the result are n × neurons and n × outputs, one input a row. Between layers neurons are rounded to the dtype.
    Activations end at ``clip``, an operand, by default the largest finite number of the dtype; what is not clipped by
    ReLU ends at -clip too. For ``readout = totals`` the result is the sum of each input's outputs, one float32.

    Source: Kepner et al., Sparse Deep Neural Network Graph Challenge, HPEC 2019.
    """

    operator: ClassVar[str] = "sparse_network"
    title: ClassVar[str] = "network"
    summary: ClassVar[str] = "f(Y · Wᵀ + b) for all layers W of a network"
    matrix_sizes: ClassVar[tuple[str, str]] = ("m", "k")
    dense_sizes: ClassVar[tuple[str, ...]] = ("n",)
    keeps: ClassVar[tuple[str, ...]] = ("clip",)
    operator_type: ClassVar[type[SparseNetworkOperator]] = SparseNetworkOperator
    reference_files: ClassVar[tuple[str, ...]] = ("network.cu",)
    magnitude_rounding: ClassVar[float] = 0.05  # a sum near the middle of two neurons is rounded either way

    m: int = size("neurons of all layers, rows of the matrix", flags=("--m",))
    k: int = size("neurons of a layer and three columns of the bias", flags=("-k", "--k"))
    n: int = size("inputs", usual=128, flags=("-n", "--n"))
    dtype: DType = element_type()
    activation: Activation = trait(Activation.RELU, "what is done to a neuron's sum")
    readout: Readout = trait(Readout.NEURONS, "the last layer's neurons, or their sum for each input")
    batch: int = batch_size()

    @property
    def neurons(self) -> int:
        """The neurons of a layer."""
        return max(0, self.k - BIAS_COLUMNS)

    @property
    def layers(self) -> int:
        """Number of layers; without neurons, one that gives biases only."""
        if not self.neurons:
            return min(1, self.m)
        return ceil_div(self.m, self.neurons)

    @property
    def outputs(self) -> int:
        """Neurons of the last layer."""
        return self.m - max(0, self.layers - 1) * self.neurons

    def edges(self, nnz: int) -> int:
        """Number of weights of all layers, given the matrix's nonzeros: each neuron's bias takes `BIAS_COLUMNS` of
        them.
        """
        return max(0, nnz - BIAS_COLUMNS * self.m)

    def layer_rows(self, layer: int) -> slice:
        """Rows of a layer in the matrix."""
        begin = layer * self.neurons
        return slice(begin, self.m if layer == self.layers - 1 else begin + self.neurons)

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("y", self.of_batch((self.n, self.neurons)), self.dtype),
            TensorSpec("clip", (1,), DType.FLOAT32),
        )

    def result(self, nnz: int) -> TensorSpec:
        if self.readout is Readout.TOTALS:
            return TensorSpec("totals", self.of_batch((self.n if self.m else 0,)), DType.FLOAT32)
        return TensorSpec("z", self.of_batch((self.n, self.outputs)), self.dtype)

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the features of the layers; ``block_fill`` is that of tiles of 16 rows that share columns,
        sampled.
        """
        return replace(Features.of(matrix), block_fill=self._tile_fill(matrix))

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """A name of the layers, which are described otherwise than the same matrix as one."""
        return hashlib.sha256(f"layers of {matrix.fingerprint()}".encode()).hexdigest()

    def _tile_fill(self, matrix: CsrMatrix) -> float:
        """Weights over the places of the tiles that hold them (`tiles_of_groups`), in a few layers; 0 without any."""

        def counted(layer: int) -> tuple[int, int]:
            rows = self.layer_rows(layer)
            offsets = matrix.row_offsets[rows.start : rows.stop + 1].astype(np.int64)
            columns = matrix.column_indices[offsets[0] : offsets[-1]]
            kept = columns < self.neurons
            before = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept)))
            tiles = tiles_of_groups(before[offsets - offsets[0]], columns[kept], self.neurons)
            return int(before[-1]), tiles

        sampled = np.unique(np.linspace(0, self.layers - 1, LAYERS_SAMPLED).astype(int)) if self.m else ()
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(counted, map(int, sampled)))
        weights, tiles = (sum(of_layer[i] for of_layer in found) for i in (0, 1))
        return weights / (tiles * SIDE * SIDE) if tiles else 0.0

    def cost(self, nnz: int) -> Cost:
        """Two operations for each nonzero and input; the matrix, inputs and results once each."""
        dense = sum(spec.nbytes for spec in self.operands(nnz)) + self.result(nnz).nbytes
        matrix = matrix_bytes(self.m, self.k, nnz, self.dtype.itemsize)
        return Cost(flop=2 * self.batch * nnz * self.n, bytes=matrix + dense)

    def computed_share(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> float:
        """The part of all weights times inputs whose inputs live, where they die: of some of them, in float32."""
        if self.activation is not Activation.DYING_RELU or not (self.layers and self.n and matrix.nnz):
            return 1.0
        inputs = operands["y"].reshape(-1, self.neurons)
        count = min(len(inputs), max(LEAST_SAMPLED, MOST_SAMPLED // max(1, self.neurons)))
        chosen = np.linspace(0, len(inputs) - 1, count).astype(np.int64)
        y = self.dtype.from_storage(inputs[chosen]).astype(np.float32).T
        clip, steps = float(operands["clip"][0]), np.array(bias_steps(self.dtype), dtype=np.float32)
        computed = 0
        for layer in range(self.layers):
            y = y[:, y.any(axis=0)]
            rows = self.layer_rows(layer)
            first, last = int(matrix.row_offsets[rows.start]), int(matrix.row_offsets[rows.stop])
            computed += (last - first) * y.shape[1]
            if not y.shape[1]:
                break
            part = CsrMatrix(
                (rows.stop - rows.start, self.k),
                matrix.row_offsets[rows.start : rows.stop + 1] - first,
                matrix.column_indices[first:last],
                matrix.values[first:last],
            )
            biases = np.broadcast_to(steps[:, None], (BIAS_COLUMNS, y.shape[1]))
            sums = part.to_scipy() @ np.concatenate((y, biases))
            y = self.dtype.rounded(self._activated(sums, clip).astype(np.float32))
        return computed / (matrix.nnz * count)

    @property
    def heeds_values(self) -> bool:
        return True

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The clip as an array; by default the largest finite number. See `Problem.kept`."""
        clip = given.get("clip")
        number = largest(self.dtype) if clip is None else arguments.number(clip, "clip")
        if number <= 0:
            raise OperandError(f"clip: expected a number above 0, got {number}")
        return {"clip": np.array([min(number, largest(self.dtype))], dtype=np.float32)}

    def to_check(self) -> SparseNetworkProblem:
        """See `Problem.to_check`: no more inputs than have `MOST_CHECKED` neurons together."""
        return replace(self, n=min(self.n, max(LEAST_CHECKED, MOST_CHECKED // max(1, self.neurons))))

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Inputs of zeros and ones, some with few ones and some with many, and a clip of 32.

        Of inputs that die, as images do in the Sparse DNN Challenge, some do in every one of the first layers then.
        """
        (spec, _) = self.operands(nnz)
        lit = rng.random((*spec.shape[:-1], 1)) * MOST_OF_AN_INPUT
        ones = rng.random(spec.shape, dtype=np.float32) < lit
        return {"y": self.dtype.to_storage(ones.astype(np.float32)), "clip": np.array([32], np.float32)}

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference`.

        The error goes through the layers with the neurons: |W| carries that of the inputs over, the sums in float32 add
        4 · √(terms + 2) units of the sum of absolute values, and activation and rounding, both monotone, make of a sum
        and its error an interval. So clipped and dead neurons lose the error that led there. The magnitude is the
        error of the last layer by what `Reference` multiplies it with.
        """
        width = max(1, self.neurons, self.outputs)
        step = max(1, CHUNK // width)
        y, clip = self.dtype.from_storage(operands["y"]), float(operands["clip"][0])
        parts = [
            self._inferred(matrix, y[start : start + step].astype(np.float64).T, clip)
            for start in range(0, self.n, step)
        ]
        exact, error = (np.concatenate([part[i].T for part in parts]) for i in (0, 1))
        terms, unit = self.terms(matrix), DType.FLOAT32.unit_roundoff
        if self.readout is Readout.TOTALS:
            size = np.abs(exact).sum(axis=1) + error.sum(axis=1)
            factor = 4.0 * np.sqrt(terms + 2.0) * unit
            count = self.n if self.m else 0
            return Reference(
                exact.sum(axis=1)[:count],
                (size + error.sum(axis=1) / factor)[:count],
                terms,
                DType.FLOAT32,
            )
        return Reference(exact, error / (4.0 * np.sqrt(terms + 2.0) * unit), terms, self.dtype)

    def _inferred(self, matrix: CsrMatrix, y: Array, clip: float) -> tuple[Array, Array]:
        """The last layer's neurons, outputs × inputs, and how far a result in float32 may be from them."""
        error, unit = np.zeros_like(y), DType.FLOAT32.unit_roundoff
        limit = float(self.dtype.rounded(np.array([min(clip, largest(self.dtype))]))[0])
        for weights, bias in self.real_layers(matrix):
            absolute = abs(weights)
            carried, terms = absolute @ error, np.diff(weights.indptr)[:, None] + BIAS_COLUMNS
            sums = weights @ y + bias[:, None]
            rounding = 4.0 * np.sqrt(terms + 2.0) * unit
            off = carried + rounding * (absolute @ np.abs(y) + carried + np.abs(bias)[:, None])
            y = self._activated(sums, limit)
            highest, lowest = (
                self.dtype.rounded(self._activated(x, limit).astype(np.float64))
                for x in (sums + off, sums - off)
            )
            error = np.maximum(np.maximum(highest - y, y - lowest), 0.0)
        return y[: self.outputs], error[: self.outputs]

    def _activated(self, sums: Array, limit: float) -> Array:
        least = -limit if self.activation is Activation.NONE else 0.0
        found: Array = np.clip(sums, least, limit)
        return found

    def real_layers(self, matrix: CsrMatrix) -> Iterator[tuple[Any, Array]]:
        """The weights (SciPy's CSR, neurons × neurons before) and biases of each layer, both in float64.

        They are what the dtype holds of them.
        """
        with ThreadPoolExecutor() as pool:  # NumPy and SciPy leave the interpreter to others
            ahead: deque[Future[tuple[Any, Array]]] = deque()
            for layer in range(self.layers):
                ahead.append(pool.submit(self._real_layer, matrix, layer))
                if len(ahead) > LAYERS_AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _real_layer(self, matrix: CsrMatrix, layer: int) -> tuple[Any, Array]:
        import scipy.sparse

        here = self.layer_rows(layer)
        first, last = int(matrix.row_offsets[here.start]), int(matrix.row_offsets[here.stop])
        values = self.dtype.rounded(matrix.values[first:last]).astype(np.float64)
        offsets = matrix.row_offsets[here.start : here.stop + 1] - first
        shape = (here.stop - here.start, self.k)
        rows = scipy.sparse.csr_array((values, matrix.column_indices[first:last], offsets), shape=shape)
        parts = rows[:, self.neurons :].toarray()
        bias = parts @ np.array(bias_steps(self.dtype)[: parts.shape[1]])
        if self.activation is Activation.DYING_RELU:
            bias = np.minimum(bias, 0.0)
        return rows[:, : self.neurons].tocsr(), bias

    def terms(self, matrix: CsrMatrix) -> Array:
        lengths = np.diff(matrix.row_offsets)[self.m - self.outputs :]
        if self.readout is Readout.TOTALS:
            return np.array([self.outputs])
        return lengths[None, :]

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        """Some inputs at a time go through all layers, from one buffer to the other and back."""
        limit = float(self.dtype.rounded(np.array([min(float(operands["clip"][0]), largest(self.dtype))]))[0])
        shared = (
            device.upload(matrix.row_offsets),
            device.upload(matrix.column_indices),
            device.upload(self.dtype.rounded(matrix.values)),
            device.upload(np.array([limit])),
        )
        given, terms = (
            device.upload(operands["y"]),
            device.upload(self.terms(matrix).ravel().astype(np.float32)),
        )
        width = max(self.neurons, self.outputs)
        step = min(self.n, max(WARP, DEVICE_CHUNK // max(1, width)))
        here, there = ((device.filled(8 * width * step), device.filled(8 * width * step)) for _ in range(2))
        traits = (
            list(DType).index(self.dtype),
            -int(self.activation is Activation.NONE),
            int(self.activation is Activation.DYING_RELU),
        )
        for first in range(0, self.n, step):
            count = min(step, self.n - first)
            warps = ceil_div(count, WARP)
            device.run("network.cu:start", self.neurons * warps, self.neurons, count, first, given, *here)
            for layer in range(self.layers):
                rows = self.layer_rows(layer)
                size = rows.stop - rows.start
                sizes = (size, count, rows.start, self.neurons, *traits)
                device.run("network.cu:layer", size * warps, *sizes, *shared, *here, *there)
                here, there = there, here
            found = (terms, *here, into.exact, into.magnitude)
            if self.readout is Readout.TOTALS:
                device.run("network.cu:totals", warps, self.outputs, count, first, *found)
            else:
                device.run("network.cu:outputs", self.outputs * warps, self.outputs, count, first, *found)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        """A random input alone: a row of the matrix has no result of its own."""
        return self._random_inputs(matrix, operands, 1, rng)

    def lone_rows(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], rows: Sequence[int], rng: np.random.Generator
    ) -> Iterator[LoneRow]:
        """Random inputs, as many as rows, which go through the layers together."""
        if len(rows):
            yield self._random_inputs(matrix, operands, len(rows), rng)

    def _random_inputs(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], count: int, rng: np.random.Generator
    ) -> LoneRow:
        inputs = rng.integers(self.n, size=count)
        each = 1 if self.readout is Readout.TOTALS else self.outputs
        given = {"y": operands["y"][inputs], "clip": operands["clip"]}
        places = inputs[:, None] * each + np.arange(each)
        return LoneRow(replace(self, n=count), matrix, given, places.ravel())


def largest(dtype: DType) -> float:
    """The largest finite number of an element type."""
    return {DType.FLOAT32: float(np.finfo(np.float32).max), DType.FLOAT16: 65504.0}.get(
        dtype, float.fromhex("0x1.fep127")
    )


def bias_steps(dtype: DType) -> tuple[float, float, float]:
    """Factors of the bias's three columns."""
    unit = dtype.unit_roundoff
    return (1.0, unit, unit * unit)


def split_bias(bias: Array, dtype: DType) -> Array:
    """A bias as the values of the three columns that stand for it, which the dtype holds exactly.

    Args:
        bias: real numbers, of any shape.

    Returns:
        float32 of that shape and three more.
    """
    parts, rest = [], np.asarray(bias, dtype=np.float32).astype(np.float64)
    for _ in range(BIAS_COLUMNS):
        part = dtype.rounded(rest.astype(np.float32)).astype(np.float64)
        parts.append(part)
        rest = (rest - part) / dtype.unit_roundoff
    return np.stack(parts, axis=-1).astype(np.float32)


PROBLEMS = (SparseNetworkProblem,)
