"""What our two contenders share: a chosen variant as a way."""

from __future__ import annotations

from collections.abc import Mapping

from sparsegen import backends, kernels
from sparsegen.bench.contender import Contender, Stopwatch, Way
from sparsegen.bench.results import ChosenVariant, Kind
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import Workbench
from sparsegen.dispatch import Choice
from sparsegen.executor import Executor
from sparsegen.family import Device
from sparsegen.features import Features
from sparsegen.launching import PreparedVariant
from sparsegen.render import render


class Ours(Contender):
    """One of our contenders; what tells them apart is where the choice comes from."""

    kind = Kind.OURS

    def why_not(self, task: Task, features: Features) -> str | None:
        if kernels.families_of(task.operator):
            return None
        return f"sparsegen has no kernel family for {task.operator} yet"

    def runs_on(self, device: Device) -> bool:
        return True

    def open(self, executor: Executor) -> Mapping[str, str]:
        return {}


def way_of(bench: Workbench, choice: Choice) -> Way:
    """A chosen variant compiled, packed, uploaded and bound. The time to compile is not part of its preparation."""
    executor, task = bench.executor, bench.task
    toolchain = backends.toolchain(bench.device)
    source = render(choice.family, choice.problem, choice.config)
    toolchain.compile(choice.family.name, choice.family.entry, source)
    inputs = [bench.upload(name).address for name in task.operand_shapes]
    result = bench.result()
    watch = Stopwatch()
    variant = PreparedVariant(choice.family, choice.problem, choice.config, bench.matrix, executor, toolchain)
    executor.synchronize()
    elapsed = watch.lap()
    bound = variant.bound()
    addresses = (*inputs, result.buffer.address)

    def run() -> None:
        bound(0, *addresses)

    return Way(
        f"{choice.family.name} ({choice.how}): {choice.why}",
        run,
        result.clear,
        result.read,
        elapsed,
        sum(buffer.nbytes for buffer in variant.buffers.values()),
        ChosenVariant(choice.family.name, tuple(choice.config_dict.items())),
    )
