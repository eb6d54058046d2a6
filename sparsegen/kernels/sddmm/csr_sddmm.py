"""Sputnik's SDDMM: 1-D strips of nonzeros, subwarps, vector accesses (Gale et al., SC 2020, section VI)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants
from sparsegen.kernels.layouts.limits import THREADS_PER_MULTIPROCESSOR
from sparsegen.kernels.layouts.loads import LINE_BYTES, widest_vector
from sparsegen.kernels.layouts.rows import align_runs
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.sddmm.sampled import VALUES, SampledProduct
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.operators import DType, SddmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

STATIC_SHARED_BYTES = 48 * 1024
REGISTERS = 208  # registers for sums and elements in flight; addresses and counters take the rest of 255
START_US = 0.84
# Fitted, in a multiprocessor's cycles: for a warp's load of B, for each 128 bytes of it, for a strip (rows of ``m`` end
# with half a strip), and those that a batch waits, beside others.
LOAD_CYCLES, LINE_CYCLES, STRIP_CYCLES, BATCH_CYCLES = 4.8, 1.0, 10.7, 52.0
MOVES = 2.25  # multiple of the time for the least traffic
ALONE_US = (
    0.45  # microseconds of a batch whose loads nothing hides (drawn problems with a long k, H200, L2 cold)
)
CLEARLY = 0.7  # of the time of usual subwarps, from which on others take their place
FILLING_BLOCKS = 4  # blocks for each multiprocessor: fewer leave some of them idle


@dataclass(frozen=True)
class CsrSddmmConfig(Config):
    """One point of the tuning space of `CsrSddmm`."""

    strip: int = tunable(
        16, (4, 8, 16, 32, 64), "nonzeros of a row that a subwarp computes", searched=(8, 16, 32), packs=True
    )
    batch: int = tunable(
        4, (1, 2, 4, 8, 16), "nonzeros whose rows of B are loaded together", searched=(2, 4, 8), packs=True
    )
    threads_per_strip: int = tunable(16, (2, 4, 8, 16, 32), "threads of a subwarp", searched=(4, 8, 16, 32))
    strips_per_block: int = tunable(8, (1, 2, 4, 8, 16, 32, 64), "subwarps of a block")
    vector_width: int = tunable(4, (1, 2, 4, 8), "elements per load of A and B")
    unroll_k: int = tunable(1, (1, 2, 4), "loads of a thread along a row, one after another")
    row_order: str = tunable(
        "natural",
        ("natural", "sorted"),
        "row swizzle: strips as the rows have them, or full ones first, so that a warp's subwarps end together",
        packs=True,
    )
    reduction: str = tunable(
        "shuffle",
        ("shuffle", "transpose"),
        "how a subwarp adds its partial sums: by shuffles, or transposed through shared memory",
    )


class CsrSddmm(SampledProduct[CsrSddmmConfig]):
    """Rows are cut into strips of nonzeros; a subwarp keeps a strip's sums and goes along k with its row of A.

    The strips are listed when the pattern is packed, where the paper launches one block for each strip that the longest
    row could have and lets those without work return.
    """

    name = "csr_sddmm"
    summary = "CSR SDDMM in 1-D strips of nonzeros with subwarps and vector loads"
    source = "Gale, Zaharia, Young, Elsen: Sparse GPU Kernels for Deep Learning, SC 2020, section VI"
    size_names = ("k", "tasks")
    packed_names = ("strips", "column_indices", VALUES)

    def constraints(
        self, problem: SddmmProblem, config: CsrSddmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, itemsize = config, problem.dtype.itemsize
        threads = c.threads_per_strip * c.strips_per_block
        yield Constraint(
            threads % 32 == 0 and threads <= 1024,
            f"threads_per_strip · strips_per_block ({threads}) is a multiple of 32, at most 1024",
        )
        yield Constraint(c.strip % c.batch == 0, f"batch ({c.batch}) divides strip ({c.strip})")
        yield Constraint(
            c.vector_width * itemsize <= 16, f"vector_width ({c.vector_width}) elements are at most 16 bytes"
        )
        yield Constraint(
            problem.k % c.vector_width == 0,
            f"vector_width ({c.vector_width}) divides k ({problem.k}), so that rows are aligned",
        )
        step = c.threads_per_strip * c.vector_width * c.unroll_k
        yield Constraint(
            problem.k + step <= MAX_INDEX, f"k ({problem.k}) and a step ({step}) stay within 32 bits"
        )
        words = ceil_div(c.vector_width * itemsize, 4)
        held = c.strip + c.unroll_k * (c.batch * words + c.vector_width)
        yield Constraint(
            held <= REGISTERS,
            f"a strip's sums and a batch's elements under way ({held} registers) are at most {REGISTERS}",
        )
        shared = (
            4 * c.strips_per_block * c.strip * (c.threads_per_strip + 1) if c.reduction == "transpose" else 0
        )
        yield Constraint(
            shared <= STATIC_SHARED_BYTES, f"static shared memory ({shared} bytes) is at most 48 KiB"
        )

    def is_worth_trying(self, problem: SddmmProblem, config: CsrSddmmConfig, device: Device) -> bool:
        """True for blocks of 128 or 256 threads, the widest loads or half of these, and strips that a row of A and B
        fills. It rests on arithmetic: narrower loads take more instructions, and longer strips idle.
        """
        c = config
        widest = widest_vector(problem.k, problem.dtype)
        return (
            c.threads_per_strip * c.strips_per_block in (128, 256)
            and c.vector_width in (widest, widest // 2)
            and (c.unroll_k == 1 or c.threads_per_strip * c.vector_width * c.unroll_k <= problem.k)
            and (c.threads_per_strip == 4 or c.threads_per_strip * c.vector_width < 2 * problem.k)
        )

    def constants(self, problem: SddmmProblem, config: CsrSddmmConfig) -> Mapping[str, Value]:
        step = config.threads_per_strip * config.vector_width * config.unroll_k
        return {
            "dtype": problem.dtype.value,
            "epilogue": problem.epilogue.value,
            "whole_steps": problem.k % step == 0,
            **batch_constants(problem),
        }

    def pack(self, problem: SddmmProblem, config: CsrSddmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        strips = cut(matrix, config.strip)
        if config.row_order == "sorted":
            strips = strips[np.argsort(-strips[:, 2], kind="stable")]
        runs = align_runs(strips[:, 2], strips[:, 1], config.batch, tail=config.batch)
        tasks = np.column_stack((strips, runs.offsets[:-1])).astype(np.int32)
        arrays = {
            "strips": empty_as_one(tasks),
            "column_indices": runs.gather_repeating(matrix.column_indices),
        }
        sizes = {"tasks": len(tasks), "nnz": matrix.nnz}
        return self.with_values(problem, matrix, arrays, sizes)

    def expected_sizes(
        self, problem: SddmmProblem, features: Features, config: CsrSddmmConfig
    ) -> Mapping[str, int]:
        return {"tasks": round(self._strips(features, config))}

    def launch(
        self, problem: SddmmProblem, config: CsrSddmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        return Launch(
            grid=(ceil_div(sizes["tasks"], c.strips_per_block), 1, problem.batch),
            block=(c.threads_per_strip * c.strips_per_block, 1, 1),
        )

    def analytic_us(
        self, problem: SddmmProblem, features: Features, config: CsrSddmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        strips = self._strips(features, c)
        steps = ceil_div(problem.k, c.threads_per_strip * c.vector_width * c.unroll_k)
        loads = features.nnz * steps * c.unroll_k * c.threads_per_strip / WARP
        lines = WARP * c.vector_width * problem.dtype.itemsize / LINE_BYTES
        cycles = problem.batch * (loads * (LOAD_CYCLES + lines * LINE_CYCLES) + strips * STRIP_CYCLES)
        resident = device.multiprocessors * (
            THREADS_PER_MULTIPROCESSOR // c.threads_per_strip
        )  # strips at a time
        waves = max(1.0, problem.batch * strips / resident)
        waited = waves * steps * c.unroll_k * c.strip / c.batch * BATCH_CYCLES
        moved = MOVES * problem.cost(features.nnz).bytes
        together = cycles / device.cycles_per_us + waited / rates.clock_mhz + moved / rates.copy_bytes_per_us
        batches = ceil_div(
            round(min(c.strip, max(1.0, features.row_mean))), c.batch
        )  # of a subwarp, one after another
        return rates.launch_us + START_US + max(together, steps * batches * ALONE_US)

    @staticmethod
    def _strips(features: Features, config: CsrSddmmConfig) -> float:
        """About how many strips rows are cut into: the last one of each is half full."""
        return features.nnz / config.strip + features.m / 2

    def heuristic(self, problem: SddmmProblem, features: Features, device: Device) -> CsrSddmmConfig:
        vector = widest_vector(problem.k, problem.dtype)
        threads = max(2, min(16, 1 << (ceil_div(problem.k, vector) - 1).bit_length()))
        strip = 16
        # Rows shorter than a strip leave batches of it idle, and so does a grid that is too small.
        while strip > 4 and (
            features.row_mean < strip / 2
            or problem.batch * features.nnz * threads < FILLING_BLOCKS * 128 * strip * device.multiprocessors
        ):
            strip //= 2
        usual = CsrSddmmConfig(
            strip=strip, threads_per_strip=threads, strips_per_block=128 // threads, vector_width=vector
        )
        # Few strips along a long k wait for their loads: more threads and loads of each take fewer steps.
        wider = [
            replace(usual, threads_per_strip=WARP, strips_per_block=128 // WARP, unroll_k=unroll)
            for unroll in (1, 2, 4)
            if WARP * vector * unroll <= problem.k
        ]

        def us(config: CsrSddmmConfig) -> float:
            return self.analytic_us(problem, features, config, device)

        best = min(wider, key=us, default=usual)
        return best if us(best) < CLEARLY * us(usual) else usual

    def published(self, problem: SddmmProblem) -> tuple[CsrSddmmConfig, ...]:
        """Strips of 32 nonzeros and the widest possible loads (section VII), in float32 alone (Table I).

        Rows are swizzled (Table II) and sums added by shuffles (VI-A). The paper leaves open blocks of one warp with
        subwarps of 8 threads for vectors of 4, 16 for 2, 32 for 1: so in the authors' code.
        """
        if problem.dtype is not DType.FLOAT32:
            return ()
        vector = widest_vector(problem.k, problem.dtype)
        published = CsrSddmmConfig(
            strip=32,
            threads_per_strip=32 // vector,
            strips_per_block=vector,
            vector_width=vector,
            row_order="sorted",
            reduction="shuffle",
        )
        return (published,)


def cut(matrix: CsrMatrix, strip: int) -> Array:
    """The strips of all rows, in CSR order: int64 [strips, 3] of row, first nonzero and number of nonzeros."""
    offsets = matrix.row_offsets.astype(np.int64)
    lengths = np.diff(offsets)
    per_row = ceil_div(lengths, strip)
    row = np.repeat(np.arange(lengths.size), per_row)
    within = np.arange(row.size) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    first = offsets[:-1][row] + within * strip
    return np.column_stack((row, first, np.minimum(strip, offsets[1:][row] - first)))


FAMILY = CsrSddmm()
