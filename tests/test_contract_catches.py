"""The contract tests are themselves tested: a bug planted into a right variant makes them fail."""

from __future__ import annotations

import planted_attention
import planted_networks
import planted_products
import pytest

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ContractError, KernelFault

RIGHT = planted_products.RIGHT | planted_attention.RIGHT | planted_networks.RIGHT
PLANTED = [(name, bug) for name, right in RIGHT.items() for bug in right.planted]


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_variant_passes(emulator_toolchain: EmulatorToolchain, name: str) -> None:
    RIGHT[name].check(toolchain=emulator_toolchain)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("name", "bug"), PLANTED)
def test_a_planted_bug_is_caught(emulator_toolchain: EmulatorToolchain, name: str, bug: str) -> None:
    with pytest.raises((ContractError, KernelFault)):
        RIGHT[name].check(bug, toolchain=emulator_toolchain)
