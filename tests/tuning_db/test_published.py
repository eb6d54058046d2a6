"""Published layers, and what two databases would run."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tuning_samples import A100, H100, MEASURED_RATES, START, baseline, failed, timed, workload

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.errors import DatabaseCorruptError, DatabaseError, DatabaseReadOnlyError, OutputError
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.tuning_db.differences import Standing, compare
from sparsegen.tuning_db.layers import MemoryLayer, files_state, open_layers, open_to_read
from sparsegen.tuning_db.published import Tools, publish, read_published
from sparsegen.tuning_db.records import DeviceRates, Measurement, Outcome
from sparsegen.tuning_db.store import Store

MEASUREMENTS = [
    timed(10, tile_n=32, final=True, at=5),
    timed(9, tile_n=64),
    timed(30, workload(tag="b"), tile_n=64),
    timed(20, device=A100, tile_n=64, at=86400),
    failed(Outcome.CRASHED, tile_n=128),
]


def tools_of(device: Device) -> Tools:
    return Tools("580.1", "nvcc 13.0") if device == H100 else Tools()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        opened.add_all(MEASUREMENTS, [baseline(50)], [DeviceRates(H100, MEASURED_RATES, START)])
        yield opened


def test_a_layer_holds_all_and_says_what_it_is(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "layer.db"
    told = publish(store, path, by="Ada", note="for our image", tools_of=tools_of)
    assert read_published(path) == told and (told.by, told.note) == ("Ada", "for our image")
    a100, h100 = told.devices
    assert (h100.key, h100.driver, h100.compiler, h100.workloads) == (H100.key, "580.1", "nvcc 13.0", 2)
    assert (h100.clock_low_mhz, h100.clock_high_mhz, h100.measurements) == (1980, 1980, 4)
    assert (a100.driver, a100.measured_from) == ("", "2026-01-02T00:00:00+00:00")
    layer = open_to_read(path)
    assert sorted(map(str, layer.all_measurements())) == sorted(map(str, store.all_measurements()))
    assert len(layer.all_baselines()) == 1 and layer.rates(H100) == MEASURED_RATES
    layer.close()
    assert not stat.S_IMODE(path.stat().st_mode) & 0o222
    assert read_published(tmp_path / "tuning.db") is None


def test_winners_alone(store: Store, tmp_path: Path) -> None:
    publish(store, tmp_path / "layer.db", by="Ada", winners_alone=True, tools_of=tools_of)
    layer = open_to_read(tmp_path / "layer.db")
    kept = layer.all_measurements()
    assert len(kept) == 3 and all(m.outcome is Outcome.OK for m in kept)
    for tuned in store.list_workloads():
        old, new = store.winner(tuned.workload, tuned.device), layer.winner(tuned.workload, tuned.device)
        assert old is not None and new is not None and old.variant == new.variant
    layer.close()


def test_it_lies_between_the_users_results_and_the_packaged_ones(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "layer.db"
    publish(store, path, by="Ada", tools_of=tools_of)
    environment = {"SPARSEGEN_DB": str(tmp_path / "own.db"), "SPARSEGEN_CACHE": str(tmp_path / "cache")}
    bare = Settings.from_environment(environment)
    settings = Settings.from_environment(environment | {"SPARSEGEN_LAYERS": str(path)})
    assert files_state(settings) != files_state(bare)
    here = workload()
    with open_layers(bare) as layers:
        assert choose(here, H100, layers).how is not How.EXACT
    with open_layers(settings) as layers:
        found = choose(here, H100, layers)
        assert found.how is How.EXACT and found.expected_us == 10
    with Store.open(tmp_path / "own.db") as own:
        own.add_all([timed(1, tile_n=128, final=True)], [])
    with open_layers(settings) as layers:
        assert choose(here, H100, layers).expected_us == 1
    gone = Settings.from_environment(environment | {"SPARSEGEN_LAYERS": str(tmp_path / "gone.db")})
    with pytest.raises(DatabaseError, match=r"no published layer at .*, which SPARSEGEN_LAYERS names"):
        open_layers(gone)


def test_nothing_is_written_into_it(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "layer.db"
    publish(store, path, by="Ada", tools_of=tools_of)
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(DatabaseReadOnlyError, match="published layer"):
        Store.open(path)
    assert path.read_bytes() == before


def test_what_cannot_be_published(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        publish(store, tmp_path / "file" / "layer.db", by="Ada", tools_of=tools_of)
    with Store.open(tmp_path / "empty.db") as empty, pytest.raises(DatabaseError, match="no measurements"):
        publish(empty, tmp_path / "layer.db", by="Ada", tools_of=tools_of)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM published",
        "UPDATE published SET published_by = x'00'",
        "UPDATE published SET note = char(27) || '[2J'",
        "UPDATE published_devices SET workloads = 'many'",
        "UPDATE published_devices SET driver = printf('%.*c', 5000, 'x')",
        "UPDATE published_devices SET clock_low_mhz = -1",
    ],
)
def test_what_a_layer_says_of_itself_is_checked(store: Store, tmp_path: Path, statement: str) -> None:
    path = tmp_path / "layer.db"
    publish(store, path, by="Ada", tools_of=tools_of)
    path.chmod(0o644)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(DatabaseCorruptError, match="publish it again"):
        read_published(path)


# --- differences --------------------------------------------------------------------------------------------


def final(us: float, tag: str, tile_n: int) -> Measurement:
    return replace(timed(us, workload(tag=tag), tile_n=tile_n), final=True)


def test_what_choices_cost_by_the_others_times() -> None:
    a = MemoryLayer(
        [final(5, tag, 32) for tag in ("same", "slower", "tied", "unknown", "only_a")]
        + [final(5, "faster", 32), timed(1, workload(tag="failed"), tile_n=32)],
        [],
    )
    b = MemoryLayer(
        [
            final(10, "same", 32),
            final(10, "slower", 64),
            final(12, "slower", 32),
            final(10, "tied", 64),
            final(10.05, "tied", 32),
            final(10, "unknown", 64),
            final(10, "only_b", 64),
        ],
        [],
    )
    found = compare(a, b)
    counted = {standing: found.count(standing) for standing in Standing}
    assert counted == {
        Standing.SAME: 1,
        Standing.SLOWER: 1,
        Standing.TIED: 1,
        Standing.UNKNOWN: 1,
        Standing.ONLY_A: 3,
        Standing.ONLY_B: 1,
        Standing.FASTER: 0,
    }
    assert sorted(found.costs) == pytest.approx([1.0, 1.005, 1.2])
    assert found.geomean == pytest.approx((1.005 * 1.2) ** (1 / 3))
    assert found.worst is not None and found.worst.cost == pytest.approx(1.2)
    told = found.to_dict()
    assert told["counts"]["slower"] == 1 and told["worst"] == pytest.approx(1.2)
    assert {d["standing"] for d in told["differences"]} == {str(v) for v in Standing} - {"another, faster"}


def test_a_choice_that_is_faster_by_the_others_times() -> None:
    """B's finals name another one than its fastest single time."""
    a = MemoryLayer([final(5, "x", 32)], [])
    b = MemoryLayer([final(10, "x", 64), timed(8, workload(tag="x"), tile_n=32)], [])
    (difference,) = compare(a, b).differences
    assert difference.standing is Standing.FASTER and difference.cost == pytest.approx(0.8)


def test_nothing_to_compare() -> None:
    found = compare(MemoryLayer([], []), MemoryLayer([], []))
    assert (found.geomean, found.worst, found.differences) == (None, None, ())
