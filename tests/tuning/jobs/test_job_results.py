"""Results of jobs are data from strangers: what is imported, and what is not."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from job_samples import (
    COMPILER,
    GPU,
    MATRICES,
    Files,
    head,
    import_result,
    rebuilt,
    record,
    sample,
    sources_alone,
    write_result,
)

from sparsegen import backends
from sparsegen.errors import BundleError
from sparsegen.kernels.rates import ARCHITECTURES, estimated
from sparsegen.tuning.jobs.bundle import JOB, Bundle, open_bundle
from sparsegen.tuning.jobs.checks import Checks
from sparsegen.tuning.jobs.results import ResultFile, add_result, begun, is_result, read_result, read_verified
from sparsegen.tuning_db.conversion import described
from sparsegen.tuning_db.store import Store


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    path = tmp_path_factory.mktemp("bundle") / "b.pyz"
    with pytest.MonkeyPatch.context() as patch:
        sources_alone(path, patch)
    with open_bundle(path) as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def test_a_result_is_imported_once(bundle: Bundle, store: Store, tmp_path: Path) -> None:
    records = [record(bundle, t, c) for t in (0, 1) for c in (0, 1)]
    bad = {"outcome": "crashed", "reason": "illegal address"}
    failed = {k: v for k, v in (record(bundle, 1, 2) | bad).items() if k not in ("sample", "worst_error")}
    timed = {"workload": 0, "device": 0, "contender": "cublas", "version": "13.0", "sample": sample()}
    dense = {"baseline": timed | {"measured_at": datetime.now(UTC).isoformat()}}
    path = write_result(tmp_path / "r", head(bundle), *records, failed, dense)
    assert is_result(path)
    found = read_verified(path, bundle.path)
    added = add_result(store, found, path)
    assert (added.measurements, added.baselines, found.is_cut_off) == (5, 1, False)
    assert add_result(store, found, path).measurements == 0
    winner = store.winner(bundle.job.tasks[0].workload, GPU)
    assert winner is not None and winner.device == GPU


def test_what_a_killed_run_leaves_is_imported_without_the_part_of_a_line(
    bundle: Bundle, store: Store, tmp_path: Path
) -> None:
    path = write_result(tmp_path / "r", head(bundle), record(bundle))
    with path.open("a") as file:
        file.write('{"measurement": {"worklo')
    found = read_verified(path, bundle.path)
    assert found.is_cut_off and add_result(store, found, path).measurements == 1


def _at(**difference: float) -> dict[str, str]:
    return {"measured_at": (datetime.now(UTC) + timedelta(**difference)).isoformat()}


def _config(bundle: Bundle) -> dict[str, Any]:
    """One that the family has, and that was never in the bundle."""
    asked = {c.config for c in bundle.job.tasks[0].candidates}
    first = next(iter(asked))
    family_config = type(first)
    other = next(
        c
        for t in family_config.tunables()
        for v in t.choices
        if (c := family_config.parse({**first.to_dict(), t.name: v})) not in asked
    )
    return other.to_dict()


Make = Callable[[Bundle], dict[str, Any]]
HOSTILE: dict[str, tuple[Make, str]] = {
    "a config that was not asked for": (lambda b: record(b, config=_config(b)), "a variant that the bundle has"),
    "the candidate of another family": (lambda b: record(b, family="uspmm_vec", config={}), "a variant that"),
    "a config with code": (lambda b: record(b, config={"tile_n": "1;evil"}), "tile_n"),
    "another digest": (lambda b: record(b, source_digest="ab" * 32), "the digest that this variant's source has"),
    "a workload that is not there": (lambda b: record(b, workload=2), r"an integer in \[0, 1\]"),
    "a negative workload": (lambda b: record(b, workload=-1), "an integer in"),
    "a second device": (lambda b: record(b, device=1), "an integer in"),
    "no time at all": (lambda b: record(b, sample=sample(0.0)), "a finite number > 0"),
    "a negative time": (lambda b: record(b, sample=sample(-5.0)), "a finite number > 0"),
    "less than an event takes": (lambda b: record(b, 1, sample=sample(0.01)), "times in order"),
    "less than any GPU takes": (lambda b: record(b, sample=sample(1.0)), "which no such device could reach"),
    "hours for one call": (lambda b: record(b, sample=sample(1e10)), "times in order"),
    "a median beside its percentiles": (lambda b: record(b, sample=sample(low_us=600.0)), "times in order"),
    "a warm L2": (lambda b: record(b, sample=sample(cold=False)), "cold L2"),
    "too many calls": (lambda b: record(b, sample=sample(count=2_000_000)), "calls"),
    "right, with an error beyond its bound": (lambda b: record(b, worst_error=3.0), "within its bound"),
    "right, and never verified": (
        lambda b: {k: v for k, v in record(b).items() if k != "worst_error"},
        "a verified error",
    ),
    "failed with a time": (lambda b: record(b, outcome="wrong"), "a sample exactly when"),
    "an outcome that there is not": (lambda b: record(b, outcome="great"), "one of ok"),
    "from the future": (lambda b: record(b, **_at(days=3)), "from 2020 to now"),
    "older than the bundle": (lambda b: record(b, **_at(days=-3)), "no older than its bundle"),
    "too many registers": (lambda b: record(b, registers=9999), "255 registers"),
    "code for a terminal": (lambda b: record(b, reason="\x1b[2J"), "printable text"),
    "a long text": (lambda b: record(b, reason="x" * 5000), "printable text of at most"),
    "another member": (lambda b: record(b, code="import os"), "no member 'code'"),
    "a number that is too long": (lambda b: record(b, packed_bytes=10**400), "integer"),
    "two records in a line": (lambda b: {"rates": {}, "measurement": record(b)}, "one record"),
    "a record of no kind": (lambda b: {"pickle": "gASV"}, "no member 'pickle'"),
    "an odd baseline": (
        lambda b: {"baseline": {"workload": 0, "device": 0, "contender": "x'; DROP", "version": "1", "sample": sample()}
                   | _at()},
        "text like",
    ),
    "a baseline that no GPU reaches": (
        lambda b: {"baseline": {"workload": 0, "device": 0, "contender": "cublas", "version": "1",
                                "sample": sample(1.0)} | _at()},
        "could reach",
    ),
    "rates of no device": (
        lambda b: {"rates": dict.fromkeys(RATES, 1e30) | _at()},
        "rates that a device of this description",
    ),
}  # fmt: skip
RATES = (
    "copy_bytes_per_us",
    "float32_flop_per_us",
    "tf32_flop_per_us",
    "float16_flop_per_us",
    "bfloat16_flop_per_us",
    "launch_us",
    "clock_mhz",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_keeps_everything_out(
    bundle: Bundle, store: Store, tmp_path: Path, name: str
) -> None:
    make, message = HOSTILE[name]
    path = write_result(tmp_path / "r", head(bundle), record(bundle), make(bundle))
    with pytest.raises(BundleError, match=message) as error:
        import_result(store, path, bundle.path)
    assert "line 3" in str(error.value) and len(str(error.value)) < 2000
    assert store.all_measurements() == [] and store.all_baselines() == []


HEADS: dict[str, tuple[dict[str, Any], str]] = {
    "of another job": ({"job": "ab" * 32}, "the result of another bundle"),
    "of another capability": (
        {"device": described(GPU) | {"compute_capability": [8, 0]}},
        "compute capability 9.0",
    ),
    "of the emulator": ({"device": described(GPU) | {"backend": "emulator"}}, "compute capability 9.0"),
    "a later version": ({"version": 2}, "version 1"),
    "another format": ({"format": "sparsegen-tuning"}, "the first line"),
    "another member": ({"exec": "x"}, "no member 'exec'"),
    "no compiler": ({"compiler": ""}, "text like"),
    "escapes": ({"driver": "\x1b[2J"}, "printable"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_hostile_first_line(bundle: Bundle, store: Store, tmp_path: Path, name: str) -> None:
    changes, message = HEADS[name]
    path = write_result(tmp_path / "r", head(bundle, **changes), record(bundle))
    with pytest.raises(BundleError, match=message):
        import_result(store, path, bundle.path)
    assert store.all_measurements() == []


EMULATOR = described(backends.emulator_device())


@pytest.fixture(scope="module")
def emulators_bundle(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    """The same job for the emulator."""

    def change(files: Files) -> None:
        files[JOB] = json.dumps(json.loads(files[JOB]) | {"target": EMULATOR}).encode()

    path = rebuilt(bundle.path, tmp_path_factory.mktemp("bundle") / "e.pyz", change)
    with open_bundle(path) as opened:
        yield opened


ALIENS: dict[str, tuple[dict[str, Any], str]] = {
    "a GPU's key": ({"key": GPU.key}, "the key of its backend and name"),
    "another key": ({"key": "cuda:evil"}, "the key of its backend and name"),
    "a GPU's name": ({"name": GPU.name}, "the emulator with its own facts"),
    "a GPU's cache": ({"l2_bytes": 1}, "the emulator with its own facts"),
    "a GPU's backend": ({"backend": "cuda"}, "a emulator device of compute capability"),
}


@pytest.mark.parametrize("name", ALIENS)
def test_the_emulator_passes_for_no_gpu(
    emulators_bundle: Bundle, store: Store, tmp_path: Path, name: str
) -> None:
    changes, message = ALIENS[name]
    first = head(emulators_bundle, device=EMULATOR | changes)
    path = write_result(tmp_path / "r", first, record(emulators_bundle))
    with pytest.raises(BundleError, match=message):
        import_result(store, path, emulators_bundle.path)
    assert store.all_measurements() == []


@pytest.mark.parametrize("key", ["nvidia-h100-80gb-hbm3-sm90", "cuda:evil", "emulator", "some-gpu-sm80"])
def test_a_gpu_has_the_key_of_its_name(bundle: Bundle, store: Store, tmp_path: Path, key: str) -> None:
    path = write_result(tmp_path / "r", head(bundle, device=described(GPU) | {"key": key}), record(bundle))
    with pytest.raises(BundleError, match="the key of its backend and name"):
        import_result(store, path, bundle.path)
    assert store.all_measurements() == []


def test_bounds_of_time_hold_for_the_emulator_too(
    emulators_bundle: Bundle, store: Store, tmp_path: Path
) -> None:
    first = head(emulators_bundle, device=EMULATOR | {"multiprocessors": 2})
    honest = record(emulators_bundle, sample=sample(90_000.0))
    path = write_result(tmp_path / "r", first, honest)
    assert import_result(store, path, emulators_bundle.path).measurements == 1
    path = write_result(tmp_path / "s", first, record(emulators_bundle, 0, 1, sample=sample(5.0)))
    with pytest.raises(BundleError, match="no such device could reach"):
        import_result(store, path, emulators_bundle.path)


def test_unknown_gpus_are_bounded_as_the_fastest_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device of a later architecture may be as fast as any, so that no honest time of it is refused."""
    later = (max(ARCHITECTURES)[0] + 1, 0)
    path = tmp_path / "b.pyz"
    sources_alone(path, monkeypatch)
    with open_bundle(path) as opened:
        checks = Checks(opened, replace(GPU, compute_capability=later), COMPILER)
        usual = checks._usual()
    assert usual == estimated(max(ARCHITECTURES), GPU.multiprocessors)
    assert usual != estimated(min(ARCHITECTURES), GPU.multiprocessors)


