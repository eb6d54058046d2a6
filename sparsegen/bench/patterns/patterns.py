"""Patterns of nonzeros that a benchmark case names: a few numbers and a seed, or a file.

A pattern is how the sparse input of a row is drawn. Most draw one matrix, which every call of the row gets; with
`Drawn` the input is a mask among the operands, which the problem draws itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

import numpy as np

from sparsegen.bench.patterns import generators
from sparsegen.bench.patterns.layer_generators import random_layer
from sparsegen.errors import ConfigError, MatrixError, SuiteError
from sparsegen.matrix import masks
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.load import load_matrix
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, radixnet
from sparsegen.operators import DType, MaskedConv2dProblem, MaskedConv2dWeightsProblem, Problem
from sparsegen.system.json_object import Json
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True)
class Pattern(ABC):
    """A recipe for one matrix of rows × columns. Equal patterns give equal matrices; ``kind`` names it in JSON."""

    kind: ClassVar[str]

    rows: int
    columns: int

    @abstractmethod
    def matrix(self) -> CsrMatrix:
        """The matrix with float32 values.

        Raises:
            MatrixError: a number is out of range, or the file cannot be read.
        """

    def operands(self, problem: Problem, nnz: int, rng: np.random.Generator) -> dict[str, Array]:
        """The row's dense inputs, as the problem draws them; a scale is the usual one, as others want it above 0."""
        drawn = problem.random_operands(rng, nnz)
        return drawn | ({"scale": np.asarray(problem.kept({})["scale"])} if "scale" in problem.keeps else {})

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def to_dict(self) -> Json:
        """JSON values; `pattern_from_dict` is the inverse."""
        return {"kind": self.kind, **asdict(self)}

    def _require_square(self, what: str) -> None:
        if self.rows != self.columns:
            raise MatrixError(f"it is square, got {self.rows} x {self.columns}", source=what)

    @classmethod
    def from_fields(cls, fields: Json) -> Self:
        """The pattern of a case's fields.

        Raises:
            SuiteError: a field is missing, unknown or not of its type.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise SuiteError(f"a pattern {cls.kind!r} with wrong fields: {error}") from None


@dataclass(frozen=True, slots=True)
class Independent(Pattern):
    """Every element is a nonzero with probability 1 - sparsity: `generators.independent`."""

    kind: ClassVar[str] = "independent"

    sparsity: float
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        return generators.independent(self.rows, self.columns, 1 - self.sparsity, self.seed)


@dataclass(frozen=True, slots=True)
class EqualRows(Pattern):
    """Rows of equal length: `generators.equal_rows`."""

    kind: ClassVar[str] = "equal_rows"

    sparsity: float
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        return generators.equal_rows(self.rows, self.columns, 1 - self.sparsity, self.seed)


@dataclass(frozen=True, slots=True)
class VaryingRows(Pattern):
    """Rows whose lengths have the coefficient of variation ``row_cov``: `generators.varying_rows`."""

    kind: ClassVar[str] = "varying_rows"

    sparsity: float
    row_cov: float
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        return generators.varying_rows(self.rows, self.columns, 1 - self.sparsity, self.row_cov, self.seed)


@dataclass(frozen=True, slots=True)
class Blocks(Pattern):
    """Dense blocks of block × block elements: `generators.blocks`."""

    kind: ClassVar[str] = "blocks"

    sparsity: float
    block: int
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        return generators.blocks(self.rows, self.columns, self.block, 1 - self.sparsity, self.seed)


@dataclass(frozen=True, slots=True)
class SharedRows(Pattern):
    """Rows in groups that share their columns, in random order: `generators.shared_rows`."""

    kind: ClassVar[str] = "shared_rows"

    sparsity: float
    group: int
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        return generators.shared_rows(self.rows, self.columns, self.group, 1 - self.sparsity, self.seed)


@dataclass(frozen=True, slots=True)
class PowerLaw(Pattern):
    """A graph (rows = columns) whose degrees follow a power law: `generators.power_law`."""

    kind: ClassVar[str] = "power_law"

    mean_degree: float
    exponent: float
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        self._require_square("random graph")
        return generators.power_law(self.rows, self.mean_degree, self.exponent, self.seed)


@dataclass(frozen=True, slots=True)
class Band(Pattern):
    """The causal mask of a sparse Transformer, with distant places beside its band: `masks.band`."""

    kind: ClassVar[str] = "band"

    width: int
    sparsity_outside: float = 0.95
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        self._require_square("band mask")
        return masks.band(self.rows, self.width, self.sparsity_outside, seed=self.seed)


@dataclass(frozen=True, slots=True)
class SlidingWindow(Pattern):
    """The causal mask of a window, with some first places that every query sees: `masks.sliding_window`."""

    kind: ClassVar[str] = "sliding_window"

    window: int
    sinks: int = 0

    def matrix(self) -> CsrMatrix:
        self._require_square("sliding-window mask")
        return masks.sliding_window(self.rows, self.window, self.sinks)


@dataclass(frozen=True, slots=True)
class Strided(Pattern):
    """The causal mask of a window and of multiples of its length before it: `masks.strided`."""

    kind: ClassVar[str] = "strided"

    stride: int

    def matrix(self) -> CsrMatrix:
        self._require_square("strided mask")
        return masks.strided(self.rows, self.stride)


@dataclass(frozen=True, slots=True)
class MaskBlocks(Pattern):
    """The mask of blocks near the diagonal and some at random in each row of blocks: `masks.blocks`."""

    kind: ClassVar[str] = "mask_blocks"

    block: int
    neighbours: int
    extra: int
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        self._require_square("block mask")
        return masks.blocks(self.rows, self.block, self.neighbours, self.extra, causal=False, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Documents(Pattern):
    """The causal mask of documents packed into one sequence: `masks.documents`."""

    kind: ClassVar[str] = "documents"

    mean: int
    seed: int = 0

    def matrix(self) -> CsrMatrix:
        self._require_square("document mask")
        return masks.documents(self.rows, self.mean, seed=self.seed)


@dataclass(frozen=True, slots=True)
class GlobalTokens(Pattern):
    """The mask of a window both ways and of first places that see all and are seen by all: `masks.global_tokens`."""

    kind: ClassVar[str] = "global_tokens"

    window: int
    tokens: int

    def matrix(self) -> CsrMatrix:
        self._require_square("global-token mask")
        return masks.global_tokens(self.rows, self.window, self.tokens)


@dataclass(frozen=True, slots=True)
class Drawn(Pattern):
    """No matrix: the mask comes with the call, at the density that the problem expects."""

    kind: ClassVar[str] = "drawn"

    def matrix(self) -> CsrMatrix:
        return CsrMatrix(
            self.shape, np.zeros(self.rows + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
        )


@dataclass(frozen=True, slots=True)
class Blobs(Drawn):
    """The mask comes with the call, and its live blocks lie together: those where smooth noise is largest.

    Attributes:
        spacing: blocks from one random number to the next, between which the noise is interpolated.
    """

    kind: ClassVar[str] = "blobs"

    spacing: int = 8
    seed: int = 0

    def operands(self, problem: Problem, nnz: int, rng: np.random.Generator) -> dict[str, Array]:
        """Random operands, and a mask of spatial blocks.

        Raises:
            SuiteError: the problem has no mask of spatial blocks.
        """
        if isinstance(problem, MaskedConv2dWeightsProblem):
            shape = (problem.images, *problem.forward.mask_shape)
        elif isinstance(problem, MaskedConv2dProblem):
            shape = (problem.batch, *problem.mask_shape)
        else:
            raise SuiteError(f"a pattern {self.kind!r} is for masks of images, not for {problem.operator}")
        live = generators.blobs(shape, self.spacing, problem.density.share, self.seed)
        return problem.random_operands(rng, nnz, live)


@dataclass(frozen=True, slots=True)
class RadixNet(Pattern):
    """All layers of a network of the Sparse DNN Challenge, below each other: `sparsegen.networks.model.radixnet`.

    The inputs are images of strokes (`sparsegen.networks.model.images`), the clip the challenge's.

    Attributes:
        alive: weights are uniform in [0, 1/16) and biases in [-0.05, 0.1), so that no input dies and every edge is
            computed; else they are the challenge's, and most inputs die.
    """

    kind: ClassVar[str] = "radixnet"

    neurons: int
    layers: int
    alive: bool = False
    seed: int = 0

    def network(self) -> Network:
        """The network that the fields describe.

        Raises:
            ConfigError: there are no such networks.
        """
        made = radixnet(self.neurons, self.layers, seed=self.seed)
        if not self.alive:
            return made
        rng = np.random.default_rng(self.seed)
        drawn = [rng.uniform(0, 1 / 16, layer.nnz) for layer in made.layers]
        with ThreadPoolExecutor() as pool:
            weights = list(
                pool.map(lambda layer, x: layer.with_values(x.astype(np.float32)), made.layers, drawn)
            )
        biases = [rng.uniform(-0.05, 0.1, self.neurons).astype(np.float32) for _ in weights]
        return Network.of(weights, biases, CLIP)

    def matrix(self) -> CsrMatrix:
        try:
            matrix = self.network().stacked(DType.FLOAT16)
        except ConfigError as error:
            raise MatrixError(str(error), source="network") from None
        if matrix.shape != self.shape:
            raise MatrixError(
                f"it is {matrix.shape[0]} x {matrix.shape[1]}, the case says {self.rows} x {self.columns}",
                source="network",
            )
        return matrix

    def operands(self, problem: Problem, nnz: int, rng: np.random.Generator) -> dict[str, Array]:
        (inputs, _) = problem.operands(nnz)
        images = stroke_images(inputs.shape[0], self.neurons, seed=self.seed)
        levels = problem.dtype.to_storage(np.array([0, 1], np.float32))
        return {"y": levels[images], "clip": np.array([CLIP], np.float32)}


@dataclass(frozen=True, slots=True)
class RandomLayers(Pattern):
    """All layers of a network of random patterns, below each other; each layer has another one.

    Weights are uniform in [0, 2 / ``per_row``) and biases in [-0.05, 0.1): sums stay about as large as they are, so
    that no input dies. A quarter of the inputs' neurons is 1, the rest 0.

    Attributes:
        connections: kind of the connections between layers (`layer_generators.Connections`).
        per_row: weights of a neuron, in the mean.
    """

    kind: ClassVar[str] = "random_layers"

    neurons: int
    layers: int
    per_row: int
    connections: str
    seed: int = 0

    def network(self) -> Network:
        """The network that the fields describe.

        Raises:
            MatrixError: there are no such layers.
        """
        rng = np.random.default_rng([self.seed, 1])
        layers, biases = [], []
        for number in range(self.layers):
            layer = random_layer(self.neurons, self.per_row, self.connections, (self.seed, number))
            weights = rng.uniform(0, 2 / self.per_row, layer.nnz).astype(np.float32)
            layers.append(layer.with_values(weights))
            biases.append(rng.uniform(-0.05, 0.1, self.neurons).astype(np.float32))
        return Network.of(layers, biases, CLIP)

    def matrix(self) -> CsrMatrix:
        return self.network().stacked(DType.FLOAT16)

    def operands(self, problem: Problem, nnz: int, rng: np.random.Generator) -> dict[str, Array]:
        (inputs, _) = problem.operands(nnz)
        is_one = rng.random(inputs.shape) < 0.25
        levels = problem.dtype.to_storage(np.array([0, 1], np.float32))
        return {"y": levels[is_one.astype(np.intp)], "clip": np.array([CLIP], np.float32)}


@dataclass(frozen=True, slots=True)
class MatrixFile(Pattern):
    """A matrix file of any kind that `load_matrix` reads, whose shape is known beforehand.

    Attributes:
        path: path as text, absolute if another process is to read it.
        tensor: name of the array in a file that holds several.
        seed: seed of the values of a ``.smtx`` file, which stores none.
        drop_zeros: leave out zeros that the file stores.
        memory_limit: bytes that reading may take, as of `load_matrix`.
        transpose: the transpose of what the file holds, which then has this shape.
    """

    kind: ClassVar[str] = "file"

    path: str
    tensor: str | None = None
    seed: int = 0
    drop_zeros: bool = False
    memory_limit: int | None = None
    transpose: bool = False

    def matrix(self) -> CsrMatrix:
        matrix = load_matrix(
            self.path,
            tensor=self.tensor,
            seed=self.seed,
            drop_zeros=self.drop_zeros,
            memory_limit=self.memory_limit,
            transpose=self.transpose,
        )
        if matrix.shape != self.shape:
            raise MatrixError(
                f"the matrix is {matrix.shape[0]} x {matrix.shape[1]}, the case says "
                f"{self.rows} x {self.columns}",
                source=self.path,
            )
        return matrix


PATTERNS: dict[str, type[Pattern]] = {
    cls.kind: cls
    for cls in (
        Independent,
        EqualRows,
        VaryingRows,
        Blocks,
        SharedRows,
        PowerLaw,
        Band,
        SlidingWindow,
        Strided,
        MaskBlocks,
        Documents,
        GlobalTokens,
        Drawn,
        Blobs,
        RadixNet,
        RandomLayers,
        MatrixFile,
    )
}


def pattern_from_dict(fields: Json) -> Pattern:
    """The pattern of these JSON values.

    Raises:
        SuiteError: an unknown kind, or fields that this kind does not have.
    """
    kind = fields.get("kind")
    if kind not in PATTERNS:
        raise SuiteError(f"unknown pattern {kind!r}; there are {', '.join(PATTERNS)}")
    return PATTERNS[kind].from_fields({name: value for name, value in fields.items() if name != "kind"})
