"""Launches of variants under the sanitizers, and their results beside the reference."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.sanitized import Argument, Mapped, run_sanitized
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import ContractError
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.binding import launch_arguments
from sparsegen.testing.variants import Variant
from sparsegen.verify.bounds import worst_error


@dataclass(frozen=True, eq=False)
class Call:
    """One launch: geometry, arguments in order, and the places among the arrays of the result, of scratch, and of
    operands that are written, by name.
    """

    launch: Launch
    arguments: list[Argument]
    result: int
    scratch: tuple[int, ...] = ()
    written: Mapping[str, int] = field(default_factory=dict)

    def again(self, arrays: list[Array]) -> Call:
        """The launch that follows one that left ``arrays``: on the scratch memory as it is now."""
        place = itertools.count()
        numbered = [(a, next(place) if isinstance(a, np.ndarray) else -1) for a in self.arguments]
        arguments = [arrays[i] if i in self.scratch else a for a, i in numbered]
        return replace(self, arguments=arguments)


def call(
    family: AnyFamily,
    problem: Problem,
    config: Any,
    packed: Packed[Array],
    operands: dict[str, Array],
    nnz: int,
) -> Call:
    """All that a launch takes; the result is full of NaN (0xFF bytes)."""
    written = problem.result(nnz)
    result = np.full(written.shape, 0, dtype=written.dtype.storage)
    result.view(np.uint8)[...] = 0xFF
    scratch = {name: np.zeros(max(1, n), dtype=np.uint8) for name, n in packed.scratch.items()}
    given = {**operands, **scratch, written.name: result}
    filled = replace(packed, arrays=packed_arrays(problem, packed, operands))
    arguments: list[Argument] = []
    launch = family.launch(problem, config, packed.sizes, device())
    for argument in () if launch.is_empty else launch_arguments(family, problem, config, filled, given):
        assert argument is not None
        if isinstance(argument, TensorMap):
            arguments.append(Mapped(argument, given[argument.array]))
        else:
            arguments.append(argument)
    if launch.is_empty:
        arguments.append(result)
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    place = next(i for i, a in enumerate(arrays) if a is result)
    own = [i for i, a in enumerate(arrays) if any(a is s for s in scratch.values())]
    names = [spec.name for spec in problem.operands(nnz) if spec.is_written]
    further = {name: next(i for i, a in enumerate(arrays) if a is operands[name]) for name in names}
    return Call(launch, arguments, place, tuple(own), further)


def packed_arrays(problem: Problem, packed: Packed[Array], operands: dict[str, Array]) -> Mapping[str, Array]:
    """Arrays of a launch; if batch elements have values of their own, these come from the operands."""
    if problem.value_sets == 1:
        return packed.arrays
    assert packed.values is not None and packed.value_source is not None
    padded = np.pad(operands["values"], ((0, 0), (0, 1)))  # -1 takes the zero at the end
    return {**packed.arrays, packed.values: padded[:, packed.value_source().ravel()].ravel()}


def run_and_compare(
    variant: Variant,
    kernel: CompiledKernel,
    problem: Problem,
    matrix: CsrMatrix,
    packed: Packed[Array],
    *,
    where: str,
) -> None:
    """Run a compiled variant under the sanitizers and hold its result against the reference.

    With scratch memory it runs once more, on what the first launch left there.

    Raises:
        ContractError: the result is wrong, an input was written to, or a second launch gives other bits (of a family
            that does not promise equal ones, a wrong result).
        KernelFault: a sanitizer or the emulator caught it at something undefined.
    """
    operands = problem.random_operands(np.random.default_rng(0), matrix.nnz)
    prepared = call(variant.family, problem, variant.config, packed, operands, matrix.nnz)
    given = [a for a in prepared.arguments if isinstance(a, np.ndarray)]
    arrays = run_sanitized(kernel.binary, prepared.launch, prepared.arguments)
    reference = problem.reference(matrix, operands)
    _require_right(worst_error(reference, arrays[prepared.result]), f"{where}: the result")
    for name, must_be in problem.written_references(matrix, operands).items():
        _require_right(worst_error(must_be, arrays[prepared.written[name]]), f"{where}: {name}")
    written = (prepared.result, *prepared.scratch, *prepared.written.values())
    for i, (before, after) in enumerate(zip(given, arrays, strict=True)):
        require(
            i in written or before.tobytes() == after.tobytes(), f"{where}: the kernel wrote to its input {i}"
        )
    if prepared.scratch:
        second = run_sanitized(kernel.binary, prepared.launch, prepared.again(arrays).arguments)
        if variant.family.is_deterministic(problem, variant.config):
            same = second[prepared.result].tobytes() == arrays[prepared.result].tobytes()
            require(
                same, f"{where}: the second launch, on scratch memory as the first left it, gives other bits"
            )
        else:
            _require_right(worst_error(reference, second[prepared.result]), f"{where}: the second launch")


def require(holds: bool, sentence: str) -> None:
    """Raise ContractError with this sentence unless something holds."""
    if not holds:
        raise ContractError(sentence)


def _require_right(worst: float, what: str) -> None:
    require(worst <= 1, f"{what} is {worst:.3g} times the error bound off")