LINE_ENDS = 64 * 2**20


def test_a_long_file_of_nothing_is_refused_at_its_first_line(bundle: Bundle, tmp_path: Path) -> None:
    """Sizes come before contents: one line is in memory, not the file."""
    path = write_result(tmp_path / "r", head(bundle), record(bundle))
    with path.open("ab") as file:
        for _ in range(LINE_ENDS >> 20):
            file.write(b"\n" * 2**20)

    def read() -> None:
        with pytest.raises(BundleError, match="line 3"):
            read_result(path, bundle)

    read()
    tracemalloc.start()
    try:
        read()
        assert tracemalloc.get_traced_memory()[1] < LINE_ENDS // 16
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", ["/dev/null", "pipe"])
def test_a_run_is_not_written_where_it_cannot_go_on(bundle: Bundle, tmp_path: Path, place: str) -> None:
    path = tmp_path / place  # of an absolute path that alone
    if place == "pipe":
        os.mkfifo(path)
    with pytest.raises(BundleError, match="a device or a pipe"):
        ResultFile(path, bundle, begun(bundle, GPU, COMPILER, "580.1"))


TEXTS = {
    "empty": ("", "no whole line"),
    "binary": ("\x00\x01\n", "not valid JSON"),
    "NaN": ('{"a": NaN}\n', "not a number"),
    "a name twice": ('{"format": 1, "format": 2}\n', "stands twice"),
    "deep": ("[" * 50_000 + "\n", "not valid JSON"),
    "a long line": ("{" + " " * 70_000 + "}\n", "longer than"),
    "a list": ("[]\n", "an object"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_result(bundle: Bundle, tmp_path: Path, name: str) -> None:
    text, message = TEXTS[name]
    (tmp_path / "r").write_text(text)
    with pytest.raises(BundleError, match=message):
        read_result(tmp_path / "r", bundle)


def test_files_that_cannot_be_read(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\n")
    for path, message in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "a folder"),
        (tmp_path / "latin", "UTF-8"),
    ):
        with pytest.raises(BundleError, match=message):
            read_result(path, bundle)
    monkeypatch.setattr("sparsegen.tuning.jobs.results.LARGEST_RESULT", 100)
    with pytest.raises(BundleError, match="more than the limit of 100"):
        read_result(write_result(tmp_path / "r", head(bundle)), bundle)


def test_a_variant_has_so_many_records_and_no_more(bundle: Bundle, tmp_path: Path) -> None:
    path = write_result(tmp_path / "r", head(bundle), *[record(bundle)] * 201)
    with pytest.raises(BundleError, match=r"line 202.*at most 200"):
        read_result(path, bundle)


def test_a_device_that_is_known_otherwise_is_refused(bundle: Bundle, store: Store, tmp_path: Path) -> None:
    import_result(store, write_result(tmp_path / "r", head(bundle), record(bundle)), bundle.path)
    liar = described(GPU) | {"multiprocessors": 1}
    path = write_result(tmp_path / "s", head(bundle, device=liar), record(bundle, 0, 1))
    with pytest.raises(BundleError, match=r"known to .* with other facts"):
        import_result(store, path, bundle.path)


# --- the file that is written -------------------------------------------------------------------------------


def test_a_result_file_goes_on_where_it_was(bundle: Bundle, tmp_path: Path) -> None:
    path = write_result(tmp_path / "r", head(bundle), record(bundle))
    with path.open("a") as file:
        file.write('{"meas')
    first = begun(bundle, GPU, COMPILER, "580.1")
    results = ResultFile(path, bundle, first)
    workload = bundle.job.tasks[0].workload
    (found,) = results.measurements(workload, GPU)
    with pytest.raises(BundleError, match="another process writes it"):
        ResultFile(path, bundle, first)
    results.add_all([found], [])
    results.close()
    content = read_result(path, bundle).content
    assert len(content.measurements) == 2 and path.read_text().endswith("}\n")


def test_a_result_that_was_killed_in_its_first_line_begins_anew(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text(json.dumps(head(bundle))[:50])
    ResultFile(path, bundle, begun(bundle, GPU, COMPILER, "")).close()
    assert read_result(path, bundle).content.measurements == ()


def test_a_file_of_somebody_elses_is_left_as_it_is(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear all,\nit is not JSON.\n")
    with pytest.raises(BundleError):
        ResultFile(path, bundle, begun(bundle, GPU, COMPILER, ""))
    assert path.read_text().startswith("Dear all")
    other = write_result(
        tmp_path / "r", head(bundle, compiler="another"), record(bundle)["sample"] and head(bundle)
    )
    with pytest.raises(BundleError):
        ResultFile(other, bundle, begun(bundle, GPU, COMPILER, ""))


def test_the_matrices_are_what_the_limits_are_for() -> None:
    """The first workload is so large that a lower bound on its time is above what an event takes."""
    assert MATRICES[0].nnz * 2 * 4096 > 3e9
