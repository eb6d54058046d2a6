"""``masked_conv2d``: convolution of images restricted by a mask of spatial blocks.

Shah and Nair, Block Sparse Convolution (CS6023), after Ren et al., SBNet: Sparse Blocks Network for Fast Inference,
CVPR 2018.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from sparsegen.errors import ConfigError
from sparsegen.matrix.bits import unpacked_rows, words_for
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import DType, WordType
from sparsegen.operators.base.fields import batch_size, element_type, parameter, size, trait
from sparsegen.operators.base.operator import Launcher, Operator
from sparsegen.operators.base.problem import LoneRow, Problem
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.rest import Rest
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.convolution.conv_traits import ConvEpilogue, Given, ImageLayout, MaskOf
from sparsegen.operators.convolution.mask_words import as_mask_words
from sparsegen.operators.convolution.window import Dilation, FilterSize, Groups, MaskBlock, Padding, Stride
from sparsegen.operators.masked.masked_problem import Density
from sparsegen.system.device_memory import WARP, PlainDevice
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.numpy_types import Array

UNIT = 8  # rows and columns of the outputs that are left as they were, or written, together


class MaskedConv2dOperator(Operator):
    """A convolution with a mask of spatial blocks for every call."""

    problem: MaskedConv2dProblem

    def __init__(self, problem: MaskedConv2dProblem, launcher: Launcher) -> None:
        super().__init__(problem, launcher)
        self._mask_shape = next(spec.shape for spec in problem.operands(0) if spec.name == "mask")

    def __call__(
        self,
        x: object,
        w: object,
        mask: object,
        out: object = None,
        stream: object = None,
        bias: object = None,
        residual: object = None,
    ) -> Any:
        """Convolve; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            x: height × width × channels, or channels × height × width (`ImageLayout`), contiguous, of the problem's
                dtype; with a batch one for each image, as are the result and the residual. Where the mask is of the
                input, pixels outside its blocks are zero; of any input they count as zero.
            w: filters × rows × columns × channels of a group.
            mask: the words of one, as `sparsegen.masks.words_of` makes them, of the operands' library; of all images
                in turn. Of PyTorch int64 will do, whose bits are taken.
            bias: a value for each filter, for an epilogue with a bias.
            residual: array of the result's shape, for an epilogue with a residual; another array than ``out``.
        """
        p = self.problem
        added = p.epilogue.given(bias, residual, p.filters)
        p.rest.require_out(out)
        return self._run((x, w, as_mask_words(mask, self._mask_shape), *added), out, stream)


@dataclass(frozen=True, slots=True)
class MaskedConv2dProblem(Problem):
    """Y = epilogue(conv(X, W)), with a mask of blocks for every call, over the input or over the output.

    The elements of a batch are images; each has a mask of its own, all have the same filters. With a mask M

    - over the output (SBNet's), Y = M · f(conv(X) + bias) + residual: elsewhere Y is zero, or the residual;
    - over the input, X is zero outside of it, and Y = f(conv(X) + bias) + residual everywhere;
    - over any input the same, with X that counts as zero outside of it, whatever it holds there.

    Where the rest is kept, outputs outside the mask's blocks (of the output) or in units of 8 × 8 outputs none of which
    reads a live block (of the input) are not written.

    Raises:
        ConfigError: sizes or sides that do not go together.
    """

    operator: ClassVar[str] = "masked_conv2d"
    title: ClassVar[str] = "masked convolution"
    summary: ClassVar[str] = "Y = conv(X, W) for the spatial blocks of a mask, another one for every call"
    matrix_sizes: ClassVar[tuple[str, str]] = ("height", "width")
    dense_sizes: ClassVar[tuple[str, ...]] = ("channels", "filters")
    has_pattern: ClassVar[bool] = False
    operator_type: ClassVar[type[MaskedConv2dOperator]] = MaskedConv2dOperator
    reference_files: ClassVar[tuple[str, ...]] = ("convolution.cu",)

    height: int = size("rows of the images", flags=("--image-height",))
    width: int = size("columns of the images", flags=("--image-width",))
    channels: int = size("channels of the images", usual=64)
    filters: int = size("channels of the result", usual=64)
    dtype: DType = element_type()
    filter_size: FilterSize = parameter(FilterSize(3, 3), "rows and columns of a filter")
    stride: Stride = parameter(Stride(1, 1), "pixels from one output to the next")
    padding: Padding = parameter(Padding(1, 1), "zeros on each side of the images")
    dilation: Dilation = parameter(Dilation(1, 1), "pixels from one tap of a filter to the next")
    groups: Groups = parameter(Groups(1), "groups of channels that are convolved apart")
    mask_block: MaskBlock = parameter(MaskBlock(16, 16), "rows and columns of a block of the spatial mask")
    density: Density = parameter(Density(0.5), "expected share of live blocks")
    mask_of: MaskOf = trait(MaskOf.OUTPUT, "whose blocks the mask names")
    rest: Rest = trait(Rest.FILLED, "what becomes of outputs that the mask leaves out")
    epilogue: ConvEpilogue = trait(
        ConvEpilogue.NONE, "what is done to the result before it is stored", near=True
    )
    batch: int = batch_size()
    layout: ImageLayout = trait(ImageLayout.NHWC, "memory order of images and result", unsaid=True)
    given: Given = trait(Given.LATEST, "when mask, filters and bias were written", near=True, unsaid=True)

    def __post_init__(self) -> None:
        Problem.__post_init__(self)
        for name, count in (("channels", self.channels), ("filters", self.filters)):
            if count % self.groups.count:
                raise ConfigError(f"{name} = {count} is no multiple of groups = {self.groups.count}")
        if min(self.out_height, self.out_width) < 1:
            raise ConfigError(
                f"a filter of {self.filter_size} with dilation {self.dilation} does not fit images of {self.height} × "
                f"{self.width} with padding {self.padding}"
            )

    # --- its sizes ---

    @property
    def out_height(self) -> int:
        reach = self.dilation.rows * (self.filter_size.rows - 1) + 1
        return (self.height + 2 * self.padding.rows - reach) // self.stride.rows + 1

    @property
    def out_width(self) -> int:
        reach = self.dilation.columns * (self.filter_size.columns - 1) + 1
        return (self.width + 2 * self.padding.columns - reach) // self.stride.columns + 1

    @property
    def alone(self) -> Self:
        """One image, in the same memory order."""
        return replace(self, batch=1)

    @property
    def group_channels(self) -> int:
        return self.channels // self.groups.count

    @property
    def taps(self) -> int:
        return self.filter_size.rows * self.filter_size.columns

    @property
    def masked_shape(self) -> tuple[int, int]:
        """Rows and columns of pixels that the mask lies over."""
        if self.mask_of.is_of_input:
            return self.height, self.width
        return self.out_height, self.out_width

    @property
    def mask_shape(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        height, width = self.masked_shape
        return ceil_div(height, self.mask_block.rows), ceil_div(width, self.mask_block.columns)

    # --- its sparsity ---

    @property
    def features_shape(self) -> tuple[int, int]:
        """`masked_shape`: with a stride or a padding the result has another size than the images."""
        return self.masked_shape

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the expected features of the masks."""
        return self.density.features(*self.masked_shape, self.mask_shape[1])

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """A name of the masks that are expected; there is no pattern to have one."""
        text = f"masks of {self.masked_shape} in blocks of {self.mask_block}, {self.density} live"
        return hashlib.sha256(text.encode()).hexdigest()

    def live(self, words: Array) -> Array:
        """bool for each pixel that the mask lies over, of one image's words."""
        rows, columns = self.mask_shape
        blocks = unpacked_rows(words.reshape(rows, -1), columns)
        height, width = self.masked_shape
        wide: Array = blocks.repeat(self.mask_block.rows, axis=0).repeat(self.mask_block.columns, axis=1)
        return wide[:height, :width]

    def counted(self, image: Array, words: Array) -> Array:
        """Returns the image with blocks set to zero that do not count; only masks of any input have such blocks."""
        if self.mask_of is not MaskOf.ANY_INPUT:
            return image
        of_live: Array = np.where(self.live(words)[..., None], image, np.zeros(1, image.dtype))
        return of_live

    def is_computed(self, words: Array) -> Array:
        """bool for each output of an image: whether the mask asks for it, or its unit reads a live block."""
        live = self.live(words)
        if self.mask_of is MaskOf.OUTPUT:
            return live
        height, width = self.out_height, self.out_width
        reached = np.zeros((round_up(height, UNIT), round_up(width, UNIT)), dtype=np.bool_)
        for part, _ in self.taps_of(live):
            reached[:height, :width] |= part
        units = reached.reshape(reached.shape[0] // UNIT, UNIT, -1, UNIT).any(axis=(1, 3))
        return units.repeat(UNIT, axis=0).repeat(UNIT, axis=1)[:height, :width]

    # --- its operands ---

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        filters = (self.filters, self.filter_size.rows, self.filter_size.columns, self.group_channels)
        image = self.layout.shape(self.height, self.width, self.channels)
        rows, columns = self.mask_shape
        specs = [
            TensorSpec("x", self.of_batch(image), self.dtype, 16),
            TensorSpec("w", filters, self.dtype, 16),
            TensorSpec("mask", self.of_batch((rows * words_for(columns),)), WordType.UINT64, 8),
        ]
        return (*specs, *self.epilogue.operands(self.filters, self.result(nnz), 16))

    def result(self, nnz: int) -> TensorSpec:
        shape = self.layout.shape(self.out_height, self.out_width, self.filters)
        return TensorSpec("y", self.of_batch(shape), self.dtype, 16, is_updated=self.rest is Rest.KEPT)

    def random_operands(
        self, rng: np.random.Generator, nnz: int, blocks: Array | None = None
    ) -> dict[str, Array]:
        """Masks at the expected density, and normal numbers; sums have variance 1.

        Args:
            blocks: these masks instead, bool, images × rows × columns of blocks.
        """
        found: dict[str, Array] = {}
        for spec in self.operands(nnz):
            if isinstance(spec.dtype, WordType):
                if blocks is None:
                    blocks = self.density.drawn(rng, (self.batch, *self.mask_shape))
                found[spec.name] = words_of(blocks).reshape(spec.shape)
                continue
            terms = self.taps * self.group_channels if spec.name == "w" else 1
            found[spec.name] = normal_numbers(rng, spec, scale=1 / math.sqrt(terms))
        if self.mask_of is MaskOf.INPUT:
            masks = found["mask"].reshape(self.batch, -1)
            shape = self.layout.shape(self.height, self.width, self.channels)
            images = self.layout.by_pixels(found["x"].reshape(self.batch, *shape))
            for image, words in zip(images, masks, strict=True):
                image[~self.live(words)] = 0
        return found

    def cost(self, nnz: int) -> Cost:
        """Sums of live blocks alone; images and result by their live blocks, but for a rest that is written."""
        pixels = self.out_height * self.out_width
        share = self.density.share
        flop = 2 * round(share * pixels) * self.filters * self.group_channels * self.taps
        written = 1.0 if self.rest is Rest.FILLED else share
        moved = 0.0
        for spec in (*self.operands(nnz), self.result(nnz)):
            moved += spec.nbytes * {"x": share, "y": written, "residual": written}.get(spec.name, 1.0)
        return Cost(flop=flop * self.batch, bytes=round(moved))

    def in_words(self, density: float) -> str:
        """The problem for people; it knows its density itself."""
        return f"{self}, {self.density.share:.1%} of the blocks live"

    # --- what it computes ---

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.taps * self.group_channels)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference`; what is kept is NaN."""
        real = {
            name: self.dtype.from_storage(array).astype(np.float64)
            for name, array in operands.items()
            if name != "mask"
        }
        for name in {"x", "residual"} & real.keys():
            real[name] = self.layout.by_pixels(real[name])
        real["x"] = self.counted(real["x"], operands["mask"])
        exact = np.zeros((self.out_height, self.out_width, self.filters))
        magnitude = np.zeros_like(exact)
        of_group, per_group = self.group_channels, self.filters // self.groups.count
        for part, tap in self.taps_of(real["x"]):
            filters = real["w"][:, tap[0], tap[1]]
            for group in range(self.groups.count):
                own = slice(group * per_group, (group + 1) * per_group)
                pixels = part[..., group * of_group : (group + 1) * of_group]
                exact[..., own] += pixels @ filters[own].T
                magnitude[..., own] += np.abs(pixels) @ np.abs(filters[own]).T
        computed = self.is_computed(operands["mask"])[..., None]
        if self.epilogue.has_bias:
            exact, magnitude = exact + real["bias"], magnitude + np.abs(real["bias"])
        exact, magnitude = self.epilogue.activated(exact, magnitude)
        if self.mask_of is MaskOf.OUTPUT:
            exact, magnitude = np.where(computed, exact, 0.0), np.where(computed, magnitude, 0.0)
        if self.epilogue.has_residual:
            exact, magnitude = exact + real["residual"], magnitude + np.abs(real["residual"])
        if self.rest is Rest.KEPT:
            exact = np.where(computed, exact, self.rest.left)
        return Reference(
            self.layout.stored(exact), self.layout.stored(magnitude), self.terms(matrix), self.dtype
        )

    def taps_of(self, image: Array) -> Any:
        """Yields the pixels that the outputs read for each tap, by row and column; zeros, or False, outside the
        image.
        """
        rows, columns = self.padding.rows, self.padding.columns
        margins = ((rows, rows), (columns, columns), *[(0, 0)] * (image.ndim - 2))
        padded = np.pad(image, margins)
        for r in range(self.filter_size.rows):
            for s in range(self.filter_size.columns):
                top, left = r * self.dilation.rows, s * self.dilation.columns
                below = padded[top :: self.stride.rows, left :: self.stride.columns]
                yield below[: self.out_height, : self.out_width], (r, s)

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        computed = device.upload(self.is_computed(operands["mask"]).astype(np.uint8))
        nothing = np.zeros(1, np.float32)
        names = ("x", "w", "bias", "residual")
        x = self.counted(self.layout.by_pixels(operands["x"]), operands["mask"])
        images = operands["x"] if self.mask_of is not MaskOf.ANY_INPUT else self.layout.stored(x)
        by_filters = np.ascontiguousarray(
            operands["w"].transpose(1, 2, 3, 0)
        )  # neighbouring threads have neighbours
        real = {**operands, "x": images, "w": by_filters}
        given = [device.upload(real.get(name, nothing)) for name in names]
        sizes = (
            *(self.height, self.width, self.channels, self.filters, self.out_height, self.out_width),
            *(self.filter_size.rows, self.filter_size.columns, self.stride.rows, self.stride.columns),
            *(self.padding.rows, self.padding.columns, self.dilation.rows, self.dilation.columns),
            self.groups.count,
            int(self.mask_of is MaskOf.OUTPUT),
            int(self.rest is Rest.KEPT),
            list(ConvEpilogue).index(self.epilogue),
            int(self.layout.has_planes),
        )
        warps = ceil_div(self.out_height * self.out_width * self.filters, WARP)
        device.run("convolution.cu:convolution", warps, *sizes, *given, computed, into.exact, into.magnitude)

    def checkable_rows(self, matrix: CsrMatrix) -> Array:
        """All outputs, each with all its channels."""
        return np.arange(self.out_height * self.out_width)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        """One output, as the convolution of as many pixels as a filter reaches."""
        at_row, at_column = divmod(row, self.out_width)
        reach = [
            d * (count - 1) + 1
            for d, count in (
                (self.dilation.rows, self.filter_size.rows),
                (self.dilation.columns, self.filter_size.columns),
            )
        ]
        alone = replace(
            self,
            height=reach[0],
            width=reach[1],
            stride=Stride(1, 1),
            padding=Padding(0, 0),
            mask_of=MaskOf.OUTPUT,
            layout=ImageLayout.NHWC,
        )
        top, left = (
            at * stride - padding
            for at, stride, padding in (
                (at_row, self.stride.rows, self.padding.rows),
                (at_column, self.stride.columns, self.padding.columns),
            )
        )
        pixels = np.zeros((*reach, self.channels), operands["x"].dtype)
        rows = slice(max(top, 0), min(top + reach[0], self.height))
        columns = slice(max(left, 0), min(left + reach[1], self.width))
        inside = self.layout.by_pixels(operands["x"])[rows, columns]
        if self.mask_of is MaskOf.ANY_INPUT:
            inside = np.where(self.live(operands["mask"])[rows, columns, None], inside, inside.dtype.type(0))
        pixels[rows.start - top :, columns.start - left :][: inside.shape[0], : inside.shape[1]] = inside
        computed = bool(self.is_computed(operands["mask"])[at_row, at_column])
        # With a mask of the input, outputs that it does not reach are zeros, unless they are kept.
        wanted = computed or (self.mask_of.is_of_input and self.rest is Rest.FILLED)
        given = {
            "x": pixels,
            "w": operands["w"],
            "mask": words_of(np.full((1, 1, 1), wanted)).reshape(-1),
        }
        if self.epilogue.has_bias:
            given["bias"] = operands["bias"]
        if self.epilogue.has_residual:
            residual = self.layout.by_pixels(operands["residual"])
            given["residual"] = np.ascontiguousarray(residual[at_row, at_column]).reshape(1, 1, -1)
        outputs = self.out_height * self.out_width
        places = np.arange(self.filters)
        places = row + places * outputs if self.layout.has_planes else row * self.filters + places
        return LoneRow(alone, alone.without_pattern, given, places)


PROBLEMS = (MaskedConv2dProblem,)
