"""Bundles as data: what is in them, and what becomes of damaged and of hostile ones."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import job_samples
import numpy as np
import pytest
from job_samples import MATRICES, Files, rebuilt, sources_alone

from sparsegen.cli import bundle as command_line
from sparsegen.errors import BundleError, ConfigError
from sparsegen.matrix import budget
from sparsegen.tuning.jobs.bundle import JOB, MANIFEST, open_bundle, pattern_name
from sparsegen.tuning.jobs.job import find_target
from sparsegen.tuning_db.layers import MemoryLayer


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "b.pyz"
    with pytest.MonkeyPatch.context() as patch:
        sources_alone(path, patch)
    return path


def verify(path: Path) -> None:
    with open_bundle(path) as opened:
        opened.verify()


def test_it_holds_the_job(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        opened.verify()
        job = opened.job
        assert [len(t.candidates) for t in job.tasks] == [4, 4] and job.seconds == 60 and not job.compiler
        for number, matrix in enumerate(MATRICES):
            found = opened.matrix(number)
            assert found.fingerprint() == matrix.fingerprint()
            assert "#include" in opened.source(job.tasks[number].candidates[0].source)
        assert not opened.has_kernels


def test_weights_stay_at_home_unless_they_are_asked_for(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_bundle(bundle) as opened:
        assert not np.isin(opened.matrix(1).values, MATRICES[1].values.astype(np.float32)).any()
        assert len(opened.read(pattern_name(opened.job.tasks[1].pattern))) == 4 * (97 + MATRICES[1].nnz)
    sources_alone(tmp_path / "with.pyz", monkeypatch, with_values=True)
    with open_bundle(tmp_path / "with.pyz") as opened:
        np.testing.assert_array_equal(opened.matrix(1).values, MATRICES[1].values.astype(np.float32))


def test_nothing_of_ours_that_it_does_not_need_goes_along(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        names = archive.namelist()
    assert names[0] == "__main__.py"
    assert not [n for n in names if n.startswith(("sparsegen/integrations", "sparsegen/tuning_db/seeds/"))]
    assert not [n for n in names if n.endswith((".pyc", ".db", ".so"))]


def _flip(name: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        found = next(file for file in files if file.startswith(name))
        content = bytearray(files[found])
        content[len(content) // 2] ^= 1
        files[found] = bytes(content)

    return change


@pytest.mark.parametrize("name", [JOB, "__main__.py", "patterns", "sparsegen/errors.py"])
def test_a_flipped_bit_is_found(bundle: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match="damaged"):
        verify(rebuilt(bundle, tmp_path / "b.pyz", _flip(name), mend=False))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_part_of_a_bundle_is_refused(bundle: Path, tmp_path: Path, share: float) -> None:
    content = bundle.read_bytes()
    part = tmp_path / "part.pyz"
    part.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BundleError):
        verify(part)


def test_every_damaged_byte_of_the_directory_gives_a_typed_error_or_the_same(
    bundle: Path, tmp_path: Path
) -> None:
    content = bundle.read_bytes()
    rng = np.random.default_rng(5)
    for place in rng.integers(len(content) - 4000, len(content), 60):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path = tmp_path / "b.pyz"
        path.write_bytes(damaged)
        try:
            with open_bundle(path) as opened:
                opened.read(JOB)
        except BundleError:
            continue


def _edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Files], None]:
    def edited(files: Files) -> None:
        document = json.loads(files[JOB])
        change(document)
        files[JOB] = json.dumps(document).encode()

    return edited


def _offsets_beyond(files: Files) -> None:
    name = first_pattern(files)
    files[name] = b"\xff\xff\xff\x7f" * (len(files[name]) // 4)


def first_pattern(files: Files) -> str:
    """The file of the first task's matrix."""
    return pattern_name(json.loads(files[JOB])["tasks"][0]["pattern"])


