"""What our contenders share: a variant as a way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sparsegen import backends, kernels
from sparsegen.backends.executor import Executor
from sparsegen.bench.contender.contender import Contender, Stopwatch, Way
from sparsegen.bench.contender.parcel import Parcel
from sparsegen.bench.contender.workbench import Workbench
from sparsegen.bench.results.results import Kind
from sparsegen.dispatch.chosen import Choice
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.variants import compile_variant


class Ours(Contender):
    """One of our contenders; what tells them apart is where the choice comes from."""

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

    def runs_on(self, device: Device) -> bool:
        return True

    def open(self, executor: Executor) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def choose(self, parcel: Parcel, device: Device, db: str | None) -> Choice:
        """The variant to run.

        Raises:
            MissingError: there is none to speak of.
        """

    def tried(self, parcel: Parcel, device: Device, db: str | None) -> int | None:
        """How many variants were measured on this workload, where the choice is the fastest of them."""
        return None

    def foresee(self, parcel: Parcel, device: Device, db: str | None) -> None:
        choice = self.choose(parcel, device, db)
        compile_variant(choice.config, choice.problem, backends.toolchain(device))

    def ways(self, bench: Workbench) -> Iterator[Way]:
        choice = self.choose(bench.parcel, bench.device, bench.db)
        detail = f"{choice.family.name} ({choice.how}): {choice.why}"
        way = way_of(choice.config, choice.problem, bench, detail)
        yield replace(way, tried=self.tried(bench.parcel, bench.device, bench.db))


def way_of(config: Config, problem: Problem, bench: Workbench, detail: str) -> Way:
    """A variant as a way.

    Raises:
        CompileError: it does not compile.
    """
    toolchain = backends.toolchain(bench.device)
    compiled = compile_variant(config, problem, toolchain)  # no part of the preparation: kept for good
    inputs = [bench.upload(spec.name).address for spec in bench.problem.operands(bench.features.nnz)]
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
    addresses = (*inputs, result.buffer.address)
    return Way(
        detail=detail,
        run=lambda: bound(0, *addresses),
        clear=result.clear,
        read=result.read,
        preparation_ms=elapsed,
        memory_bytes=variant.packed.nbytes,
        variant=config,
        digest=variant.digest,
    )
