"""Readers of jobs, of their results and of bundles, whatever a file holds."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import job_samples
import pytest
from fuzz_mutations import damaged_bytes, damaged_json
from fuzz_report import Fuzz

from sparsegen.errors import BundleError
from sparsegen.tuning.jobs import job
from sparsegen.tuning.jobs.bundle import JOB, MANIFEST, Bundle, open_bundle
from sparsegen.tuning.jobs.results import read_result


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