HOSTILE: dict[str, tuple[Callable[[Files], None], str]] = {
    "offsets out of bounds": (_offsets_beyond, "patterns/"),
    "a pattern cut short": (
        lambda f: f.update({first_pattern(f): f[first_pattern(f)][:-4]}),
        "as many nonzeros",
    ),
    "another pattern": (
        lambda f: f.update({first_pattern(f): _other_pattern(f[first_pattern(f)])}),
        "is not the matrix",
    ),
    "a source of another digest": (
        lambda f: f.update({next(n for n in f if n.startswith("sources/")): b"int x;"}),
        "damaged",
    ),
    "no job": (lambda f: f.pop(JOB), "no file job.json"),
    "not JSON": (lambda f: f.update({JOB: b"{" * 10}), "not valid JSON"),
    "not UTF-8": (lambda f: f.update({JOB: b"\xff{}"}), "not UTF-8"),
    "deep JSON": (lambda f: f.update({JOB: b"[" * 100_000}), "not valid JSON"),
    "a config with code": (
        _edit(lambda d: d["tasks"][0]["candidates"][0]["config"].update(tile_n="32; system(0)")),
        "tile_n",
    ),
    "an unknown family": (
        _edit(lambda d: d["tasks"][0]["candidates"][0].update(family="evil")),
        "no kernel family",
    ),
    "a source elsewhere": (
        _edit(lambda d: d["tasks"][0]["candidates"][0].update(source="../../etc/passwd")),
        "text like",
    ),
    "a pattern elsewhere": (_edit(lambda d: d["tasks"][0].update(pattern="../x")), "text like"),
    "a budget without end": (_edit(lambda d: d.update(seconds=1e12)), "seconds"),
    "no tasks": (_edit(lambda d: d.update(tasks=[])), "at least one"),
    "the same task twice": (_edit(lambda d: d.update(tasks=d["tasks"][:1] * 2)), "listed once"),
    "a candidate twice": (
        _edit(lambda d: d["tasks"][0].update(candidates=d["tasks"][0]["candidates"][:1] * 2)),
        "listed once",
    ),
    "too many candidates": (
        _edit(lambda d: d["tasks"][0].update(candidates=d["tasks"][0]["candidates"][:1] * 5000)),
        "at most 4096",
    ),
    "another member": (_edit(lambda d: d.update(run="rm")), "no member 'run'"),
    "a later version": (_edit(lambda d: d.update(version=2)), "version 1"),
    "a path upwards": (lambda f: f.update({"../evil": b""}), "a file's name"),
    "a path from the root": (lambda f: f.update({"/evil": b""}), "a file's name"),
}


def _other_pattern(content: bytes) -> bytes:
    """The first nonzero in another column."""
    place = 4 * (MATRICES[0].shape[0] + 1)
    first, second = struct.unpack_from("<ii", content, place)
    moved = first + 1 if first + 1 < second else first - 1
    return content[:place] + struct.pack("<i", moved) + content[place + 4 :]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_is_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    change, message = HOSTILE[name]
    with pytest.raises(BundleError, match=message):
        verify(rebuilt(bundle, tmp_path / "b.pyz", change))


def test_files_that_the_manifest_does_not_list_are_refused(bundle: Path, tmp_path: Path) -> None:
    for change in (lambda f: f.update({"extra.py": b"x"}), lambda f: f.pop("sparsegen/errors.py")):
        with pytest.raises(BundleError, match="not those of its manifest"):
            verify(rebuilt(bundle, tmp_path / "b.pyz", change, mend=False))


def test_a_file_twice_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.pyz"
    path.write_bytes(bundle.read_bytes())
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(JOB, b"{}")
    with pytest.raises(BundleError, match="twice"):
        verify(path)


