"""Export, import and merge: complete, repeatable, and closed to what sparsegen would not write."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from database_samples import RECORDS, document
from tuning_samples import (
    A100,
    DIGEST,
    H100,
    MEASURED_RATES,
    failed,
    other_operators,
    timed,
    variant,
)

from sparsegen.errors import ImportFileError
from sparsegen.kernels import family
from sparsegen.kernels.config import UnknownConfig
from sparsegen.operators import ItemValues
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.exchange import (
    Content,
    add,
    dump,
    export_json,
    import_json,
    load,
    merge,
    read_export,
)
from sparsegen.tuning_db.json_codec import LARGEST_ERROR
from sparsegen.tuning_db.records import DeviceRates, MeasuredAs, Outcome, Variant
from sparsegen.tuning_db.store import Store


def test_what_is_exported_can_be_imported(store: Store, tmp_path: Path) -> None:
    store.add_all(RECORDS.measurements, RECORDS.baselines)
    text, left_out = export_json(store)
    assert left_out == 0 and load(text, "x") == RECORDS
    file = tmp_path / "export.json"
    file.write_text(text, encoding="utf-8")
    with Store.open(tmp_path / "other.db") as other:
        content = read_export(file)
        added = add(other, content, str(file))
        assert (added.measurements, added.baselines) == (3, 1)
        again = add(other, content, str(file))
        assert (again.measurements, again.baselines) == (0, 0)
        assert export_json(other)[0] == text


def test_measured_rates_go_along(store: Store, tmp_path: Path) -> None:
    assert json.loads(dump(RECORDS))["version"] == 1, (
        "without them a document is one that older versions read"
    )
    moment = RECORDS.measurements[0].measured_at
    slower = replace(MEASURED_RATES, clock_mhz=1000.0)
    rates = [
        DeviceRates(H100, slower, moment),
        DeviceRates(H100, MEASURED_RATES, moment + timedelta(seconds=1)),
        DeviceRates(A100, slower, moment),  # nothing else was measured on it
    ]
    store.add_all(RECORDS.measurements, RECORDS.baselines, rates)
    text, _ = export_json(store)
    assert json.loads(text)["version"] == 2
    content = load(text, "x")
    assert content.rates == tuple(rates[1:]) and content.measurements == RECORDS.measurements
    with Store.open(tmp_path / "other.db") as other:
        assert import_json(other, text, "x").rates == 2
        assert import_json(other, text, "x").rates == 0
        assert other.rates(H100) == MEASURED_RATES and other.rates(A100) == slower
        assert export_json(other)[0] == text
    for wrong, words in (
        (
            text.replace('"launch_us": 3.6', '"launch_us": 0'),
            r"devices\[0\].rates.launch_us: expected a finite",
        ),
        (text.replace('"launch_us": 3.6, ', ""), r"devices\[0\].rates: expected a member 'launch_us'"),
    ):
        assert wrong != text
        with pytest.raises(ImportFileError, match=words):
            load(wrong, "x")


def test_problems_of_every_operator_can_be_imported(store: Store) -> None:
    store.add_all(other_operators(), ())
    text, left_out = export_json(store)
    assert left_out == 0 and load(text, "x").measurements == tuple(other_operators())
    for wrong, words in (
        (text.replace('"epilogue": "scale"', '"epilogue": "bias"'), "'bias' is not a valid SddmmEpilogue"),
        (text.replace('"dtype": "float16"}', '"dtype": "float16", "k": 4}'), "no member 'k'"),
        (text.replace('"k": 64', '"k": 0', 1), r"k = 0 is outside"),
        (text.replace('"n": 256', '"n": 255', 1), "as the problem's sizes say"),
        (text.replace('"sparse_softmax"', '"softmax"'), "one of spmm, .*, sddmm, sparse_softmax"),
        (text.replace('"row_softmax"', '"csr_spmm"'), "a family that computes sparse_softmax"),
    ):
        assert wrong != text
        with pytest.raises(ImportFileError, match=words):
            load(wrong, "x")


def test_batches_are_exported_and_single_items_as_ever(store: Store) -> None:
    alone = timed(12.5)
    several = [
        replace(alone, workload=replace(alone.workload, problem=replace(alone.workload.problem, **more)))
        for more in ({"batch": 8}, {"batch": 8, "item_values": ItemValues.OWN}, {"batch": 9})
    ]
    store.add_all([alone, *several], ())
    for m in (alone, *several):
        assert store.measurements(m.workload, H100) == [m]
    text, _ = export_json(store)
    assert load(text, "x").measurements == (alone, *several)
    lines = [line for line in text.splitlines() if '"problem"' in line]
    assert "batch" not in lines[0] and '"batch": 8}' in lines[1] and '"item_values": "own"}' in lines[2]
    for wrong, words in (
        (text.replace('"batch": 9', '"batch": 0'), "batch = 0 is outside"),
        (text.replace('"batch": 9', '"batch": "9"'), "expected an integer"),
        (text.replace('"item_values": "own"', '"item_values": "none"'), "'none' is not a valid ItemValues"),
        (text.replace('"batch": 8, "item_values": "own"', '"item_values": "own"'), "a batch of several"),
    ):
        assert wrong != text
        with pytest.raises(ImportFileError, match=words):
            load(wrong, "x")


def test_an_unwritten_output_has_a_json_error(store: Store) -> None:
    store.add_measurement(replace(failed(Outcome.WRONG), worst_error=float("inf")))
    assert load(export_json(store)[0], "x").measurements[0].worst_error == 1e300


def test_errors_end_at_the_largest_that_is_exported() -> None:
    spoilt = document()
    wrong = next(m for m in spoilt["measurements"] if "worst_error" in m)
    wrong["worst_error"] = 1e308
    content = load(json.dumps(spoilt), "x.json")
    assert max(m.worst_error or 0 for m in content.measurements) == LARGEST_ERROR
    assert load(dump(content), "again") == content


def test_merge_adds_what_is_missing(store: Store, tmp_path: Path) -> None:
    store.add_all(RECORDS.measurements[:2], ())
    with Store.open(tmp_path / "other.db") as other:
        other.add_all(RECORDS.measurements[1:], RECORDS.baselines)
        added = merge(store, other)
    assert (added.measurements, added.baselines) == (1, 1)
    assert sorted(store.all_measurements(), key=lambda m: m.measured_at) == list(RECORDS.measurements)


def test_configs_of_unknown_families_stay_behind(store: Store) -> None:
    stranger = replace(
        timed(1.0), variant=Variant(UnknownConfig("of_the_future", variant().config.key[1]), DIGEST)
    )
    odd = replace(timed(1.0), variant=Variant(UnknownConfig("csr_spmm", (("tile_n", "64; evil()"),)), DIGEST))
    store.add_all([stranger, odd, timed(2.0)], ())
    text, left_out = export_json(store)
    assert left_out == 2 and len(load(text, "x").measurements) == 1
    assert len(check(store)) == 2 and any("evil" in line for line in check(store))


def test_rows_of_families_that_are_gone_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    old = document()
    whole = load(json.dumps(old), "x")
    old["measurements"][0]["family"] = "gone_spmm"
    content = load(json.dumps(old), "x")
    assert content == replace(whole, measurements=whole.measurements[1:])
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning == "x: measurements of no installed family are passed over: 1 of gone_spmm"


def test_measurements_by_families_of_other_operators_stay_behind(store: Store) -> None:
    """An import refuses them, all or nothing."""
    foreign = replace(timed(1.0), variant=other_operators()[0].variant)
    store.add_all([foreign, timed(2.0)], ())
    text, left_out = export_json(store)
    assert left_out == 1 and load(text, "x").measurements == (timed(2.0),)
    [told] = check(store)
    assert "csr_sddmm" in told and "measured on spmm" in told


def test_a_sound_database_passes_the_check(store: Store) -> None:
    store.add_all(RECORDS.measurements, RECORDS.baselines)
    assert check(store) == []


def test_what_a_time_was_measured_as_and_by_which_driver_is_kept(store: Store) -> None:
    kinds = [timed(5.0, at=i, measured_as=kind) for i, kind in enumerate(MeasuredAs)]
    warm = Content((kinds[0], kinds[2]), ())
    assert json.loads(dump(warm))["version"] == 1, "older versions know cold and warm"
    assert load(dump(warm), "some.json").measurements == warm.measurements
    content = Content((*kinds, replace(timed(6.0, at=9), driver="580.159.03")), ())
    assert json.loads(dump(content))["version"] == 3
    store.add_all(load(dump(content), "some.json").measurements, [])
    assert tuple(store.all_measurements()) == content.measurements
    for spoilt in ({"measured_as": "tepid"}, {"measured_as": 3}):
        document = json.loads(dump(content))
        document["measurements"][3]["sample"] |= spoilt
        with pytest.raises(ImportFileError, match=r"measurements\[3\]\.sample\.measured_as"):
            load(json.dumps(document), "some.json")


def test_a_config_of_an_older_version_gets_the_defaults(store: Store) -> None:
    old = document()
    config = old["measurements"][0]["config"]
    del config["staging"]
    import_json(store, json.dumps(old), "x")
    found = next(m for m in store.all_measurements() if m.final)
    assert found.variant.config.to_dict()["staging"] == family("csr_spmm").config().staging
    assert found == RECORDS.measurements[0]


def test_a_tunable_may_have_any_name(store: Store) -> None:
    for name in ("self", "values", "cls"):
        document = json.loads(dump(RECORDS))
        document["measurements"][0]["config"][name] = 1
        with pytest.raises(ImportFileError, match=f"no tunable '{name}'"):
            import_json(store, json.dumps(document), "x")
