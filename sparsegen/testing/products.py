"""Results of variants, under the sanitizers on the emulator or plainly on any device, held against the reference."""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np

from sparsegen.backends.executor import CompiledKernel, Executor, Toolchain
from sparsegen.plan.binding import bind_variant
from sparsegen.testing.checks import gathered
from sparsegen.testing.launches import require, run_and_compare
from sparsegen.testing.matrices import matrices
from sparsegen.testing.variants import Variant
from sparsegen.verify.variants import worst_error


def results_are_right(variant: Variant, kernel: CompiledKernel) -> None:
    """Run a variant under the sanitizers on all of its matrices; see `run_and_compare`.

    Args:
        kernel: from `EmulatorToolchain.compile_sanitized`.

    Raises:
        ContractError: a wrong result, or an input that was written to.
        KernelFault: the emulator or a sanitizer caught it at a fault.
    """
    for name in variant.matrices:
        matrix = matrices()[name]
        problem = variant.kind.problem(matrix)
        packed = variant.family.pack(problem, variant.config, matrix)
        run_and_compare(variant, kernel, problem, matrix, packed, where=f"{variant} on {name}")


def has_values(variant: Variant) -> bool:
    """True if a variant packs values that `Operator.update_values` may renew."""
    matrix = matrices()[variant.matrices[0]]
    return variant.family.pack(variant.kind.problem(matrix), variant.config, matrix).values is not None


def new_values_are_gathered(variant: Variant, kernel: CompiledKernel) -> None:
    """Run a variant on its first matrix with new values, put where `value_source` says; raises as `results_are_right`.

    Args:
        variant: one that packs values (`has_values`).
    """
    name = variant.matrices[0]
    old = matrices()[name]
    problem = variant.kind.problem(old)
    packed = variant.family.pack(problem, variant.config, old)
    assert packed.values is not None
    new = old.with_values(np.random.default_rng(1).standard_normal(old.nnz).astype(np.float32))
    updated = replace(packed, arrays={**packed.arrays, packed.values: gathered(problem, packed, new)})
    run_and_compare(variant, kernel, problem, new, updated, where=f"{variant} with new values on {name}")


def results_are_right_on(variant: Variant, executor: Executor, toolchain: Toolchain) -> None:
    """Run a variant plainly on a device, on those of its matrices for which the device takes the config.

    Raises:
        ContractError: a wrong result, or something written outside of it.
        LaunchError: the kernel could not run.
    """
    for name in variant.matrices:
        matrix = matrices()[name]
        problem = variant.kind.problem(matrix)
        if variant.family.broken_constraints(problem, variant.config, executor.device):
            continue
        bound = bind_variant(variant.config, problem, matrix, executor, toolchain)
        seed = fresh_seed()
        worst = worst_error(bound, problem, matrix, np.random.default_rng(seed))
        require(
            worst <= 1,
            f"{variant} on {name}: the result is {worst:.3g} times the error bound off (seed {seed})",
        )


def fresh_seed() -> int:
    """Returns another seed each time, for inputs that can be drawn again once a result was wrong."""
    return secrets.randbits(32)
