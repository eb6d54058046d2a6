"""Readers of files give a value or one of sparsegen's own errors, whatever a file holds.

A run of the tests makes a hundred attempts at each, `.ci/run` four hundred, the same ones every time, so that a change
is judged by what it does. ``make fuzz SECONDS=3600`` goes on for an hour, from another seed every time, and says how
many attempts there were.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import secrets
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import job_samples
import numpy as np
import pytest
import scipy.sparse
from bench_samples import results
from fuzz_mutations import damaged_bytes, damaged_json, matrix_market, npy, safetensors, smtx
from fuzz_report import ATTEMPTS
from tuning_samples import H100, MEASURED_RATES, baseline, failed, timed, workload

import sparsegen
from sparsegen import backends
from sparsegen.bench.results import result_file, result_reader
from sparsegen.bench.results.results import Results
from sparsegen.dispatch.choice import choose, forget
from sparsegen.errors import (
    BundleError,
    DatabaseError,
    ImportFileError,
    MatrixError,
    PinsError,
    ResultsError,
    SavedOperatorError,
    SparsegenError,
)
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_rows
from sparsegen.matrix.load import load_matrix
from sparsegen.matrix.readers.smtx import read_smtx_shape
from sparsegen.networks.files.packed_file import FIRST_LINE, MAGIC, load_packed, save_packed
from sparsegen.networks.files.packed_header import padded
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators import SparseOperator
from sparsegen.plan import saved_operator
from sparsegen.pruning.files.open import open_weights
from sparsegen.tuning.jobs import job
from sparsegen.tuning.jobs.bundle import JOB, MANIFEST, Bundle, open_bundle
from sparsegen.tuning.jobs.results import read_result
from sparsegen.tuning_db import exchange
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.exchange import Content
from sparsegen.tuning_db.foreign_devices import facts as facts_of
from sparsegen.tuning_db.pins import Pin, Pins
from sparsegen.tuning_db.pins_file import read_pins, write_pins
from sparsegen.tuning_db.records import DeviceRates, Outcome
from sparsegen.tuning_db.store import Store

TURN = 100  # attempts between two looks at the clock
TARGETS = 15  # among which the seconds are divided
MEMORY = 2**26  # bytes that a damaged file may take
Fuzz = Callable[[st.SearchStrategy[Any], Callable[[Any], None]], None]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Make the turns asked for, then go on until this target's part of the time is over."""
    seconds = request.config.getoption("--fuzz-seconds") / TARGETS
    turns = request.config.getoption("--fuzz-turns")

    def run(strategy: st.SearchStrategy[Any], attempt: Callable[[Any], None]) -> None:
        seed = secrets.randbits(32) if seconds else 0
        ended, attempts = time.monotonic() + seconds, 0

        def counted(value: Any) -> None:
            nonlocal attempts
            attempts += 1
            attempt(value)

        settings = hypothesis.settings(
            max_examples=TURN,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        while True:
            hypothesis.seed(seed)(settings(hypothesis.given(strategy)(counted)))()
            ATTEMPTS[request.node.name] = attempts
            if attempts >= turns * TURN and time.monotonic() >= ended:
                return
            seed += 1

    return run


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A warning for every damaged row is what they are for, but not thousands of them."""
    caplog.set_level(logging.CRITICAL)


# --- matrices and weights ---

DENSE = np.array([[0, 1.5, 0, -2], [0, 0, 0, 0], [3, 0, 0.25, 0]], dtype=np.float32)
COORDINATE = b"%%MatrixMarket matrix coordinate real general\n% a comment\n3 4 2\n1 2 1.5\n3 1 3\n"


def saved(write: Callable[..., Any], *arguments: Any, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    write(stream, *arguments, **arrays)
    return stream.getvalue()


def matrix_files() -> dict[str, bytes]:
    """One sound file of each kind; names end in its suffix."""
    text = json.dumps({"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    plain = {
        "mtx": COORDINATE,
        "array.mtx": b"%%MatrixMarket matrix array integer symmetric\n2 2\n1\n2\n3\n",
        "smtx": b"3, 4, 4\n0 2 2 4\n1 3 0 2\n",
    }
    sparse = {
        f"{form}.npz": saved(
            scipy.sparse.save_npz, scipy.sparse.coo_array(DENSE).asformat(form), compressed=packed
        )
        for form, packed in (("csr", True), ("csc", False), ("coo", False), ("bsr", False), ("dia", False))
    }
    return {
        **plain,
        **{f"{name}.gz": gzip.compress(content, mtime=0) for name, content in plain.items()},
        **sparse,
        "npy": saved(np.save, DENSE),
        "npz": saved(np.savez, w=DENSE, b=DENSE[0]),
        "one.npz": saved(np.savez_compressed, w=DENSE.astype(np.float16)),
        "safetensors": len(text).to_bytes(8, "little") + text + DENSE.tobytes(),
    }


def read_matrix(folder: Path, found: tuple[str, bytes]) -> None:
    name, content = found
    path = folder / f"w.{name}"
    path.write_bytes(content)
    try:
        matrix = load_matrix(path, memory_limit=MEMORY, allow_nonfinite=True)
    except MatrixError as error:
        assert str(path) in str(error) and len(str(error)) < 1000
    else:
        assert isinstance(matrix, CsrMatrix) and len(matrix.row_offsets) == matrix.shape[0] + 1
    if name.startswith("smtx"):
        with suppress(MatrixError):
            assert len(read_smtx_shape(path)) == 2


def test_damaged_matrices(tmp_path: Path, fuzz: Fuzz) -> None:
    fuzz(damaged_bytes(matrix_files()), lambda found: read_matrix(tmp_path, found))


def test_headers_of_matrices(tmp_path: Path, fuzz: Fuzz) -> None:
    fuzz(matrix_market() | smtx() | npy() | safetensors(), lambda found: read_matrix(tmp_path, found))


def test_weights(tmp_path: Path, fuzz: Fuzz) -> None:
    def read(found: tuple[str, bytes]) -> None:
        name, content = found
        path = tmp_path / f"w.{name}"
        path.write_bytes(content)
        try:
            weights = open_weights(path, MEMORY)
            for spec in weights.specs:
                if spec.value_type is not None:
                    weights.read(spec.name)
        except MatrixError as error:
            assert str(path) in str(error) or "tensor" in str(error)

    corpus = {n: c for n, c in matrix_files().items() if n.endswith(("npy", "npz", "safetensors"))}
    fuzz(damaged_bytes(corpus) | npy() | safetensors(), read)


# --- JSON ---

RECORDS = exchange.Content(
    (
        timed(12.5, tile_n=32, final=True),
        timed(3.0, workload(n=128, tag="b")),
        failed(Outcome.WRONG, tile_n=128),
    ),
    (baseline(20.0),),
    (DeviceRates(H100, MEASURED_RATES),),
)


def test_exports(tmp_path: Path, fuzz: Fuzz) -> None:
    def read(text: str) -> None:
        try:
            content = exchange.load(text, "x.json")
        except ImportFileError as error:
            assert str(error).startswith("x.json") and len(str(error)) < 1000
            return
        assert exchange.load(exchange.dump(content), "again") == content
        with Store.open(tmp_path / f"{secrets.token_hex(8)}.db") as store:
            exchange.import_json(store, text, "x.json")
            assert not check(store)

    fuzz(damaged_json(json.loads(exchange.dump(RECORDS))), read)


def test_result_files(fuzz: Fuzz) -> None:
    def read(text: str) -> None:
        try:
            found = result_reader.load(text, "x.json")
        except ResultsError as error:
            assert "x.json" in str(error) and len(str(error)) < 2000
            return
        assert isinstance(found, Results)
        assert result_reader.load(result_file.dump(found), "again") == found

    fuzz(damaged_json(json.loads(result_file.dump(results()))), read)


def test_pins(tmp_path: Path, fuzz: Fuzz) -> None:
    path = tmp_path / "pins.json"
    here = workload()
    pin = Pin(here.problem, here.fingerprint, H100.key, timed(1.0, tile_n=32).variant.config, "reviewed")
    write_pins(Pins().with_pins([pin, replace(pin, device="another")]), path)

    def read(text: str) -> None:
        path.write_text(text, errors="surrogateescape")
        try:
            found = read_pins(path)
        except PinsError as error:
            assert str(path) in str(error) and len(str(error)) < 2000
            return
        write_pins(found, path)
        assert {*read_pins(path)} == {*found}

    fuzz(damaged_json(json.loads(path.read_text())), read)


# --- jobs ---


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    path = tmp_path_factory.mktemp("bundle") / "b.pyz"
    with pytest.MonkeyPatch.context() as patch:
        job_samples.sources_alone(path, patch)
    with open_bundle(path) as opened:
        yield opened


def test_jobs(bundle: Bundle, fuzz: Fuzz) -> None:
    def read(text: str) -> None:
        try:
            found = job.load(text, "job.json")
        except BundleError as error:
            assert str(error).startswith("job.json") and len(str(error)) < 2000
            return
        assert job.load(job.dump(found), "again") == found

    fuzz(damaged_json(json.loads(job.dump(bundle.job))), read)


def test_results_of_jobs(tmp_path: Path, bundle: Bundle, fuzz: Fuzz) -> None:
    path = tmp_path / "r"
    lines = [job_samples.head(bundle), *({"measurement": job_samples.record(bundle, t)} for t in (0, 1))]

    def read(text: str) -> None:
        try:
            whole = "".join(json.dumps(line) + "\n" for line in json.loads(text))
        except (ValueError, TypeError):
            whole = text
        path.write_text(whole, errors="surrogateescape")
        with suppress(BundleError):
            for m in read_result(path, bundle).content.measurements:
                assert m.sample is None or 0.2 <= m.sample.median_us <= 3.6e9

    fuzz(damaged_json(lines), read)


def test_damaged_bundles(tmp_path: Path, bundle: Bundle, fuzz: Fuzz) -> None:
    """Damage at the archive's end, where its directory is: all else has digests."""
    content, path = bundle.path.read_bytes(), tmp_path / "b.pyz"
    cut = len(content) - 2000

    def read(damaged: tuple[str, bytes]) -> None:
        path.write_bytes(content[:cut] + damaged[1])
        try:
            with open_bundle(path) as opened:
                _ = opened.job
        except BundleError as error:
            assert str(path) in str(error)

    fuzz(damaged_bytes({"end": content[cut:]}), read)


def test_bundles(tmp_path: Path, bundle: Bundle, fuzz: Fuzz) -> None:
    """Jobs and manifests with any values in them, packed anew with all checksums right."""
    path = tmp_path / "b.pyz"
    entries = {name: {"bytes": entry.size, "sha256": entry.sha256} for name, entry in bundle.files.items()}
    listed = {"format": "sparsegen-bundle", "version": 1, "files": entries}
    with zipfile.ZipFile(bundle.path) as archive:
        sound = {name: archive.read(name) for name in archive.namelist()}

    def read(found: tuple[str, bool]) -> None:
        text, is_manifest = found
        files = dict(sound)
        files[MANIFEST if is_manifest else JOB] = text.encode()
        if not is_manifest:
            entry = {"bytes": len(files[JOB]), "sha256": hashlib.sha256(files[JOB]).hexdigest()}
            files[MANIFEST] = json.dumps(listed | {"files": entries | {JOB: entry}}).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        try:
            with open_bundle(path) as opened:
                opened.verify()
        except BundleError as error:
            assert str(path) in str(error) and len(str(error)) < 2000

    documents = damaged_json(json.loads(job.dump(bundle.job))).map(lambda text: (text, False))
    fuzz(documents | damaged_json(listed).map(lambda text: (text, True)), read)


def test_exports_with_foreign_devices(tmp_path: Path, fuzz: Fuzz) -> None:
    """An export may say anything of its devices: it records nothing for a known one that is another."""
    emulator = backends.emulator_device()
    known = Content((timed(12.5, tile_n=32), timed(50.0, device=emulator, tile_n=64)), ())
    foreign = json.loads(exchange.dump(Content((timed(0.5, tile_n=128), timed(0.25, device=emulator)), ())))
    facts = {facts_of(device)["key"]: facts_of(device) for device in (H100, emulator)}

    def read(found: tuple[str, str, Any, bool]) -> None:
        text, name, value, is_second = found
        document = json.loads(text)
        with suppress(TypeError, KeyError, IndexError):
            document["devices"][is_second][name] = value
        place = tmp_path / f"{secrets.token_hex(8)}.db"
        with Store.open(place) as store:
            store.add_all(known.measurements, [])
            with suppress(ImportFileError):
                exchange.import_json(store, json.dumps(document), "x.json")
            for m in store.all_measurements():
                assert (m.device.key == "emulator") == (m.device.backend == "emulator")
                assert facts_of(m.device) == facts.get(m.device.key, facts_of(m.device))
            assert not check(store)
        place.unlink()

    names = st.sampled_from(("key", "name", "backend", "compute_capability", "multiprocessors", "l2_bytes"))
    values = st.sampled_from(
        (
            H100.key,
            H100.name,
            emulator.key,
            emulator.name,
            "cuda",
            "emulator",
            [9, 0],
            [8, 0],
            1,
            132,
            "x",
            None,
        )
    )
    documents = st.just(json.dumps(foreign)) | damaged_json(foreign)
    fuzz(st.tuples(documents, names, values, st.booleans()), read)


# --- packed networks ---


def test_packed_headers(tmp_path: Path, fuzz: Fuzz) -> None:
    """Headers with any values in them, whose checksums are right."""
    net = SparseNetwork(radixnet(64, 3), device="emulator", db=str(tmp_path / "tuning.db"))
    path = tmp_path / "net.packed"
    save_packed(net.pack(20, memory=60_000), path)
    content = path.read_bytes()
    length = int(content[len(MAGIC) : FIRST_LINE].split()[0])
    images = content[padded(FIRST_LINE + length) :]

    def read(text: str) -> None:
        header = text.encode("utf-8", "surrogatepass")
        first = (MAGIC + f"{len(header)} {zlib.crc32(header)}".encode()).ljust(FIRST_LINE - 1) + b"\n"
        path.write_bytes((first + header).ljust(padded(FIRST_LINE + len(header))) + images)
        try:
            found = load_packed(path)
        except SavedOperatorError as error:
            assert str(error).startswith(str(path)) and len(str(error)) < 2000
            return
        assert found.plan.batch >= 1 and found.segments and found.clip > 0

    fuzz(damaged_json(json.loads(content[FIRST_LINE : FIRST_LINE + length])), read)


# --- databases ---


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "tuning.db"
    with Store.open(path) as store:
        store.add_all(RECORDS.measurements, RECORDS.baselines, RECORDS.rates)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


def look_up(path: Path, *, read_only: bool) -> None:
    """All that commands ask a database."""
    known = workload()
    try:
        with Store.open(path, read_only=read_only) as store:
            for tuned in store.list_workloads():
                store.winner(tuned.workload, tuned.device)
                store.baselines(tuned.workload, tuned.device)
            store.rates(H100)
            choose(known, H100, store)
            forget(store)
            exchange.load(exchange.export_json(store)[0], "export")
            check(store)
    except DatabaseError as error:
        assert str(path) in str(error)


def test_damaged_databases(tmp_path: Path, database: bytes, fuzz: Fuzz) -> None:
    def read(found: tuple[tuple[str, bytes], bool]) -> None:
        (name, content), read_only = found
        path = tmp_path / name
        for rest in tmp_path.iterdir():
            rest.unlink()
        path.write_bytes(content)
        look_up(path, read_only=read_only)

    fuzz(st.tuples(damaged_bytes({"tuning.db": database}), st.booleans()), read)


def test_rows_of_databases(tmp_path: Path, database: bytes, fuzz: Fuzz) -> None:
    path = tmp_path / "tuning.db"
    path.write_bytes(database)
    with closing(sqlite3.connect(path)) as connection:
        tables = (
            "devices",
            "device_rates",
            "matrices",
            "problems",
            "variants",
            "measurements",
            "baselines",
            "predictions",
        )
        columns = [(t, name) for t in tables for _, name, *_ in connection.execute(f"PRAGMA table_info({t})")]
    values = (
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary(max_size=20) | st.text(max_size=20)
        | st.sampled_from(("{}", "[]", "[1]", "{\"self\":1}", "[" * 3000, "ok", "wrong", "2026-11-22 00:00:00.000000"))
    )  # fmt: skip

    def read(changes: list[tuple[tuple[str, str], Any]]) -> None:
        path.write_bytes(database)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            for (table, column), value in changes:
                try:
                    connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE id = 1", (value,))
                except (sqlite3.Error, UnicodeEncodeError):
                    continue  # an id that is no number, text that is none
        look_up(path, read_only=True)

    fuzz(st.lists(st.tuples(st.sampled_from(columns), values), min_size=1, max_size=3), read)


# --- saved operators ---


def saved_bytes() -> bytes:
    """A file of an operator."""
    matrix, file = random_rows(64, 48, 0.3, 0.6, 0), io.BytesIO()
    operator = sparsegen.prepare(matrix, n=16, dtype="float16", family="csr_spmm", device="emulator")
    assert isinstance(operator, SparseOperator)
    sparsegen.save_operator(operator, file)
    return file.getvalue()


def test_saved_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fuzz: Fuzz) -> None:
    whole = saved_bytes()
    monkeypatch.setattr(saved_operator, "VariantLauncher", lambda *_, **__: None)  # nothing is compiled
    monkeypatch.setattr(saved_operator, "SparseOperator", lambda *_: None)
    monkeypatch.setattr(saved_operator, "shared_executor", lambda device: None)
    monkeypatch.setattr(saved_operator.Saved, "uploaded", lambda *_: None)

    def read(found: tuple[str, bytes]) -> None:
        path = tmp_path / "operator.npz"
        path.write_bytes(found[1])
        try:
            saved_operator.read_operator(path, H100)
        except SparsegenError as error:
            assert isinstance(error, SavedOperatorError) or error.exit_code == 3

    fuzz(damaged_bytes({"npz": whole}), read)