def test_bombs_are_not_unpacked(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a manifest of zeros, nor a file that is larger than the manifest says, nor one that says so."""
    zeros = b"\0" * (40 << 20)
    bomb = tmp_path / "bomb.pyz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, zeros)
    with pytest.raises(BundleError, match="larger than it may be"):
        verify(bomb)
    small = rebuilt(bundle, tmp_path / "b.pyz", lambda f: f.update({JOB: zeros}), mend=False)
    with pytest.raises(BundleError), open_bundle(small) as opened:
        _ = opened.job
    honest = rebuilt(bundle, tmp_path / "c.pyz", lambda f: f.update({JOB: zeros * 2}))
    with pytest.raises(BundleError, match="at most"), open_bundle(honest) as opened:
        _ = opened.job
    files = {f"f{i}": {"bytes": 2**33, "sha256": "0" * 64} for i in range(3)}
    total = tmp_path / "d.pyz"
    with zipfile.ZipFile(total, "w") as archive:
        archive.writestr(MANIFEST, json.dumps({"format": "sparsegen-bundle", "version": 1, "files": files}))
    with pytest.raises(BundleError, match=r"24\.0 GiB unpacked"):
        verify(total)


CAP = 64 * 2**10  # KiB that it may take to refuse a bundle
REFUSE = """
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from sparsegen.errors import BundleError
from sparsegen.tuning.jobs.bundle import open_bundle
before = getrusage(RUSAGE_SELF).ru_maxrss
try:
    with open_bundle(Path(sys.argv[1])) as opened:
        opened.verify()
except BundleError as error:
    print(getrusage(RUSAGE_SELF).ru_maxrss - before, error)
"""


def _with_pattern_of_zeros(bundle: Path, path: Path, nbytes: int, change: Callable[[Any], None]) -> Path:
    """Makes a bundle whose first pattern unpacks to ``nbytes`` zeros, as its manifest says; a thousandth of it is
    stored.
    """
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    listed = json.loads(files.pop(MANIFEST))
    name = first_pattern(files)
    _edit(change)(files)
    del files[name]
    entries = {n: {"bytes": len(f), "sha256": hashlib.sha256(f).hexdigest()} for n, f in files.items()}
    entries[name] = {"bytes": nbytes, "sha256": "0" * 64}
    files[MANIFEST] = json.dumps(listed | {"files": entries}).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(name, "w", force_zip64=True) as file:
            for _ in range(nbytes >> 20):
                file.write(bytes(2**20))
        for n, content in files.items():
            archive.writestr(n, content)
    return path


@pytest.mark.parametrize(
    ("mebibytes", "is_of_job", "message"),
    [
        (128, False, "as many nonzeros"),
        (512, False, "more than a bundle of this size"),
        (512, True, "more than a bundle of this size"),
    ],
)
def test_a_pattern_that_unpacks_to_much_is_refused_by_its_size(
    bundle: Path, tmp_path: Path, mebibytes: int, is_of_job: bool, message: str
) -> None:
    nbytes = mebibytes << 20

    def change(document: Any) -> None:
        features = document["tasks"][0]["workload"]["features"]
        if is_of_job:
            features["nnz"] = nbytes // 4 - features["m"] - 1

    path = _with_pattern_of_zeros(bundle, tmp_path / "b.pyz", nbytes, change)
    told = subprocess.run(
        [sys.executable, "-c", REFUSE, str(path)], capture_output=True, text=True, check=False
    )
    assert message in told.stdout, told.stderr
    assert int(told.stdout.split()[0]) < CAP


def test_sizes_that_the_directory_denies_are_damage(bundle: Path, tmp_path: Path) -> None:
    """A file that is larger than the manifest says is not read to find that out."""
    path = rebuilt(bundle, tmp_path / "b.pyz", lambda f: f.update({JOB: f[JOB] + b" "}), mend=False)
    with pytest.raises(BundleError, match=r"job\.json is damaged"), open_bundle(path):
        pass


def test_a_matrix_is_held_against_this_machine_s_memory(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 1000)
    with pytest.raises(BundleError, match="what this machine has left"), open_bundle(bundle) as opened:
        opened.matrix(0)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "empty", "w"):
        pass
    for path, message in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "no file"),
        (tmp_path / "text", "no bundle"),
        (tmp_path / "empty", "no manifest.json"),
    ):
        with pytest.raises(BundleError, match=message):
            verify(path)


def test_targets() -> None:
    known = MemoryLayer([], [])
    assert find_target("sm_90", known).shared_memory_per_block == 232448
    assert find_target("emulator", known).backend == "emulator"
    with pytest.raises(ConfigError, match="there are sm_80, sm_86"):
        find_target("sm_91", known)


def test_a_workload_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = job_samples.wanted()[1:] * 2
    monkeypatch.setattr(job_samples, "wanted", lambda: twice)
    with pytest.raises(ConfigError, match="asked for twice"):
        sources_alone(tmp_path / "b.pyz", monkeypatch)


@pytest.mark.parametrize("budget", ["-1", "0", "nan", "inf", "soon"])
def test_a_budget_is_a_number_of_seconds(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["b.pyz", "run", "--budget", budget])
    assert ended.value.code == 2
    assert f"argument --budget: {budget!r} is no number of seconds above 0" in capsys.readouterr().err


def test_a_bundles_errors_are_told_as_all_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([str(tmp_path / "none.pyz"), "info"]) == BundleError.exit_code
    error, remedy = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and "none.pyz" in error
    assert remedy == "help: docs/errors.md#bundleerror"
