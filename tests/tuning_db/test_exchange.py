"""Export, import and merge: complete, repeatable, and closed to what sparsegen would not write."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuning_samples import (
    A100,
    DIGEST,
    H100,
    MEASURED_RATES,
    baseline,
    failed,
    other_operators,
    timed,
    variant,
    workload,
)

from sparsegen.errors import ImportFileError
from sparsegen.kernels import family
from sparsegen.kernels.config import UnknownConfig
from sparsegen.operators import ItemValues
from sparsegen.settings import Settings
from sparsegen.tuning_db import json_reader
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.exchange import (
    LARGEST_FILE,
    Content,
    dump,
    export_json,
    import_file,
    import_json,
    load,
    merge,
)
from sparsegen.tuning_db.json_reader import parse_json, read_text
from sparsegen.tuning_db.layers import Layers, MemoryLayer, open_layers
from sparsegen.tuning_db.record_json import LARGEST_ERROR
from sparsegen.tuning_db.records import DeviceRates, MeasuredAs, Outcome, Variant
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store

RECORDS = Content(
    (
        timed(12.5, tile_n=32, final=True),
        timed(3.0, workload(n=128, tag="b"), at=1, row_order="binned"),
        failed(Outcome.WRONG, "error 3.1 × bound\nat [2, 7]", at=2, tile_n=128),
    ),
    (baseline(20.0),),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "tuning.db")


def test_what_is_exported_can_be_imported(store: Store, tmp_path: Path) -> None:
    store.add_all(RECORDS.measurements, RECORDS.baselines)
    text, left_out = export_json(store)
    assert left_out == 0 and load(text, "x") == RECORDS
    file = tmp_path / "export.json"
    file.write_text(text, encoding="utf-8")
    with Store.open(tmp_path / "other.db") as other:
        added = import_file(other, file)
        assert (added.measurements, added.baselines) == (3, 1)
        again = import_file(other, file)
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
        (text.replace('"n": 256', '"n": 255', 1), "the matrix's rows and columns in the problem"),
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


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(dump(RECORDS))
    return loaded


Spoil = Callable[[dict[str, Any]], Any]
HOSTILE: list[tuple[str, Spoil, str]] = [
    (
        "code in a config value",
        lambda d: d["measurements"][0]["config"].update(tile_n="64; system(1);"),
        r"\$\.measurements\[0\]\.config\.tile_n.*none of",
    ),
    (
        "code in a word",
        lambda d: d["measurements"][0]["config"].update(row_order='sorted"} __asm__'),
        r"\$\.measurements\[0\]\.config\.row_order",
    ),
    ("a list for a value", lambda d: d["measurements"][0]["config"].update(tile_n=[64]), r"config\.tile_n"),
    ("a float for a value", lambda d: d["measurements"][0]["config"].update(tile_n=64.0), r"config\.tile_n"),
    (
        "an unknown tunable",
        lambda d: d["measurements"][1]["config"].update(__class__=1),
        r"measurements\[1\]\.config\.__class__",
    ),
    (
        "an unknown family",
        lambda d: d["measurements"][0].update(family="../../etc/passwd"),
        r"measurements\[0\]\.family.*no kernel family",
    ),
    (
        "an unknown outcome",
        lambda d: d["measurements"][0].update(outcome="fine"),
        r"measurements\[0\]\.outcome",
    ),
    ("OK without a sample", lambda d: d["measurements"][0].pop("sample"), r"measurements\[0\].*sample"),
    ("a failure with a sample", lambda d: d["measurements"][0].update(outcome="crashed"), "sample"),
    ("time zero", lambda d: d["measurements"][0]["sample"].update(median_us=0), r"sample\.median_us"),
    (
        "a negative time",
        lambda d: d["measurements"][0]["sample"].update(median_us=-1.0),
        r"sample\.median_us",
    ),
    (
        "an endless time",
        lambda d: d["measurements"][0]["sample"].update(median_us=10**400),
        r"sample\.median_us",
    ),
    ("a time in words", lambda d: d["measurements"][0]["sample"].update(median_us="fast"), r"median_us"),
    ("a huge integer", lambda d: d["measurements"][0].update(registers=2**70), r"registers"),
    (
        "a workload out of range",
        lambda d: d["measurements"][0].update(workload=2),
        r"measurements\[0\]\.workload",
    ),
    ("a negative position", lambda d: d["measurements"][0].update(device=-1), r"measurements\[0\]\.device"),
    (
        "true for a position",
        lambda d: d["measurements"][0].update(device=False),
        r"measurements\[0\]\.device",
    ),
    (
        "terminal escapes",
        lambda d: d["measurements"][2].update(reason="\x1b]0;pwned\x07"),
        r"reason.*printable",
    ),
    ("terminal escapes in a device", lambda d: d["devices"][0].update(name="\x1b[2J"), r"devices\[0\]\.name"),
    ("no digest", lambda d: d["measurements"][0].update(source_digest="../x"), "source_digest"),
    ("a time without zone", lambda d: d["measurements"][0].update(measured_at="2026-01-01"), "zone"),
    (
        "a time to come",
        lambda d: d["measurements"][0].update(measured_at="2999-01-01T00:00:00Z"),
        "measured_at",
    ),
    ("an unknown member", lambda d: d["measurements"][0].update(evil=1), "evil"),
    ("a missing member", lambda d: d["measurements"][0].pop("final"), "final"),
    (
        "features of another matrix",
        lambda d: d["workloads"][0]["features"].update(m=3),
        r"workloads\[0\]\.features",
    ),
    ("a fingerprint in words", lambda d: d["workloads"][0].update(fingerprint="' OR 1=1"), "fingerprint"),
    (
        "an unknown operator",
        lambda d: d["workloads"][0]["problem"].update(operator="rm"),
        r"problem\.operator",
    ),
    (
        "an unknown dtype",
        lambda d: d["workloads"][0]["problem"].update(dtype="float8"),
        r"workloads\[0\]\.problem",
    ),
    ("n = 0", lambda d: d["workloads"][0]["problem"].update(n=0), r"workloads\[0\]\.problem"),
    ("m over the limit", lambda d: d["workloads"][0]["problem"].update(m=2**31), r"problem\.m"),
    ("a contender in words", lambda d: d["baselines"][0].update(contender="[red]x"), r"baselines\[0\]"),
    ("another format", lambda d: d.update(format="optuna"), "not an export of sparsegen"),
    ("a newer version", lambda d: d.update(version=5), r"\$\.version.*another sparsegen"),
    ("a device twice", lambda d: d["devices"].append(d["devices"][0]), r"devices\[1\].*listed once"),
    (
        "a workload twice",
        lambda d: d["workloads"].append(d["workloads"][0]),
        r"workloads\[\d\].*listed once",
    ),
    ("lists that are none", lambda d: d.update(measurements={}), r"\$\.measurements.*an array"),
]


@pytest.mark.parametrize(("spoil", "words"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_a_hostile_file_is_refused_as_a_whole(store: Store, spoil: Spoil, words: str) -> None:
    spoilt = document()
    spoil(spoilt)
    with pytest.raises(ImportFileError, match=words) as caught:
        import_json(store, json.dumps(spoilt), "export.json")
    assert "export.json" in str(caught.value)
    assert store.all_measurements() == store.all_baselines() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[1, 2", "not valid JSON"),
        ("[" * 100000, "not valid JSON"),
        ('{"format": 1, "format": 2}', "stands twice"),
        ('{"format": NaN}', "NaN"),
        ("[]", "an object"),
        ("null", "an object"),
    ],
)
def test_what_is_no_export(store: Store, text: str, words: str) -> None:
    with pytest.raises(ImportFileError, match=words):
        import_json(store, text, "export.json")


def test_files_that_cannot_be_read(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match="No such file"):
        import_file(store, tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ImportFileError, match="UTF-8"):
        import_file(store, tmp_path / "latin.json")


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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(data=st.data())
def test_any_replaced_value_is_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever stands at any place of a document: it loads as records, or an ImportFileError says why not."""
    spoilt = document()
    here: Any = spoilt
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], (dict, list)) or not here[key] or data.draw(st.integers(0, 9)) == 0:
            break
        here = here[key]
    here[key] = data.draw(JSON)
    try:
        content = load(json.dumps(spoilt), "x")
    except ImportFileError:
        return
    assert load(dump(content), "x") == content


