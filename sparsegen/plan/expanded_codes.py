"""The full weight of packed codes by one launch, into memory of the caller's."""

from __future__ import annotations

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import THREADS, PlainKernels
from sparsegen.errors import OperandError
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.two_four import STRIP, is_paired, units_across
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.quantized.code_streams_device import followed
from sparsegen.kernels.quantized.quantized_csr_spmm import QuantizedCsrConfig
from sparsegen.kernels.quantized.quantized_sparse_mma_spmm import QuantizedSparseMmaConfig
from sparsegen.kernels.quantized.quantized_stream_spmm import (
    CHUNK_BYTES,
    QuantizedStreamConfig,
    partition_of,
    unit_of,
)
from sparsegen.operators import QuantizedSpmmProblem, ScaleGroup, Symmetry
from sparsegen.plan.binding import BoundVariant
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP, Buffer
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

WARPS = 4  # of a thread block that expands streams


class ExpandedCodes(OwnLaunch):
    """Writes m × k weights, row-major and with their zeros, from what a variant of `quantized_spmm` reads.

    ``bound(stream, address of the weights)``; an address that 16 bytes divide. Each weight is rounded once, to the
    problem's dtype.

    Attributes:
        entry, launch: the kernel and its dimensions.
        arguments: its parameters but for the last one, the weights' address.
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
        executor = variant.executor
        with executor.entered():
            if isinstance(config, QuantizedStreamConfig):
                kind, file, launch, arguments = _of_streams(problem, config, packed, executor)
            elif isinstance(config, QuantizedSparseMmaConfig):
                kind, file, launch, arguments = _of_units(problem, config, packed)
            elif isinstance(config, QuantizedCsrConfig):
                kind, file, launch, arguments = _of_rows(problem, config, packed)
            else:
                raise OperandError(f"{config.family_name} packs codes in a way that is not known here")
            self.entry, self.launch = f"expand_{kind}_{problem.dtype}", launch
            (self._kernel,) = plain_launchers(executor, file, self.entry)
            given = (
                [scales]
                if isinstance(config, QuantizedSparseMmaConfig)
                else [scales, scales if zero_points is None else zero_points]
            )
            of_groups = [executor.upload(np.ascontiguousarray(a, dtype=np.float32)) for a in given]
            executor.synchronize()  # calls may come on other streams
        self._shape = problem.m, problem.k
        self.arguments: tuple[Buffer | int, ...] = (*arguments, *of_groups)

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
        return self._kernel.bind(self.launch, *self.arguments, None)


def _of_streams(
    problem: QuantizedSpmmProblem, config: QuantizedStreamConfig, packed: Packed[Buffer], executor: Executor
) -> tuple[str, str, Launch, list[Buffer | int]]:
    """The codes' kind, file, launch, and arguments but for the last three, for what `quantized_stream_spmm` packed.

    A warp expands a step's warp: where in its stream that begins is found here, once.
    """
    unit, p = unit_of(problem), partition_of(problem, config)
    steps = p.total if problem.k else 0  # without columns there is nothing to write
    kept, device = config.ring_chunks - config.depth, PlainKernels(executor)
    positions, *_ = followed(device, packed.arrays["masks"], p, unit, kept)
    device.finish()
    return (
        f"{problem.value_type}_pairs" if unit.codes == 2 else problem.value_type,
        "code_stream_weights.cu",
        Launch(
            (ceil_div(steps, WARPS), p.warps_m, p.warps_k), (WARP * WARPS, 1, 1), WARPS * kept * CHUNK_BYTES
        ),
        [
            *(problem.m, problem.k, p.used_blocks, p.total, p.steps, p.warps_m, p.warps_k, kept),
            *(_shift_of(problem), int(config.row_order == "balanced")),
            int(problem.symmetry is Symmetry.ASYMMETRIC),
            *(packed.arrays["masks"], positions),
            *(packed.arrays[name] for name in ("starts", "values", "rows")),
        ],
    )


def _shift_of(problem: QuantizedSpmmProblem) -> int:
    """Returns by how many bits a column's number is shifted to that of its group of scales."""
    if problem.scale_group is ScaleGroup.ROW:
        return 31
    return problem.scale_group.size(problem.k).bit_length() - 1


def _of_units(
    problem: QuantizedSpmmProblem, config: QuantizedSparseMmaConfig, packed: Packed[Buffer]
) -> tuple[str, str, Launch, list[Buffer | int]]:
    """The same for what `quantized_sparse_mma_spmm` packed, which has no zero points."""
    strips, across = ceil_div(problem.m, STRIP), units_across(problem.k, config.of_columns)
    order = int(is_paired(problem.value_type, problem.dtype))
    sizes = (
        problem.m,
        problem.k,
        config.of_columns,
        strips,
        across,
        packed.sizes["layers"],
        order,
        problem.scale_group.size(problem.k),
    )
    arrays = [packed.arrays[name] for name in ("codes", "metadata")]
    return (
        problem.value_type,
        "two_four_weights.cu",
        Launch.flat(strips * across * WARP, THREADS),
        [*sizes, *arrays],
    )


def _of_rows(
    problem: QuantizedSpmmProblem, config: QuantizedCsrConfig, packed: Packed[Buffer]
) -> tuple[str, str, Launch, list[Buffer | int]]:
    """The same for what `quantized_csr_spmm` packed."""
    return (
        problem.value_type,
        "csr_code_weights.cu",
        Launch.flat((problem.m if problem.k else 0) * WARP, THREADS),
        [
            *(problem.m, problem.k, problem.scale_group.size(problem.k)),
            *(int(problem.symmetry is Symmetry.ASYMMETRIC), int(config.index_bits == 16)),
            *(packed.arrays[name] for name in ("row_offsets", "column_indices", "codes")),
        ],
    )
