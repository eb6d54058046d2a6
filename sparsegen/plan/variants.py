"""Variants from configs: rendered for a problem, and compiled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sparsegen.backends.executor import CompiledKernel, Toolchain
from sparsegen.kernels import family_of
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.render import render


@dataclass(frozen=True, slots=True)
class RenderedVariant:
    """A config rendered for a problem.

    Attributes:
        source: the CUDA source.
        digest: SHA-256 of the source and the toolchain's fingerprint, which names the binary in the database.
    """

    family: AnyFamily
    problem: Problem
    config: Config
    source: str
    digest: str

    @classmethod
    def of(cls, config: Config, problem: Problem, toolchain: Toolchain) -> RenderedVariant:
        """Render a config for what a toolchain compiles."""
        return cls.given(config, problem, render(family_of(config), problem, config), toolchain)

    @classmethod
    def given(cls, config: Config, problem: Problem, source: str, toolchain: Toolchain) -> RenderedVariant:
        """A config whose source was rendered elsewhere."""
        digest = hashlib.sha256(source.encode() + b"\0" + toolchain.fingerprint.encode()).hexdigest()
        return cls(family_of(config), problem, config, source, digest)

    def compile(self, toolchain: Toolchain) -> CompiledVariant:
        """Compile it, or find it in the cache.

        Raises:
            CompileError, DeviceUnavailableError: see `Toolchain.compile`.
        """
        family = self.family
        kernel = toolchain.compile(family.name, family.entry, self.source)
        return CompiledVariant(self, kernel)


@dataclass(frozen=True, slots=True)
class CompiledVariant:
    """A rendered variant and its binary."""

    rendered: RenderedVariant
    kernel: CompiledKernel


def compile_variant(config: Config, problem: Problem, toolchain: Toolchain) -> CompiledVariant:
    """Render and compile a config for a problem, or find it in the cache.

    Raises:
        CompileError, DeviceUnavailableError: see `Toolchain.compile`.
    """
    return RenderedVariant.of(config, problem, toolchain).compile(toolchain)
