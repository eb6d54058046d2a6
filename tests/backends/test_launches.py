"""Attributes of launches: clusters that are resident at once, how a kernel begins."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from sparsegen.backends.cuda import launches
from sparsegen.errors import LaunchError
from sparsegen.kernels.launch import Launch

KERNEL: Any = SimpleNamespace(handle=ctypes.c_void_p(7))
LAUNCH = Launch((132, 1, 1), (512, 1, 1), 200_000, persistent_cluster=4)


def driver(monkeypatch: pytest.MonkeyPatch, clusters: int, status: int = 0) -> list[tuple[int, int]]:
    """Fakes a driver with room for ``clusters`` clusters; returns its questions: grid, and bytes of shared memory."""
    asked: list[tuple[int, int]] = []
    four_by_one_by_one = [4 | 1 << 32, 1]

    def occupancy(found: Any, kernel: Any, configuration: Any) -> int:
        given = configuration._obj
        asked.append((given.grid[0], given.shared_bytes))
        assert (given.attribute_count, given.attributes[0].id) == (1, launches.CLUSTER_DIMENSION)
        assert list(given.attributes[0].value[:2]) == four_by_one_by_one
        found._obj.value = clusters
        return status

    fake = SimpleNamespace(cuOccupancyMaxActiveClusters=occupancy, cuGetErrorString=lambda *_: 1)
    monkeypatch.setattr(launches, "libcuda", lambda: fake)
    monkeypatch.setattr("sparsegen.backends.cuda.driver.libcuda", lambda: fake)
    return asked


def test_clusters_that_would_wait_for_others_are_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = driver(monkeypatch, 30)
    assert launches.resident(KERNEL, LAUNCH).grid == (120, 1, 1)
    assert asked == [(132, 200_000)]


def test_a_grid_that_is_resident_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, 33)
    assert launches.resident(KERNEL, LAUNCH) == LAUNCH


def test_launches_without_clusters_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = driver(monkeypatch, 1)
    for launch in (Launch((132, 1, 1), (512, 1, 1)), Launch((0, 1, 1), (512, 1, 1), persistent_cluster=4)):
        assert launches.resident(KERNEL, launch) is launch
    assert not asked


def test_a_cluster_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, 0)
    with pytest.raises(LaunchError, match="no cluster of 4 blocks fits on this device"):
        launches.resident(KERNEL, LAUNCH)
    driver(monkeypatch, 5, status=1)
    with pytest.raises(LaunchError, match="cannot tell how many clusters of 4 blocks are resident"):
        launches.resident(KERNEL, LAUNCH)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_a_launch_says_how_its_kernel_begins(
    early: bool, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early, beside the end of the one before, or with all blocks at once."""
    launched: list[list[tuple[int, int]]] = []

    def launch(configuration: ctypes.c_void_p, *_: Any) -> int:
        assert configuration.value
        given = launches._Configuration.from_address(configuration.value)
        attributes = given.attributes[: given.attribute_count] if given.attribute_count else []
        launched.append([(attribute.id, attribute.value[0]) for attribute in attributes])
        return 0

    monkeypatch.setattr(launches, "libcuda", lambda: {"cuLaunchKernelEx": launch})
    kernel: Any = SimpleNamespace(
        handle=ctypes.c_void_p(7), allow_shared_memory=lambda _: None, allow_cluster=lambda _: None
    )
    given = Launch((3, 1, 1), (64, 1, 1), starts_early=early, together=together)
    bound = launches.BoundLaunch(kernel, given, [1])
    bound.launch(0)
    bound.launch(0)
    wanted = [(launches.PROGRAMMATIC_STREAM_SERIALIZATION, 1)] * early + [
        (launches.COOPERATIVE, 1)
    ] * together
    assert launched == [wanted] * 2
