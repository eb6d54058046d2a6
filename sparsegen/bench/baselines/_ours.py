"""Shared parts of our baselines: a variant as an implementation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from sparsegen import backends, kernels
from sparsegen.bench.baseline.baseline import Implementation, OwnBaseline, Stopwatch
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.results.results import Kind
from sparsegen.dispatch.chosen import Choice
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.variants import compile_variant


class Ours(OwnBaseline):
    """One of our baselines; what tells them apart is where the choice comes from."""

    kind = Kind.OURS
    takes_variations = True

    def why_not(self, problem: Problem, features: Features) -> str | None:
        families = kernels.families_of(problem.operator)
        if not families:
            return f"sparsegen has no kernel family for {problem.operator} yet"
        if any(family.computes(problem) for family in families):
            return None
        return "; ".join(
            f"{family.name}: it must hold: {scope.sentence}"
            for family in families
            for scope in family.scope(problem)
            if not scope.holds
        )

    @abstractmethod
    def choose(self, inputs: Inputs, device: Device, db: str | None) -> Choice:
        """The variant to run.

        Raises:
            MissingError: there is none to speak of.
        """

    def tried(self, inputs: Inputs, device: Device, db: str | None) -> int | None:
        """Number of variants that were measured on this workload, if the choice is the fastest of them."""
        return None

    def foresee(self, inputs: Inputs, device: Device, db: str | None) -> None:
        choice = self.choose(inputs, device, db)
        compile_variant(choice.config, choice.problem, backends.toolchain(device))

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        choice = self.choose(bench.inputs, bench.device, bench.db)
        detail = f"{choice.family.name} ({choice.how}): {choice.why}"
        implementation = implementation_of(choice.config, choice.problem, bench, detail)
        yield replace(implementation, tried=self.tried(bench.inputs, bench.device, bench.db))


def implementation_of(config: Config, problem: Problem, bench: Workbench, detail: str) -> Implementation:
    """A variant as an implementation.

    Raises:
        CompileError: it does not compile.
    """
    toolchain = backends.toolchain(bench.device)
    compiled = compile_variant(config, problem, toolchain)  # no part of the preparation: kept for good
    operands = [bench.upload(spec.name).address for spec in bench.problem.operands(bench.features.nnz)]
    own_values = bench.upload("values") if bench.problem.value_sets > 1 else None
    result = bench.result()
    packing = bench.packings.of(compiled.rendered.family, problem, config)
    watch = Stopwatch()
    variant = bind_variant(config, problem, packing.packed, bench.executor, toolchain)
    if own_values is not None:
        variant.gather_values(own_values, 0)
    bench.executor.synchronize()
    elapsed = packing.seconds * 1e3 + watch.lap()
    bound = variant.bound()
    addresses = (*operands, result.buffer.address)
    return Implementation(
        detail=detail,
        run=lambda: bound(0, *addresses),
        clear=result.clear,
        read=result.read,
        preparation_ms=elapsed,
        memory_bytes=variant.packed.nbytes,
        variant=config,
        digest=variant.digest,
    )
