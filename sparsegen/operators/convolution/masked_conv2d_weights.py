"""``masked_conv2d_weights``: the gradient of a masked convolution by its weights, over live blocks of the output."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import DType, WordType
from sparsegen.operators.base.fields import batch_size, element_type, parameter, size
from sparsegen.operators.base.operator import Launcher, Operator
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import Reference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.convolution.mask_words import as_mask_words
from sparsegen.operators.convolution.masked_conv2d import MaskedConv2dProblem
from sparsegen.operators.convolution.window import Dilation, FilterSize, Groups, MaskBlock, Padding, Stride
from sparsegen.operators.masked.masked_problem import Density
from sparsegen.system.numpy_types import Array

DENSE_OVER_PRODUCT = 2.1


class MaskedConv2dWeightsOperator(Operator):
    """The gradient of a convolution by its weights, with a mask of spatial blocks for every call."""

    problem: MaskedConv2dWeightsProblem

    def __init__(self, problem: MaskedConv2dWeightsProblem, launcher: Launcher) -> None:
        super().__init__(problem, launcher)
        self._mask_shape = next(spec.shape for spec in problem.operands(0) if spec.name == "mask")

    def __call__(self, x: object, dy: object, mask: object, out: object = None, stream: object = None) -> Any:
        """Multiply tap by tap; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            x: images × height × width × channels, what was convolved.
            dy: images × out_height × out_width × filters, the gradient of what came out. Outside of the mask it counts
                as zero, whatever lies there.
            mask: see `MaskedConv2dOperator`, over the output.
        """
        return self._run((x, dy, as_mask_words(mask, self._mask_shape)), out, stream)


@dataclass(frozen=True, slots=True)
class MaskedConv2dWeightsProblem(Problem):
    """dw[f, t] = sum over the outputs p of live blocks of dy[p, f] · x[where tap t of p reads].

    All images are summed over: they are no elements of a batch. Each has a mask of its own.

    Raises:
        ConfigError: sizes or sides that do not go together.
    """

    operator: ClassVar[str] = "masked_conv2d_weights"
    title: ClassVar[str] = "gradient of a masked convolution by its weights"
    summary: ClassVar[str] = (
        "dW of Y = conv(X, W), over the live blocks of a mask of Y, another one for every call"
    )
    matrix_sizes: ClassVar[tuple[str, str]] = ("height", "width")
    dense_sizes: ClassVar[tuple[str, ...]] = ("channels", "filters", "images")
    has_pattern: ClassVar[bool] = False
    operator_type: ClassVar[type[MaskedConv2dWeightsOperator]] = MaskedConv2dWeightsOperator

    height: int = size("rows of the images", flags=("--image-height",))
    width: int = size("columns of the images", flags=("--image-width",))
    channels: int = size("channels of the images", usual=64)
    filters: int = size("channels of the result", usual=64)
    images: int = size("images, whose gradients are added up", usual=1)
    dtype: DType = element_type()
    filter_size: FilterSize = parameter(FilterSize(3, 3), "rows and columns of a filter")
    stride: Stride = parameter(Stride(1, 1), "pixels from one output to the next")
    padding: Padding = parameter(Padding(1, 1), "zeros on each side of the images")
    dilation: Dilation = parameter(Dilation(1, 1), "pixels from one tap of a filter to the next")
    groups: Groups = parameter(Groups(1), "groups of channels that are convolved apart")
    mask_block: MaskBlock = parameter(MaskBlock(16, 16), "rows and columns of a block of the spatial mask")
    density: Density = parameter(Density(0.5), "expected share of live blocks")
    batch: int = batch_size()

    def __post_init__(self) -> None:
        Problem.__post_init__(self)
        _ = self.forward  # checks that the sizes go together

    @property
    def forward(self) -> MaskedConv2dProblem:
        """The convolution of the images that this is a gradient of."""
        p = self
        return MaskedConv2dProblem(
            *(
                p.height,
                p.width,
                p.channels,
                p.filters,
                p.dtype,
                p.filter_size,
                p.stride,
                p.padding,
                p.dilation,
            ),
            *(p.groups, p.mask_block, p.density),
            batch=p.images,
        )

    @property
    def out_height(self) -> int:
        return self.forward.out_height

    @property
    def out_width(self) -> int:
        return self.forward.out_width

    @property
    def taps(self) -> int:
        return self.filter_size.rows * self.filter_size.columns

    # --- its sparsity ---

    @property
    def features_shape(self) -> tuple[int, int]:
        """Rows and columns of outputs, which the masks lie over."""
        return self.forward.features_shape

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the expected features of the masks."""
        return self.forward.features(matrix)

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """A name of the masks that are expected; there is no pattern to have one."""
        text = f"gradient by the weights, {self.forward.fingerprint(matrix)}"
        return hashlib.sha256(text.encode()).hexdigest()

    # --- its operands ---

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        p = self.forward
        masks = next(spec for spec in p.operands(nnz) if spec.name == "mask")
        words = self.images * (int(np.prod(masks.shape)) // p.batch)
        return (
            TensorSpec("x", self.of_batch((p.batch, p.height, p.width, p.channels)), self.dtype, 16),
            TensorSpec("dy", self.of_batch((p.batch, p.out_height, p.out_width, p.filters)), self.dtype, 16),
            TensorSpec("mask", self.of_batch((words,)), WordType.UINT64, 8),
        )

    def result(self, nnz: int) -> TensorSpec:
        p = self.forward
        weights = (p.filters, p.filter_size.rows, p.filter_size.columns, p.group_channels)
        return TensorSpec("dw", self.of_batch(weights), self.dtype, 16)

    def random_operands(
        self, rng: np.random.Generator, nnz: int, blocks: Array | None = None
    ) -> dict[str, Array]:
        """Masks at the expected density, and normal numbers; sums have about variance 1.

        Args:
            blocks: these masks instead, bool, images × rows × columns of blocks.
        """
        return {spec.name: self.random_operand(spec, rng, blocks) for spec in self.operands(nnz)}

    def random_operand(
        self, spec: TensorSpec, rng: np.random.Generator, blocks: Array | None = None
    ) -> Array:
        """One of `random_operands`."""
        p = self.forward
        if isinstance(spec.dtype, WordType):
            if blocks is None:
                blocks = self.density.drawn(rng, (self.batch * self.images, *p.mask_shape))
            return words_of(blocks).reshape(spec.shape)  # type: ignore[no-any-return]
        live = self.density.share * self.images * p.out_height * p.out_width if spec.name == "dy" else 1.0
        return normal_numbers(rng, spec, scale=1 / math.sqrt(max(1.0, live)))

    def in_words(self, density: float) -> str:
        """The problem for people; it knows its density itself."""
        return f"{self}, {self.density.share:.1%} of the blocks live"

    # --- the dense way ---

    @property
    def dense_product(self) -> tuple[int, int, int] | None:
        """Filters, outputs, and channels of all taps; None with groups or of float32, which PyTorch may multiply in one
        TF32 product where kernels add three.
        """
        if self.batch > 1 or self.groups.count > 1 or self.dtype is DType.FLOAT32:
            return None
        p = self.forward
        return p.filters, self.images * p.out_height * p.out_width, p.channels * p.taps

    @property
    def dense_over_product(self) -> float:
        """cuDNN's gradients of ten drawn convolutions of 16 bits took 1.2 to 6.3 times the model's product, 2.1 in the
        mean of these and three of float32 (H200, ``drawn_*.json.xz``).
        """
        return DENSE_OVER_PRODUCT

    @property
    def zeroing_bytes(self) -> float:
        """The gradient of the outputs is copied, by live blocks and zeros."""
        copied = next(spec.nbytes for spec in self.operands(0) if spec.name == "dy")
        return copied * (1.0 + self.density.share)

    def dense_result(self, torch: Any, live: Any, operands: Mapping[str, Any], out: Any) -> Any:
        """PyTorch's gradient; see `HasDense.dense_result`. On the CPU 16-bit numbers are multiplied as float32.

        Args:
            live: keeps live blocks of images: ``live.of(dy, mask)``.
        """
        p, x, dy = self.forward, operands["x"], live.of(operands["dy"], operands["mask"])
        wide = x.dtype if x.is_cuda else torch.float32
        x, dy = (images.permute(0, 3, 1, 2).to(wide) for images in (x, dy))
        taps = p.filter_size.rows, p.filter_size.columns
        like = torch.empty((p.filters, p.channels, *taps), dtype=wide, device=x.device)
        sides = ([side.rows, side.columns] for side in (p.stride, p.padding, p.dilation))
        _, found, _ = torch.ops.aten.convolution_backward(
            *(dy, x, like.contiguous(memory_format=torch.channels_last), None, *sides),
            *(False, [0, 0], 1, [False, True, False]),
        )
        found = found.permute(0, 2, 3, 1).to(operands["x"].dtype)
        return found.contiguous() if out is None else out.copy_(found)

    # --- what it computes ---

    def cost(self, nnz: int) -> Cost:
        """Sums of live blocks alone; images and gradients by their live blocks."""
        p, share = self.forward, self.density.share
        pixels = round(share * self.images * p.out_height * p.out_width)
        moved = sum(
            spec.nbytes * (share if spec.name in ("x", "dy") else 1.0)
            for spec in (*self.operands(nnz), self.result(nnz))
        )
        flop = 2 * pixels * p.filters * p.group_channels * p.taps
        return Cost(flop=flop * self.batch, bytes=round(moved))

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.images * self.out_height * self.out_width)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        p, per_group = self.forward, self.filters // self.groups.count
        exact = np.zeros(self.alone.result(0).shape)
        magnitude = np.zeros_like(exact)
        for image, gradient, words in self._images(operands):
            live = p.live(words)
            of_live = gradient[live]
            for part, (r, s) in p.taps_of(image):
                read = part[live]
                for group in range(self.groups.count):
                    own = slice(group * per_group, (group + 1) * per_group)
                    pixels = read[:, group * p.group_channels : (group + 1) * p.group_channels]
                    exact[own, r, s] += of_live[:, own].T @ pixels
                    magnitude[own, r, s] += np.abs(of_live[:, own]).T @ np.abs(pixels)
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)

    def _images(self, operands: dict[str, Array]) -> Iterator[tuple[Array, Array, Array]]:
        """Yields, for each image, its pixels and gradient in float64, and the words of its mask."""
        masks = operands["mask"].reshape(self.images, -1)
        for image, gradient, words in zip(operands["x"], operands["dy"], masks, strict=True):
            pixels, outputs = (
                self.dtype.from_storage(array).astype(np.float64) for array in (image, gradient)
            )
            yield pixels, outputs, words


PROBLEMS = (MaskedConv2dWeightsProblem,)
