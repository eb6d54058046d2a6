"""The full weight of packed codes by one launch, into memory of the caller's."""

from __future__ import annotations

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.kernels.layouts.lane_stream import ORDERS_AT_ONCE
from sparsegen.kernels.layouts.two_four import STRIP, is_paired, units_across
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.quantized.quantized_sparse_mma_spmm import QuantizedSparseMmaConfig
from sparsegen.kernels.quantized.quantized_stream_spmm import QuantizedStreamConfig, unit_of
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.operators import QuantizedSpmmProblem, Symmetry
from sparsegen.plan.binding import BoundVariant
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP, Buffer
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.numpy_types import Array


class ExpandedCodes(OwnLaunch):
    """Writes m × k weights, row-major and with their zeros, from what a variant of `quantized_spmm` reads.

    ``bound(stream, address of the weights)``; an address that 16 bytes divide. Each weight is rounded once, to the
    problem's dtype.
    """

    def __init__(self, variant: BoundVariant, scales: Array, zero_points: Array | None) -> None:
        """
        Args:
            scales, zero_points: groups × m, as real numbers; the latter for an asymmetric problem.

        Raises:
            OperandError: a variant of another family.
            CompileError, DeviceUnavailableError, LaunchError: the kernel cannot be compiled or loaded.
        """
        super().__init__(variant.executor)
        rendered, packed = variant.compiled.rendered, variant.packed
        problem, config = rendered.problem, rendered.config
        if not isinstance(problem, QuantizedSpmmProblem):
            raise OperandError(
                f"codes are expanded that a family of quantized_spmm packed, not {config.family_name}"
            )
        if isinstance(config, QuantizedStreamConfig):
            kind, file, warps, arguments = _of_streams(problem, config, packed)
        elif isinstance(config, QuantizedSparseMmaConfig):
            kind, file, warps, arguments = _of_units(problem, packed)
        else:
            raise OperandError(f"{config.family_name} packs codes in a way that is not known here")
        executor = variant.executor
        with executor.entered():
            entry = f"expand_{kind}_{problem.dtype}"
            (self._kernel,) = plain_launchers(executor, file, entry)
            given = (
                [scales]
                if isinstance(config, QuantizedSparseMmaConfig)
                else [scales, scales if zero_points is None else zero_points]
            )
            of_groups = [executor.upload(np.ascontiguousarray(a, dtype=np.float32)) for a in given]
            executor.synchronize()  # calls may come on other streams
        self._shape = problem.m, problem.k
        self._threads = warps * WARP
        self._arguments: list[Buffer | int | TensorMap | None] = [*arguments, *of_groups, None]

    def weights(self) -> Array:
        """The weights on the host, uint16 [m, k], as their 16-bit elements are stored."""
        full = self.executor.allocate(2 * self._shape[0] * self._shape[1] or 1)
        found = np.empty(self._shape, dtype=np.uint16)
        with self.executor.entered():
            self.bound()(0, full.address)
            self.executor.synchronize()
            if found.size:
                self.executor.download(full, found)
        return found

    def _bind(self) -> Bound:
        return self._kernel.bind(self._threads, *self._arguments)


def _of_streams(
    problem: QuantizedSpmmProblem, config: QuantizedStreamConfig, packed: Packed[Buffer]
) -> tuple[str, str, int, list[Buffer | int]]:
    """The codes' kind, file, warps, and arguments but for the last three, for what `quantized_stream_spmm` packed."""
    warps, sizes = config.warps_m * config.warps_k, packed.sizes
    return (
        f"{problem.value_type}_pairs" if unit_of(problem).codes == 2 else problem.value_type,
        "code_stream_weights.cu",
        sizes["used_blocks"] * warps,
        [
            *(problem.m, problem.k, sizes["used_blocks"], sizes["groups"] * sizes["steps"], sizes["steps"]),
            *(
                config.warps_m,
                config.warps_k,
                round_up(warps, ORDERS_AT_ONCE),
                config.ring_chunks - config.depth,
            ),
            *(problem.scale_group.size(problem.k), int(config.row_order == "balanced")),
            int(problem.symmetry is Symmetry.ASYMMETRIC),
            *(packed.arrays[name] for name in ("masks", "orders", "starts", "values", "rows")),
        ],
    )


def _of_units(
    problem: QuantizedSpmmProblem, packed: Packed[Buffer]
) -> tuple[str, str, int, list[Buffer | int]]:
    """The same for what `quantized_sparse_mma_spmm` packed, which has no zero points."""
    strips, across = ceil_div(problem.m, STRIP), units_across(problem.k)
    order = int(is_paired(problem.value_type, problem.dtype))
    sizes = (
        problem.m,
        problem.k,
        strips,
        across,
        packed.sizes["layers"],
        order,
        problem.scale_group.size(problem.k),
    )
    arrays = [packed.arrays[name] for name in ("codes", "metadata")]
    return problem.value_type, "two_four_weights.cu", strips * across, [*sizes, *arrays]
