"""SpMM for decoding: weights of 8 or 4 bits with 2:4 sparsity times few tokens, on sparse tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparsegen.kernels.base import Constraint
from sparsegen.kernels.config import Value
from sparsegen.kernels.layouts.limits import TENSOR_CORES
from sparsegen.kernels.layouts.sparse_mma import SparseMma, SparseMmaConfig
from sparsegen.kernels.layouts.two_four import is_paired, pack, pack_chosen, pack_there
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.chosen_columns import CHOSEN
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DType, QuantizedSpmmProblem, ScaleGroup, Symmetry, ValueType
from sparsegen.system.device_memory import Buffer, PlainDevice
from sparsegen.system.numpy_types import Array

FIRST_WITH_E4M3 = (8, 9)


@dataclass(frozen=True)
class QuantizedSparseMmaConfig(SparseMmaConfig):
    """One point of the tuning space of `QuantizedSparseMmaSpmm`."""


class QuantizedSparseMmaSpmm(SparseMma[QuantizedSpmmProblem, QuantizedSparseMmaConfig]):
    """Codes become 16-bit elements exactly; sums of a group of columns are multiplied by its scale."""

    name = "quantized_sparse_mma_spmm"
    summary = "SpMM for few columns and 2:4 sparsity: codes of 8 or 4 bits for sparse tensor cores"
    source = (
        f"{SparseMma.source}; codes of 4 bits beside it: Frantar et al., MARLIN, PPoPP 2025, section 4; integers in "
        "the fraction of a half: Kim et al., Who Says Elephants Can't Run, 2022, section 3"
    )
    packed_names = ("codes", "metadata")
    problem_type = QuantizedSpmmProblem
    config_type = QuantizedSparseMmaConfig

    def value_bits(self, problem: QuantizedSpmmProblem) -> int:
        return problem.value_type.bits

    def group_columns(self, problem: QuantizedSpmmProblem) -> int:
        return 0 if problem.scale_group is ScaleGroup.ROW else problem.scale_group.size(problem.k)

    def first_capability(self, problem: QuantizedSpmmProblem) -> tuple[int, int]:
        """See `SparseMma.first_capability`: instructions that convert e4m3 to float16 are later ones."""
        converts = problem.value_type is ValueType.E4M3 and problem.dtype is DType.FLOAT16
        return FIRST_WITH_E4M3 if converts else TENSOR_CORES

    def scope(self, problem: QuantizedSpmmProblem) -> Iterator[Constraint]:
        yield from super().scope(problem)
        yield Constraint(
            problem.symmetry is Symmetry.SYMMETRIC,
            f"codes are {Symmetry.SYMMETRIC}, as some fours are filled with zeros (they are {problem.symmetry})",
        )

    def constants(
        self, problem: QuantizedSpmmProblem, config: QuantizedSparseMmaConfig
    ) -> Mapping[str, Value]:
        kind = problem.value_type
        own = {"value_type": kind.value, "asymmetric": False, "pairs": kind is ValueType.INT4}
        return {**super().constants(problem, config), **own}

    def pack(
        self, problem: QuantizedSpmmProblem, config: QuantizedSparseMmaConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        codes, of = _codes(problem, matrix), config.of_columns
        units = (
            pack(matrix, *codes, **_order(problem))
            if of == CHOSEN
            else pack_chosen(matrix, *codes, of, **_order(problem))
        )
        return Packed(
            arrays={"codes": empty_as_one(units.codes), "metadata": empty_as_one(units.metadata)},
            sizes={"layers": units.layers},
            nnz=matrix.nnz,
            scratch=self.scratch(problem, config),
        )

    def pack_on(
        self,
        problem: QuantizedSpmmProblem,
        config: QuantizedSparseMmaConfig,
        matrix: CsrMatrix,
        device: PlainDevice,
    ) -> Packed[Buffer] | None:
        if config.of_columns > CHOSEN:
            return None
        units = pack_there(device, matrix, *_codes(problem, matrix), **_order(problem))
        return Packed(
            arrays={"codes": units.codes, "metadata": units.metadata},
            sizes={"layers": units.layers},
            nnz=matrix.nnz,
            scratch=self.scratch(problem, config),
        )


def _codes(problem: QuantizedSpmmProblem, matrix: CsrMatrix) -> tuple[Array, int]:
    """The nonzeros' codes, and that of zero."""
    kind = problem.value_type
    return kind.to_codes(matrix.values), int(kind.to_codes([0.0])[0])


def _order(problem: QuantizedSpmmProblem) -> dict[str, Any]:
    """Returns the order of codes in words; see `pack`."""
    return {"bits": problem.value_type.bits, "paired": is_paired(problem.value_type, problem.dtype)}


FAMILY = QuantizedSparseMmaSpmm()
