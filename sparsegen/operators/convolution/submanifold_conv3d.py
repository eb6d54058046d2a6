"""``submanifold_conv3d`` and its gradient by the weights: convolutions of points that are given by coordinates.

Graham, Engelcke and van der Maaten, 3D Semantic Segmentation with Submanifold Sparse Convolutional Networks, CVPR 2018;
kernel maps: Choy et al., 4D Spatio-Temporal ConvNets, CVPR 2019, and Tang et al., TorchSparse, MLSys 2022.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.kernel_map import kernel_map
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import DType, WordType
from sparsegen.operators.base.fields import batch_size, element_type, parameter, size, trait
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import Reference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.convolution.conv_traits import ConvEpilogue
from sparsegen.operators.convolution.window import FilterVolume
from sparsegen.operators.masked.masked_problem import Density
from sparsegen.system.numpy_types import Array

MAP = "kernel_map"


class SubmanifoldConv3dOperator(Operator):
    """A convolution of points, with their kernel map for every call."""

    problem: SubmanifoldConv3dProblem

    def __call__(
        self,
        x: object,
        w: object,
        kernel_map: object,
        out: object = None,
        stream: object = None,
        bias: object = None,
        residual: object = None,
    ) -> Any:
        """Convolve; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            x: points × channels, contiguous, of the problem's dtype. Without a batch, last rows that the map does not
                name may be left out, as ``dy``'s may.
            w: filters × taps along z, y and x × channels.
            kernel_map: map of the points (`sparsegen.masks.kernel_map`), int32, (1 + taps) × points. Kernels trust it.
            bias: a value for each filter, for an epilogue with a bias.
            residual: array of the result's shape, for an epilogue with a residual; another array than ``out``.
        """
        p = self.problem
        added = p.epilogue.given(bias, residual, p.filters)
        return self._run((x, w, kernel_map, *added), out, stream)


class SubmanifoldConv3dWeightsOperator(Operator):
    """The gradient of a convolution of points by its weights, with the points' kernel map for every call."""

    problem: SubmanifoldConv3dWeightsProblem

    def __call__(
        self, x: object, dy: object, kernel_map: object, out: object = None, stream: object = None
    ) -> Any:
        """Multiply tap by tap; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            x: points × channels, what was convolved.
            dy: points × filters, the gradient of what came out.
            kernel_map: see the convolution's operator.
        """
        return self._run((x, dy, kernel_map), out, stream)


@dataclass(frozen=True, slots=True)
class PointsProblem(Problem):
    """Base class of convolutions of points and their gradients."""

    matrix_sizes: ClassVar[tuple[str, str]] = ("points", "channels")
    dense_sizes: ClassVar[tuple[str, ...]] = ("filters",)
    has_pattern: ClassVar[bool] = False

    points: int = size("points", flags=("--points",))
    channels: int = size("features of a point", flags=("--channels",))
    filters: int = size("features of a point of the result", usual=64)
    dtype: DType = element_type()
    filter_volume: FilterVolume = parameter(FilterVolume(3, 3, 3), "taps of a filter along z, y and x, odd")
    density: Density = parameter(Density(0.3), "expected share of a filter's taps that meet a point")
    batch: int = batch_size()

    # --- its sparsity ---

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the expected features of the kernel maps."""
        return self.density.features(self.points, self.channels, self.filter_volume.taps)

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """A name of the kernel maps that are expected; there is no pattern to have one."""
        text = (
            f"kernel maps of {self.points} points of {self.channels} channels, {self.filter_volume} taps, "
            f"{self.density} live"
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def live_taps(self) -> float:
        """Pairs of a point and a live tap that are expected: a point always meets itself."""
        return self.points * max(1.0, self.density.share * self.filter_volume.taps)

    # --- its operands ---

    def map_spec(self) -> TensorSpec:
        """The kernel map."""
        return TensorSpec(
            MAP, self.of_batch((1 + self.filter_volume.taps, self.points)), WordType.INT32, alignment=4
        )

    def points_spec(self, name: str, features: int) -> TensorSpec:
        """Returns the spec of points; a lone batch element may lack the last rows if its map does not name them."""
        shape = self.of_batch((self.points, features))
        return TensorSpec(name, shape, self.dtype, 16, may_lack_rows=self.batch == 1)

    def weights_shape(self) -> tuple[int, ...]:
        """Filters × taps along z, y and x × channels."""
        return (self.filters, *self.filter_volume.sides, self.channels)

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Draws points in a cube such that taps meet one as often as expected; sums have about variance 1."""
        found: dict[str, Array] = {}
        for spec in self.operands(nnz):
            if isinstance(spec.dtype, WordType):
                maps = [self._random_map(rng) for _ in range(self.batch)]
                found[spec.name] = np.stack(maps).reshape(spec.shape)
                continue
            terms = self.live_taps / self.points * self.channels if spec.name == "w" else 1.0
            found[spec.name] = normal_numbers(rng, spec, scale=1 / math.sqrt(terms))
        return found

    def _random_map(self, rng: np.random.Generator) -> Array:
        side = math.ceil((self.points / self.density.share) ** (1 / 3))
        cells = rng.choice(side**3, self.points, replace=False, shuffle=False)
        places = np.stack(np.unravel_index(cells, (side, side, side)), axis=1)
        coordinates = np.concatenate([np.zeros((self.points, 1), np.int64), places], axis=1)
        return kernel_map(coordinates.astype(np.int32), self.filter_volume.sides)

    def in_words(self, density: float) -> str:
        """The problem for people; it knows its density itself."""
        return f"{self}, {self.density.share:.1%} of the taps live"

    # --- what it computes ---

    def cost(self, nnz: int) -> Cost:
        """Sums of live taps alone; each array once."""
        flop = 2 * round(self.live_taps) * self.filters * self.channels
        arrays = (*self.operands(nnz), self.result(nnz))
        return Cost(flop=flop * self.batch, bytes=sum(spec.nbytes for spec in arrays))

    def real(self, operands: Mapping[str, Array]) -> dict[str, Array]:
        """The operands in float64, but for the map."""
        return {
            name: self.dtype.from_storage(array).astype(np.float64)
            for name, array in operands.items()
            if name != MAP
        }