# --- layers
# ----------------------------------------------------------------------------------------------------


def settings_with(db: Path) -> Settings:
    return Settings.from_environment({"SPARSEGEN_DB": str(db), "HOME": str(db.parent)})


def test_layers_lie_over_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = workload(tag="b")
    with (
        Store.open(tmp_path / "user.db") as user,
        Store.open(tmp_path / ".sparsegen" / "tuning.db") as project,
    ):
        user.add_measurement(timed(9.0))
        project.add_all([timed(1.0), timed(2.0, other)], [baseline(5.0)])
    with open_layers(settings_with(tmp_path / "user.db")) as layers:
        assert [m.sample.median_us for m in layers.measurements(workload(), H100) if m.sample] == [9.0]
        assert [m.sample.median_us for m in layers.measurements(other, H100) if m.sample] == [2.0]
        assert layers.baselines(workload(), H100) == [baseline(5.0)]
        assert {t.workload for t in layers.list_workloads(like=H100)} >= {workload(), other}


def test_no_database_yet_leaves_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_layers(settings_with(tmp_path / "none.db")) as layers:
        assert layers.layers == [seeds()]
    assert list(tmp_path.iterdir()) == []


def test_a_memory_layer_answers_as_a_store(store: Store) -> None:
    store.add_all(RECORDS.measurements, RECORDS.baselines)
    memory = MemoryLayer(RECORDS.measurements, RECORDS.baselines)
    for layer in (memory, Layers([memory])):
        for key in (workload(), workload(n=128, tag="b"), workload(tag="none")):
            assert layer.measurements(key, H100) == store.measurements(key, H100)
            assert layer.baselines(key, H100) == store.baselines(key, H100)
        assert layer.list_workloads(like=H100) == store.list_workloads(like=H100)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.json")
    return tmp_path / "pipe.json"


