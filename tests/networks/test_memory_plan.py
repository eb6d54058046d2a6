"""Plans of memory: what fits is taken, copies hide behind products where they can, and what is too small is told."""

from __future__ import annotations

from typing import Any

import pytest

from sparsegen.errors import DeviceMemoryError
from sparsegen.networks.packed.memory_plan import HOST_BYTES_PER_US, MemoryPlan, planned

LAYER = 5 << 20


def of(budget: int, **changes: Any) -> MemoryPlan:
    given: dict[str, Any] = {
        "count": 60000,
        "layers": 1920,
        "layer_bytes": LAYER,
        "constant_bytes": 1000,
        "batch_bytes": lambda batch, is_cut: batch * (800_000 if is_cut else 660_000),
        "batches": (16, 66, 264, 1056, 2112, 4224, 8448, 16896),
        "most_whole": 16896,
        "layer_us": 0.1,
    }
    return planned(budget, **(given | changes))


@pytest.mark.parametrize("gib", [0.05, 0.2, 1, 4, 8, 16, 100])
def test_no_plan_takes_more_than_the_budget(gib: float) -> None:
    budget = int(gib * (1 << 30))
    plan = of(budget)
    assert plan.nbytes <= budget == plan.budget
    assert plan.segments * plan.segment_layers >= 1920 > (plan.segments - 1) * plan.segment_layers


def test_the_challenges_largest_network_hides_its_copies_in_8_gib() -> None:
    plan = of(8 << 30)
    assert plan.slots == 2 < plan.segments and plan.is_covered
    assert plan.copy_us == pytest.approx(plan.segment_bytes / HOST_BYTES_PER_US)
    assert "hidden behind it" in plan.explain()
    assert of(8 << 30, layer_us=1e-4).explain().endswith("longer: copies bound the time")


def test_what_fits_whole_is_brought_once() -> None:
    plan = of(64 << 30)
    assert plan.slots == plan.segments == 1 and plan.copy_us == 0 and plan.is_covered
    assert "streamed" not in plan.explain() and plan.to_dict()["copies_are_covered"] is True


def test_too_little_for_a_layer_and_a_tile_is_told_with_what_would_do() -> None:
    with pytest.raises(
        DeviceMemoryError, match=r"does not hold one layer twice .* a tile of 16 inputs .* at least"
    ):
        of(2 * LAYER)
    least = 2 * (LAYER + 1000) + 16 * 800_000
    assert of(least).segment_layers == 1
    with pytest.raises(DeviceMemoryError):
        of(least - 1)


def test_batches_of_a_whole_network_are_no_larger_than_was_asked_for() -> None:
    for layer_us in (0.1, 1e-6):  # whatever several launches cost
        plan = of(64 << 30, most_whole=4224, layer_us=layer_us)
        assert (plan.batch, plan.slots) == (4224, 1)
    assert of(8 << 30, most_whole=4224) == of(8 << 30), "streamed layers are copied for each batch"