@dataclass(frozen=True, slots=True)
class SubmanifoldConv3dProblem(PointsProblem):
    """y[p] = epilogue(sum over taps t of w[:, t] · x[map[t, p]]): a convolution whose outputs have its inputs' points.

    The gradient by x is the same convolution with the filters' taps in the opposite order and channels and filters
    exchanged: of odd filters, point p reads q by one tap where q reads p by the opposite one.
    """

    operator: ClassVar[str] = "submanifold_conv3d"
    title: ClassVar[str] = "submanifold convolution"
    summary: ClassVar[str] = "Y = conv(X, W) at the points of X, their kernel map another one for every call"
    operator_type: ClassVar[type[SubmanifoldConv3dOperator]] = SubmanifoldConv3dOperator

    epilogue: ConvEpilogue = trait(
        ConvEpilogue.NONE, "what is done to the result before it is stored", near=True
    )

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        specs = [
            self.points_spec("x", self.channels),
            TensorSpec("w", self.weights_shape(), self.dtype, 16),
            self.map_spec(),
        ]
        return (*specs, *self.epilogue.operands(self.filters, self.result(nnz), 16))

    def result(self, nnz: int) -> TensorSpec:
        return TensorSpec("y", self.of_batch((self.points, self.filters)), self.dtype, 16)

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.filter_volume.taps * self.channels)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        given = self.real(operands)
        filters = given["w"].reshape(self.filters, -1, self.channels)
        exact = np.zeros((self.points, self.filters))
        magnitude = np.zeros_like(exact)
        for tap, outputs, inputs in live_pairs(operands[MAP]):
            exact[outputs] += given["x"][inputs] @ filters[:, tap].T
            magnitude[outputs] += np.abs(given["x"][inputs]) @ np.abs(filters[:, tap]).T
        if self.epilogue.has_bias:
            exact, magnitude = exact + given["bias"], magnitude + np.abs(given["bias"])
        exact, magnitude = self.epilogue.activated(exact, magnitude)
        if self.epilogue.has_residual:
            exact, magnitude = exact + given["residual"], magnitude + np.abs(given["residual"])
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)


@dataclass(frozen=True, slots=True)
class SubmanifoldConv3dWeightsProblem(PointsProblem):
    """dw[f, t] = sum over points p that tap t has a point for of dy[p, f] · x[map[t, p]]."""

    operator: ClassVar[str] = "submanifold_conv3d_weights"
    title: ClassVar[str] = "gradient of a submanifold convolution by its weights"
    summary: ClassVar[str] = (
        "dW of Y = conv(X, W) at the points of X, for each tap a product over its live pairs"
    )
    operator_type: ClassVar[type[SubmanifoldConv3dWeightsOperator]] = SubmanifoldConv3dWeightsOperator

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            self.points_spec("x", self.channels),
            self.points_spec("dy", self.filters),
            self.map_spec(),
        )

    def result(self, nnz: int) -> TensorSpec:
        return TensorSpec("dw", self.of_batch(self.weights_shape()), self.dtype, 16)

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.points)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        given = self.real(operands)
        exact = np.zeros((self.filters, self.filter_volume.taps, self.channels))
        magnitude = np.zeros_like(exact)
        for tap, outputs, inputs in live_pairs(operands[MAP]):
            exact[:, tap] = given["dy"][outputs].T @ given["x"][inputs]
            magnitude[:, tap] = np.abs(given["dy"][outputs]).T @ np.abs(given["x"][inputs])
        shape = self.weights_shape()
        return Reference(exact.reshape(shape), magnitude.reshape(shape), self.terms(matrix), self.dtype)


def live_pairs(kernel_map: Array) -> Iterator[tuple[int, Array, Array]]:
    """Each tap with the points that have something to read there, and what they read."""
    order = kernel_map[0]
    for tap, read in enumerate(kernel_map[1:]):
        is_live = read >= 0
        yield tap, order[is_live], read[is_live]


PROBLEMS = (SubmanifoldConv3dProblem, SubmanifoldConv3dWeightsProblem)
