"""Exports that are damaged or hostile are refused as a whole, in short words and little memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from database_samples import document
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen.errors import ImportFileError
from sparsegen.tuning_db import json_reader
from sparsegen.tuning_db.exchange import (
    LARGEST_FILE,
    dump,
    import_json,
    load,
    read_export,
)
from sparsegen.tuning_db.json_reader import parse_json, read_text
from sparsegen.tuning_db.store import Store

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
    ("a baseline in words", lambda d: d["baselines"][0].update(baseline="[red]x"), r"baselines\[0\]"),
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


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match="No such file"):
        read_export(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ImportFileError, match="UTF-8"):
        read_export(tmp_path / "latin.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(data=st.data())
def test_any_replaced_value_is_refused_or_harmless(data: st.DataObject) -> None:
    """Any value at any place of a document: it loads as records, or an ImportFileError says why not."""
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
