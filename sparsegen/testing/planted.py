"""Bugs planted into a right variant, to show that the contract tests of a family catch them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels.base import AnyFamily
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import matrices
from sparsegen.testing.variants import Variant


def odd_shape() -> CsrMatrix:
    """The matrix of this name: 37 × 113, so that hardly any tile divides it."""
    return matrices()["odd_shape"]


@dataclass(frozen=True)
class PlantedBugs:
    """A right variant, and what turns it into wrong ones.

    Attributes:
        kind: the problem without its matrix.
        config: tunables by name; others have their default.
        planted: by name of the bug, a piece of the emitted source and what to put in its place.
        matrix: makes the matrix to run on.
    """

    family: AnyFamily
    kind: Kind
    config: Mapping[str, Any]
    planted: Mapping[str, tuple[str, str]]
    matrix: Callable[[], CsrMatrix] = odd_shape

    def source(self, bug: str | None = None) -> str:
        """The CUDA source, with one of the bugs.

        Raises:
            ValueError: the piece that the bug replaces is not in the source (any more).
        """
        source = render(self.family, self.kind.problem(self.matrix()), self.family.config(**self.config))
        if bug is None:
            return source
        right, wrong = self.planted[bug]
        if right not in source:
            raise ValueError(
                f"the source of {self.family.name} does not contain {right!r}: plant {bug!r} in another way"
            )
        return source.replace(right, wrong)

    def check(self, bug: str | None = None, *, toolchain: EmulatorToolchain | None = None) -> None:
        """Run the variant under the sanitizers and hold its result against the reference.

        Raises:
            ContractError, KernelFault: it was caught; with a bug that is what a test expects.
        """
        source, matrix = self.source(bug), self.matrix()
        config, problem = self.family.config(**self.config), self.kind.problem(matrix)
        compiling = toolchain or EmulatorToolchain()
        kernel = compiling.compile_sanitized(self.family.name, self.family.entry, source)
        variant = Variant(self.family, config, self.kind, (self.matrix.__name__,), source)
        packed = self.family.pack(problem, config, matrix)
        run_and_compare(variant, kernel, problem, matrix, packed, where=self.matrix.__name__)
