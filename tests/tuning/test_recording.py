"""Recorded searches: nothing is lost in the file, and what is none of it is refused."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from tuning_samples import H100, failed, timed, workload

from benchmarks import recording
from benchmarks.recording import Recording, Tried
from sparsegen.errors import ImportFileError
from sparsegen.kernels import family
from sparsegen.tuning_db.records import Outcome, Variant


def measurements() -> list[Recording]:
    """Two spaces: one of two families with a failure and a finalist, and one that was modelled."""
    other = Variant(family("segment_spmm").config(), "cd" * 32)
    found = [
        timed(20.25, at=0, tile_n=32),
        replace(timed(33.0, at=1), variant=other),
        timed(18.123456, at=2, tile_n=64),
        failed(Outcome.WRONG, at=3, tile_n=128),
        timed(17.0, at=4, tile_n=64, final=True),
        timed(9.0, at=5, tile_n=256, final=True),
    ]
    first = Recording.of("first", found)
    return [first, replace(first, name="second", is_modelled=True)]


def test_the_searchs_own_times_count() -> None:
    first, _ = measurements()
    assert [
        (t.config.to_dict().get("tile_n"), t.time_us)
        for t in first.tried
        if t.config.family_name == "csr_spmm"
    ] == [
        (32, 20.25),
        (64, 18.123456),
        (128, None),
        (256, 9.0),
    ]
    assert first.best_us == 9.0 and first.workload == workload() and first.device == H100


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "searches.json.xz"
    recording.write(path, measurements())
    read = recording.read(path)
    assert [r.name for r in read] == ["first", "second"] and [r.is_modelled for r in read] == [False, True]
    for was, now in zip(measurements(), read, strict=True):
        assert (now.workload, now.device) == (was.workload, was.device)
        assert {t.config for t in now.tried} == {t.config for t in was.tried}
        rounded = {t.config: t for t in was.tried}
        for t in now.tried:
            before = rounded[t.config]
            assert replace(t, time_us=None) == replace(before, time_us=None)
            assert t.time_us == (before.time_us and pytest.approx(before.time_us, rel=1e-4))


def test_a_thousand_configs_take_few_bytes(tmp_path: Path) -> None:
    kind = family("csr_spmm").config_type
    configs = [
        kind(tile_n=n, tile_k=k, rows_per_block=r, threads_per_row=t, row_splits=s)
        for n in (8, 32, 64, 128)
        for k in (8, 16)
        for r in (1, 2, 4, 8, 16, 32, 64)
        for t in (4, 8, 16, 32)
        for s in (1, 2, 4, 8)
    ]
    tried = tuple(Tried(c, Outcome.OK, 10.0 + (i * 7919 % 1000) / 7, 40, 0) for i, c in enumerate(configs))
    path = tmp_path / "searches.json.xz"
    recording.write(path, [replace(measurements()[0], tried=tried)])
    assert path.stat().st_size < 8 * len(configs)


def edited(path: Path, **changes: object) -> None:
    document = json.loads(lzma.decompress(path.read_bytes()))
    document["searches"][0] |= changes
    path.write_bytes(lzma.compress(json.dumps(document).encode()))


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "searches.json.xz"
    with pytest.raises(ImportFileError, match="No such file"):
        recording.read(path)
    path.write_bytes(b"no xz")
    with pytest.raises(ImportFileError, match="not what xz compressed"):
        recording.read(path)
    path.write_bytes(lzma.compress(b'{"format": "another/1"}'))
    with pytest.raises(ImportFileError, match="another/1, not sparsegen"):
        recording.read(path)
    recording.write(path, measurements()[:1])
    edited(path, families={"csr_spmm": {}})
    with pytest.raises(ImportFileError, match="csr_spmm has the tunables"):
        recording.read(path)
    recording.write(path, measurements()[:1])
    edited(path, times_us=[1.0])
    with pytest.raises(ImportFileError, match="ValueError"):
        recording.read(path)


def test_what_a_family_tried_that_is_gone_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "searches.json.xz"
    recording.write(path, measurements()[:1])
    text = lzma.decompress(path.read_bytes()).decode()
    path.write_bytes(lzma.compress(text.replace('"segment_spmm"', '"gone_spmm"').encode()))
    [was], [now] = measurements()[:1], recording.read(path)
    assert [t.config for t in now.tried] == [
        t.config for t in was.tried if t.config.family_name == "csr_spmm"
    ]
    assert now.best_us == 9.0
