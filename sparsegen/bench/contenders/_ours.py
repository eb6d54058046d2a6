"""What our two contenders share: a chosen variant as a way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from sparsegen import backends, kernels
from sparsegen.backends.executor import Executor
from sparsegen.bench.contender import Contender, Stopwatch, Way
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.results import Kind
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import Workbench
from sparsegen.dispatch.choice import Choice
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.variants import compile_variant


class Ours(Contender):
    """One of our contenders; what tells them apart is where the choice comes from."""

    kind = Kind.OURS
    takes_batches = True

    def why_not(self, task: Task, features: Features) -> str | None:
        if kernels.families_of(task.operator):
            return None
        return f"sparsegen has no kernel family for {task.operator} yet"

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

    def foresee(self, parcel: Parcel, device: Device, db: str | None) -> None:
        compile_choice(self.choose(parcel, device, db), device)

    def ways(self, bench: Workbench) -> Iterator[Way]:
        choice = self.choose(bench.parcel, bench.device, bench.db)
        compile_choice(choice, bench.device)  # no part of the preparation: kept for good
        inputs = [bench.upload(name).address for name in bench.task.operand_shapes]
        result = bench.result()
        watch = Stopwatch()
        variant = bind_variant(
            choice.config, choice.problem, bench.matrix, bench.executor, backends.toolchain(bench.device)
        )
        bench.executor.synchronize()
        elapsed = watch.lap()
        bound = variant.bound()
        addresses = (*inputs, result.buffer.address)
        yield Way(
            detail=f"{choice.family.name} ({choice.how}): {choice.why}",
            run=lambda: bound(0, *addresses),
            clear=result.clear,
            read=result.read,
            preparation_ms=elapsed,
            memory_bytes=variant.packed.nbytes,
            variant=choice.config,
        )


def compile_choice(choice: Choice, device: Device) -> None:
    """Compile a chosen variant, or find it in the cache."""
    compile_variant(choice.config, choice.problem, backends.toolchain(device))
