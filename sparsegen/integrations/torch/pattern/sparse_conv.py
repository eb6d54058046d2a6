"""A convolution with pruned filters, as a sparse product over those taps and channels that filters still read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import ConfigError, OperandError, PruningError
from sparsegen.integrations.torch.calls.layer_weights import (
    current_bias,
    current_weight,
    keep_hooks,
    trains,
)
from sparsegen.integrations.torch.calls.reach import reach_of
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pointwise import is_pointwise
from sparsegen.matrix.spatial_mask import Reach
from sparsegen.pruning.pruner import prune
from sparsegen.pruning.request import PatternName


def is_sparse_convolution(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """True if a module is a plain convolution that `SparseConv2d` takes, of filters larger than 1 × 1 or padded."""
    if type(module) is not nn.Conv2d or is_pointwise(module):
        return False
    try:
        reach_of(module)
    except ConfigError:
        return False
    return module.groups == 1 and module.padding_mode == "zeros"


class SparseConv2d(nn.Module):
    """`torch.nn.Conv2d` with pruned filters: im2col and a sparse product, forward and backward.

    The columns of the sparse weight are taps and channels. A column that no filter reads any more is neither gathered
    nor multiplied, so that taps and channels that were pruned as a whole cost nothing; what is left of the others is
    skipped nonzero by nonzero. A filter of 1 × 1 with stride 1 gathers nothing at all.

    Attributes:
        product: the weight, filters × `columns`; its values and its bias are the layer's parameters.
        columns: numbers of taps · channels + channel that filters read, in order.
        reach: filter size, stride, padding and dilation.
    """

    columns: Tensor

    def __init__(self, product: SparseLinear, columns: Tensor, channels: int, reach: Reach) -> None:
        """Make a layer of its parts; `from_dense` makes one of a dense layer."""
        super().__init__()
        self.product, self.channels, self.reach = product, channels, reach
        self.register_buffer("columns", columns)
        self._find_channels()

    def _find_channels(self) -> None:
        """Derive from the columns the channels of each tap that are gathered."""
        columns, channels, taps = self.columns, self.channels, self.reach.kernel[0] * self.reach.kernel[1]
        for name in [name for name in self._buffers if name.startswith("channels_")]:
            delattr(self, name)
        parts = [columns[columns // channels == tap] % channels for tap in range(taps)]
        # Number and channels of each tap that is read; None for all channels.
        self._taps = [
            (tap, None if len(part) == channels else number)
            for number, (tap, part) in enumerate((tap, part) for tap, part in enumerate(parts) if len(part))
        ]
        for number, part in enumerate(part for part in parts if len(part)):
            self.register_buffer(f"channels_{number}", part, persistent=False)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._find_channels()

    @classmethod
    def from_dense(
        cls,
        dense: nn.Conv2d,
        mask: object = None,
        *,
        sparsity: float | None = None,
        pattern: PatternName | str = PatternName.UNSTRUCTURED,
        run_dense: Dense | str = Dense.AUTO,
        db: str | Path | None = None,
    ) -> SparseConv2d:
        """The layer with some of a dense one's weights, on its device and of its dtype.

        Args:
            mask: filters × channels × rows × columns; what is not zero stays. With neither mask nor sparsity the
                weights that are not zero stay.
            sparsity: share of weights to leave out instead, in a pattern of `sparsegen.prune` over filters × (taps ·
                channels).
            run_dense: permission of dense products of the gathered columns; see `SparsePattern`.
            db: the tuning database that calls look into, see `sparsegen.prepare`.

        Raises:
            ConfigError: groups, padding by other than zeros, or by more of them on one side.
            PruningError: a mask and a sparsity, or no weight is left.
            OperandError: a mask of another shape.
        """
        arguments.instance(dense, nn.Conv2d, "dense", OperandError)
        if dense.groups != 1 or dense.padding_mode != "zeros":
            raise ConfigError("a convolution with pruned filters has one group and is padded by zeros")
        reach = reach_of(dense)
        if mask is not None and sparsity is not None:
            raise PruningError("give a mask or a sparsity, not both")
        weight = by_taps(current_weight(dense))
        if sparsity is not None:
            kept = torch.as_tensor(prune(weight, pattern=pattern, sparsity=sparsity).weights) != 0
        elif mask is not None:
            try:
                given = torch.as_tensor(mask)
            except (RuntimeError, TypeError, ValueError) as error:
                raise OperandError(f"mask: expected what torch.as_tensor takes, got {mask!r}") from error
            if given.shape != dense.weight.shape:
                raise OperandError(
                    f"mask: expected shape {tuple(dense.weight.shape)}, got {tuple(given.shape)}"
                )
            kept = by_taps(given) != 0
        else:
            kept = weight != 0
        kept = kept.to(weight.device)
        columns = kept.any(0).nonzero()[:, 0]
        if not len(columns):
            raise PruningError("no weight of the convolution is left")
        rows = nn.Linear(
            len(columns),
            dense.out_channels,
            dense.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            rows.weight.copy_(weight[:, columns])
            bias = current_bias(dense)
            if bias is not None:
                rows.bias.copy_(bias)
                rows.bias.requires_grad_(trains(dense, "bias"))
        rows.weight.requires_grad_(trains(dense, "weight"))
        product = SparseLinear.from_dense(rows, kept[:, columns], run_dense=run_dense, db=db)
        made = cls(product, columns, dense.in_channels, reach).train(dense.training)
        keep_hooks(dense, made)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Returns images × filters × height × width, in x's memory format.

        Args:
            x: images × channels × height × width; in `torch.channels_last` it is read where it lies, and so is the
                result.

        Raises:
            OperandError: images of other channels.
        """
        require_tensors(x=x)
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise OperandError(
                f"x: expected images × {self.channels} channels × height × width, got {tuple(x.shape)}"
            )
        rows, columns = self.reach.output_size((int(x.shape[2]), int(x.shape[3])))
        gathered = self._gathered(x.permute(0, 2, 3, 1), rows, columns)
        found: Tensor = self.product(gathered.flatten(0, 2))
        images = found.reshape(x.shape[0], rows, columns, self.product.out_features).permute(0, 3, 1, 2)
        return images.contiguous() if x.is_contiguous() else images

    def _gathered(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """Images × rows × columns × the columns of the weight: what each output reads."""
        reach = self.reach
        down, across = reach.padding
        if down or across:
            pixels = functional.pad(pixels, (0, 0, across, across, down, down))
        parts = []
        for tap, number in self._taps:
            top, left = tap // reach.kernel[1] * reach.dilation[0], tap % reach.kernel[1] * reach.dilation[1]
            part = pixels[:, top :: reach.stride[0], left :: reach.stride[1]][:, :rows, :columns]
            parts.append(
                part if number is None else part.index_select(3, self.get_buffer(f"channels_{number}"))
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)

    def extra_repr(self) -> str:
        """Describes which part of the filters is read."""
        taps = self.reach.kernel[0] * self.reach.kernel[1]
        return f"{len(self._taps)} of {taps} taps, {len(self.columns)} of {taps * self.channels} columns"


def by_taps(weight: Tensor) -> Tensor:
    """Filters × (taps · channels), of filters × channels × rows × columns."""
    return weight.permute(0, 2, 3, 1).flatten(1)
