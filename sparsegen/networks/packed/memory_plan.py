"""Division of a network and its inputs into parts that fit a device's memory, so that copies hide behind products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsegen.errors import DeviceMemoryError
from sparsegen.system.integers import ceil_div
from sparsegen.system.quantities import counted, microseconds, size_text

HOST_BYTES_PER_US = 25_000.0  # bytes from pinned memory to a device, over 16 lanes of PCIe 4
BETWEEN_SEGMENTS = 3.0  # layers' time: neurons are written, looked at and read once more
LAUNCH_US = 50.0  # time of a segment until the host knows which inputs live

BatchBytes = Callable[[int, bool], int]  # bytes of inputs, with neurons between segments or without


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Parts of a network and of its inputs on a device.

    Attributes:
        budget: bytes that may be used; None for as many as it needs.
        batch: upper limit of inputs that go through a segment together.
        segment_layers: upper limit of layers of a segment.
        segments: their number.
        slots: segments that lie on the device at the same time; while one is computed, the next comes.
        segment_bytes, batch_bytes: bytes of a segment; bytes of all that a batch needs.
        compute_us: predicted time of a full batch in a segment.
        copy_us: expected time to copy a segment from pinned memory of the host; 0 if it is copied only once.
    """

    budget: int | None
    batch: int
    segment_layers: int
    segments: int
    slots: int
    segment_bytes: int
    batch_bytes: int
    compute_us: float
    copy_us: float

    @property
    def nbytes(self) -> int:
        """Bytes of device memory in all."""
        return self.slots * self.segment_bytes + self.batch_bytes

    @property
    def is_covered(self) -> bool:
        """True if computing takes longer than copying, as far as is known beforehand and while all inputs live."""
        return self.copy_us <= self.compute_us

    def to_dict(self) -> dict[str, int | float | bool | None]:
        """Returns the JSON values that ``--json`` prints."""
        return {
            "budget_bytes": self.budget,
            "bytes": self.nbytes,
            "batch": self.batch,
            "segments": self.segments,
            "segment_layers": self.segment_layers,
            "segment_bytes": self.segment_bytes,
            "slots": self.slots,
            "batch_bytes": self.batch_bytes,
            "compute_us": self.compute_us,
            "copy_us": self.copy_us,
            "copies_are_covered": self.is_covered,
        }

    def explain(self) -> str:
        """The plan in words, a line or two."""
        of = "" if self.budget is None else f" of {size_text(self.budget)}"
        lines = [
            f"  {size_text(self.nbytes)} of device memory{of}: {counted(self.slots, 'segment')} of "
            f"{counted(self.segment_layers, 'layer')} ({size_text(self.segment_bytes)} each), batches of "
            f"{self.batch} inputs ({size_text(self.batch_bytes)})"
        ]
        if self.segments > self.slots:
            told = "hidden behind it" if self.is_covered else "longer: copies bound the time"
            lines.append(
                f"  {self.segments} segments are streamed: a batch computes for {microseconds(self.compute_us)} in one "
                f"(predicted), its copy takes {microseconds(self.copy_us)} (expected), {told}"
            )
        return "\n".join(lines)


def planned(
    budget: int,
    *,
    count: int,
    layers: int,
    layer_bytes: int,
    constant_bytes: int,
    batch_bytes: BatchBytes,
    batches: Sequence[int],
    most_whole: int,
    layer_us: float,
) -> MemoryPlan:
    """The plan that should take the least time.

    Args:
        budget: bytes of device memory.
        count: number of all inputs.
        layer_bytes, constant_bytes: bytes of each packed layer; bytes of a segment besides its layers.
        batch_bytes: gives the bytes that a batch needs.
        batches: sizes to choose from, the smallest first.
        most_whole: upper limit of inputs of a batch if all layers are on the device.
        layer_us: microseconds of a layer for an input.

    Raises:
        DeviceMemoryError: not even a layer and the smallest batch fit.
    """
    found: list[tuple[float, MemoryPlan]] = []
    all_bytes = constant_bytes + layers * layer_bytes
    at_once = max(batch for batch in batches if batch <= most_whole)
    if batch_bytes(at_once, False) + all_bytes <= budget:
        batches = [
            batch for batch in batches if batch <= at_once
        ]  # larger ones are for layers that are copied
    for batch in batches:
        turns, whole = ceil_div(count, batch), batch_bytes(batch, False)
        if batch <= most_whole and whole + all_bytes <= budget:
            compute = batch * layers * layer_us
            made = MemoryPlan(budget, batch, layers, 1, 1, all_bytes, whole, compute, 0.0)
            found.append((count * layers * layer_us + turns * LAUNCH_US, made))
            continue
        cut = batch_bytes(batch, True)
        fitting = ((budget - cut) // 2 - constant_bytes) // layer_bytes
        if fitting < 1:
            continue
        # Whole it did not fit, though both slots may be large enough.
        segments = max(2, ceil_div(layers, fitting))
        own = ceil_div(layers, segments)
        nbytes, compute = constant_bytes + own * layer_bytes, batch * own * layer_us
        copy = nbytes / HOST_BYTES_PER_US
        of_segment = max(compute, copy) + BETWEEN_SEGMENTS * batch * layer_us + LAUNCH_US
        copied = copy if segments > 2 else 0.0
        made = MemoryPlan(budget, batch, own, segments, 2, nbytes, cut, compute, copied)
        found.append((turns * segments * of_segment, made))
    if not found:
        raise too_small(budget, constant_bytes + layer_bytes, batches[0], batch_bytes(batches[0], True))
    return min(found, key=lambda one: one[0])[1]


def in_core(batch: int, layers: int, batch_bytes: int, layer_us: float) -> MemoryPlan:
    """All layers at once, for as much memory as that takes."""
    return MemoryPlan(None, batch, layers, 1, 1, 0, batch_bytes, batch * layers * layer_us, 0.0)


def too_small(budget: int, layer_bytes: int, batch: int, batch_bytes: int) -> DeviceMemoryError:
    """Returns the error to raise if nothing fits."""
    return DeviceMemoryError(
        f"memory = {size_text(budget)} does not hold one layer twice ({size_text(layer_bytes)} each, of which one is "
        f"computed while the next comes) and a tile of {batch} inputs ({size_text(batch_bytes)}): give at least "
        f"{size_text(2 * layer_bytes + batch_bytes + 1023)}"
    )