def test_what_never_ends_is_no_file(tmp_path: Path, pipe: Path) -> None:
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(ImportFileError, match="this is no file"):
            read_text(path, LARGEST_FILE)


def test_json_that_would_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text("[" + "{}," * 1000 + "{}]")
    monkeypatch.setattr(json_reader, "available_bytes", lambda: 10_000)
    with pytest.raises(
        ImportFileError, match=r"2\.9 KiB of JSON may take 12 times as much .* 9\.8 KiB are left"
    ):
        read_text(path, LARGEST_FILE)


def test_complaints_are_short_and_quick() -> None:
    began = time.process_time()
    twice = "{" + "".join(f'"{i}": 0, ' for i in range(100_000)) + '"99999": 0}'
    for text in (
        twice,
        json.dumps([0] * 2_000_000),
        json.dumps({"x" * 10**6: 1}),
        json.dumps({"\x1b[31m": 1}),
    ):
        with pytest.raises(ImportFileError) as caught:
            parse_json(text, "x").fields(("format",))
        assert len(str(caught.value)) < 300
        assert str(caught.value).isprintable()
    assert time.process_time() - began < 5


def test_a_tunable_may_have_any_name(store: Store) -> None:
    for name in ("self", "values", "cls"):
        document = json.loads(dump(RECORDS))
        document["measurements"][0]["config"][name] = 1
        with pytest.raises(ImportFileError, match=f"no tunable '{name}'"):
            import_json(store, json.dumps(document), "x")
