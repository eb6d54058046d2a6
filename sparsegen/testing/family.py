"""A family's contract as a list of cases, for pytest to parametrize a test with or to be run at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial

from sparsegen import backends, kernels
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError, ContractError, SparsegenError
from sparsegen.kernels.base import AnyFamily
from sparsegen.testing import checks, products
from sparsegen.testing.cover import short_ring
from sparsegen.testing.variants import Variant, sample

MOST_TOLD = 10  # failures in one message


@dataclass(frozen=True)
class Case:
    """One check of a family; calling it runs it.

    Raises:
        ContractError: it does not hold.
        KernelFault: the emulator or a sanitizer caught the kernel at a fault.
        CompileError: the source does not compile.
    """

    name: str
    check: Callable[[], None]

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        self.check()


def cases(family: AnyFamily, *, device: str | None = None, whole: bool = False) -> list[Case]:
    """Contract of a family, as cases with names: `pytest.mark.parametrize("case", cases(FAMILY), ids=str)`.

    A case for each rule of declarations, and one for each variant of a seeded sample of the family's space: its source
    and packing, and its results on adversarial matrices (empty rows, one huge row, no nonzeros, odd shapes).

    Args:
        device: "cuda:0" or "emulator" to run variants there, plainly. By default on the emulator under AddressSanitizer
            and UndefinedBehaviorSanitizer, with buffers of exactly the arrays' sizes, where new values of the nonzeros
            are tried, too.
        whole: the whole sample rather than few variants that show every line of its code.

    Raises:
        ConfigError: with a device, the family is none of sparsegen's and was not registered.
    """
    if device is not None and kernels.families().get(family.name) is not family:
        raise ConfigError(
            f"{family.name} is not known to sparsegen yet: sparsegen.kernels.register(FAMILY) first"
        )
    declared = [Case(check.__name__, partial(check, family)) for check in checks.OF_FAMILIES]
    run = _sanitized if device is None else partial(_plain, device)
    variants = sample(family) if whole else short_ring(family)
    return [*declared, *(Case(str(variant), partial(_variant, variant, run)) for variant in variants)]


def check_family(
    family: AnyFamily, *, device: str | None = None, whole: bool = False, jobs: int | None = None
) -> tuple[str, ...]:
    """Run all `cases` of a family; the arguments are those of `cases`.

    Args:
        jobs: cases that run at a time; default one for each core, and on a GPU one.

    Returns:
        The names of the cases, all of which hold.

    Raises:
        ContractError: some do not hold; the message names them and says why.
    """
    listed = cases(family, device=device, whole=whole)
    alone = device is not None and device.startswith("cuda")
    with ThreadPoolExecutor(1 if alone else jobs or len(os.sched_getaffinity(0))) as pool:
        broken = [failure for failure in pool.map(_failure, listed) if failure is not None]
    if broken:
        told = "\n".join(f"  {case.name}: {error}" for case, error in broken[:MOST_TOLD])
        raise ContractError(
            f"{family.name} fails {len(broken)} of {len(listed)} checks:\n{told}"
        ) from broken[0][1]
    return tuple(case.name for case in listed)


def _failure(case: Case) -> tuple[Case, SparsegenError] | None:
    try:
        case()
    except SparsegenError as error:
        return case, error
    return None


def _variant(variant: Variant, run: Callable[[Variant], None]) -> None:
    for check in checks.OF_VARIANTS:
        check(variant)
    run(variant)


def _sanitized(variant: Variant) -> None:
    kernel = _toolchain().compile_sanitized(variant.family.name, variant.family.entry, variant.source)
    products.results_are_right(variant, kernel)
    if products.has_values(variant):
        products.new_values_are_gathered(variant, kernel)


def _plain(device: str, variant: Variant) -> None:
    found = backends.find_device(device)
    with closing(backends.open_executor(found)) as executor:
        products.results_are_right_on(variant, executor, backends.toolchain(found))


@cache
def _toolchain() -> EmulatorToolchain:
    return EmulatorToolchain()
