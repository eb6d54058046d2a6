"""Launches of variants of block attention that tests write out, perhaps with other words in their source."""

from __future__ import annotations

from typing import Any

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import AnyFamily
from sparsegen.operators import BlockAttentionProblem
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.variants import Variant

USUAL = {"kv_heads": 1, "group": 2, "head_dim": 64, "dtype": "float16", "block": "64x64", "density": 0.5}


def check_variant(
    family: AnyFamily,
    problem: BlockAttentionProblem,
    toolchain: EmulatorToolchain,
    *,
    changed: tuple[str, str] | None = None,
    **choices: Any,
) -> None:
    """Runs a variant under sanitizers, and holds its results against the reference.

    Args:
        changed: words of the source, and others in their place.
        choices: values of the config.
    """
    config, nobody = family.config(**choices), problem.without_pattern
    source = render(family, problem, config)
    if changed is not None:
        assert changed[0] in source, "the source has other words"
        source = source.replace(*changed)
    kernel = toolchain.compile_sanitized(family.name, family.entry, source)
    variant = Variant(family, config, Kind(type(problem), (), ()), (), source)
    packed = family.pack(problem, config, nobody)
    run_and_compare(variant, kernel, problem, nobody, packed, where=str(problem))
