"""Makes a job's bundle: chooses candidates, compiles them where a compiler for the target is here, packs all of it."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

import numpy as np

from sparsegen import backends, kernels
from sparsegen.backends import plain
from sparsegen.backends.executor import CompiledKernel, Toolchain
from sparsegen.backends.plain import plain_source
from sparsegen.backends.precompiled import LIST, Facts, listing, source_digest
from sparsegen.errors import BundleError, CompileError, ConfigError, DeviceUnavailableError
from sparsegen.kernels import family_of
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.render import render
from sparsegen.system.integers import ceil_div
from sparsegen.system.publish import publish_file, reported, require_place
from sparsegen.tuning.jobs import bootstrap
from sparsegen.tuning.jobs.bundle import (
    FORMAT,
    INDEX,
    JOB,
    KERNELS,
    MANIFEST,
    VALUE,
    VERSION,
    kernel_name,
    pattern_name,
    source_name,
)
from sparsegen.tuning.jobs.job import Candidate, Job, Task, dump
from sparsegen.tuning.loop.pipeline import CompileAhead
from sparsegen.tuning.search.first_configs import first_to_try
from sparsegen.tuning.search.listing import space_of
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Workload

log = logging.getLogger(__name__)

CANDIDATES = 60  # candidates of a workload
SECONDS_OF_ONE = 30.0  # time for a workload
# Parts of this package that no bundle needs, by their paths.
LEFT_AT_HOME = (
    "sparsegen/attention/",
    "sparsegen/backends/emulator/sanitized.py",
    "sparsegen/bench/",
    "sparsegen/cli/",
    "sparsegen/integrations/",
    "sparsegen/networks/",
    "sparsegen/report/",
    "sparsegen/templates/",
    "sparsegen/testing/",
    "sparsegen/tuning_db/migrations/",
    "sparsegen/tuning_db/seeds/",
)
TAKEN_OF_THE_COMMAND_LINE = (
    "__init__.py",
    "bundle.py",
    "parts/__init__.py",
    "parts/progress_lines.py",
    "parts/streams.py",
)
SUFFIXES = (".py", ".pyi", ".cu", ".cuh")
EPOCH = (2020, 1, 1, 0, 0, 0)  # time of all files: equal jobs make equal archives


@dataclass(frozen=True)
class Wanted:
    """A workload to export.

    Attributes:
        with_values: include its values: weights can be secret.
    """

    matrix: CsrMatrix
    problem: Problem
    with_values: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export.

    Attributes:
        digest: the job's digest, by which results name it.
        sha256: the file's hash, to compare it after a transfer.
        failed: candidates that did not compile and were left out.
        sources_alone: the reason if nothing was compiled; else empty.
    """

    job: Job
    digest: str
    sha256: str
    nbytes: int
    failed: int
    sources_alone: str


Report = Callable[[int, int], None]  # candidates compiled, of how many


def export_job(
    wanted: Sequence[Wanted],
    path: Path,
    *,
    target: Device,
    known: Layer,
    candidates: int = CANDIDATES,
    families: Sequence[str] | None = None,
    seconds: float | None = None,
    report: Report = lambda done, of: None,
) -> Exported:
    """Write the bundle of a job.

    Args:
        target: the device to choose and compile for.
        known: measurements, by which the first candidates are chosen, beside the packaged ones.
        candidates: number for each workload.
        families: only these; by default all that compute the operator.
        seconds: time for the whole job; by default half a minute for each workload.

    Raises:
        ConfigError: no workload, or the same one twice.
        NoVariantError: no config of a workload is valid on the target.
        DeviceUnavailableError: the emulator's compiler is missing.
        OutputError: the file cannot be written.
    """
    if not wanted:
        raise ConfigError("a job needs at least one workload")
    require_place(path)
    compiler = _Compiler.of(target)
    contents: dict[str, bytes] = {}
    tasks: list[Task] = []
    chosen = [_choose(w, target, known, candidates, families) for w in wanted]
    of, done = sum(map(len, chosen)), 0
    for w, configs in zip(wanted, chosen, strict=True):
        workload = Workload.of(w.problem, w.matrix)
        if any(task.workload == workload for task in tasks):
            raise ConfigError(f"{w.problem} on this matrix is asked for twice")
        found = []
        for config, source in compiler.compiled(configs, w.problem):
            done += 1
            report(done, of)
            if source is not None:
                digest = source_digest(source)
                contents[source_name(digest)] = source.encode()
                found.append(Candidate(config, digest))
        if not found:
            raise BundleError(f"not one candidate compiles for {w.problem}; see the log with -v")
        has_values = w.with_values and w.problem.has_pattern
        pattern = ""
        if w.problem.has_pattern:
            content = _pattern(w.matrix, with_values=has_values)
            pattern = hashlib.sha256(content).hexdigest()
            contents[pattern_name(pattern)] = content
        tasks.append(Task(workload, pattern, has_values, tuple(found)))
    contents |= compiler.contents()
    job = Job(
        target, compiler.fingerprint, seconds or SECONDS_OF_ONE * len(tasks), datetime.now(UTC), tuple(tasks)
    )
    contents[JOB] = dump(job).encode()
    contents |= dict(_package())
    digest, archive = _write(contents, path)
    return Exported(
        job,
        digest,
        archive,
        path.stat().st_size,
        of - sum(len(t.candidates) for t in tasks),
        compiler.missing,
    )


def _choose(w: Wanted, target: Device, known: Layer, count: int, names: Sequence[str] | None) -> list[Config]:
    """Chooses candidates: those that a search would begin with, then configs from all over each family's space in
    turn.
    """
    workload = Workload.of(w.problem, w.matrix)
    named: list[AnyFamily] = (
        kernels.families_of(w.problem.operator)
        if names is None
        else [kernels.require_family(name, w.problem) for name in names]
    )
    named = [family for family in named if kernels.is_own(family)]
    if names is not None and len(named) < len(names):
        raise ConfigError("a bundle carries families of sparsegen's own alone; leave the others out")
    first = first_to_try(workload, target, known, named)
    space = space_of(workload, target, named, first)
    chosen = dict.fromkeys(c for c in first if c in set(space.candidates))
    rest = {
        f.name: [c for c in space.candidates if c.family_name == f.name and c not in chosen]
        for f in space.families
    }
    share = ceil_div(max(0, count - len(chosen)), max(1, len(rest)))
    spread = [_spread(configs, share) for configs in rest.values()]
    for turn in range(share):
        chosen |= dict.fromkeys(configs[turn] for configs in spread if turn < len(configs))
    return list(chosen)[:count]


def _spread(configs: list[Config], count: int) -> list[Config]:
    """Returns at most ``count`` of the configs, evenly spaced."""
    count = min(count, len(configs))
    return [configs[i * len(configs) // count] for i in range(count)]


@dataclass(frozen=True)
class _Compiler:
    """A toolchain for the target, or none, and what it compiled.

    Attributes:
        missing: why there is none.
    """

    toolchain: Toolchain | None
    made: dict[str, CompiledKernel]
    missing: str = ""

    @classmethod
    def of(cls, target: Device) -> _Compiler:
        try:
            toolchain = backends.toolchain(target)
            toolchain.make_ready()
            _ = toolchain.fingerprint
        except DeviceUnavailableError as error:
            if target.backend != "cuda":
                raise
            return cls(None, {}, str(error))
        return cls(toolchain, {})

    @property
    def fingerprint(self) -> str:
        return "" if self.toolchain is None else self.toolchain.fingerprint

    def compiled(self, configs: Sequence[Config], problem: Problem) -> Iterator[tuple[Config, str | None]]:
        """Each config with its source; None for one that does not compile."""
        if self.toolchain is None:
            for config in configs:
                yield config, render(family_of(config), problem, config)
            return
        with closing(CompileAhead(self.toolchain, problem)) as ahead:
            for config in configs:
                ahead.submit(config)
            while ahead.pending:
                done = ahead.next(1.0)
                if done is None:
                    continue
                if done.error is not None and not isinstance(done.error, CompileError):
                    raise done.error
                if done.variant is None or done.rendered is None:
                    log.warning("left out: %s", done.error)
                    yield done.candidate, None
                    continue
                source = done.rendered.source
                self.made[source_digest(source)] = done.variant.kernel
                yield done.candidate, source

    def contents(self) -> dict[str, bytes]:
        """The binaries, with those that clocks and verifiers need, and their list."""
        if self.toolchain is None:
            return {}
        if "cuda" in type(self.toolchain).__module__:
            self.made.update(_plain_kernels(self.toolchain))
        facts = {digest: Facts.of(kernel) for digest, kernel in self.made.items()}
        binaries = {kernel_name(digest): kernel.read() for digest, kernel in self.made.items()}
        return binaries | {f"{KERNELS}/{LIST}": listing(self.fingerprint, facts).encode()}


def _plain_kernels(toolchain: Toolchain) -> Mapping[str, CompiledKernel]:
    """Every file of plain kernels: a CUDA binary holds all entries of its source."""
    sources = [plain_source(f.name) for f in files(plain).iterdir() if f.name.endswith(".cu")]

    def compiled(source: str) -> CompiledKernel:
        return toolchain.compile("plain", "", source)

    with ThreadPoolExecutor() as pool:
        return dict(zip(map(source_digest, sources), pool.map(compiled, sources), strict=True))


def _pattern(matrix: CsrMatrix, *, with_values: bool) -> bytes:
    parts = [matrix.row_offsets.astype(INDEX), matrix.column_indices.astype(INDEX)]
    if with_values:
        parts.append(np.asarray(matrix.values, VALUE))
    return b"".join(part.tobytes() for part in parts)


def _package() -> Iterator[tuple[str, bytes]]:
    """The part of this package that a bundle runs, and what starts it."""
    yield "__main__.py", files(bootstrap.__package__).joinpath("bootstrap.py").read_bytes()
    parts = {
        "sparsegen": files("sparsegen"),
        "sparsegen/tuning_db": files("sparsegen.tuning_db"),
    }
    for name, folder in parts.items():
        yield from _files(name, folder)
    for name in TAKEN_OF_THE_COMMAND_LINE:
        yield f"sparsegen/cli/{name}", files("sparsegen.cli").joinpath(name).read_bytes()


def _files(above: str, folder: Traversable) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        name = f"{above}/{entry.name}"
        if f"{name}/".startswith(LEFT_AT_HOME) or name in LEFT_AT_HOME:
            continue
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(name, entry)
        elif entry.name.endswith(SUFFIXES):
            yield name, entry.read_bytes()


def _write(contents: Mapping[str, bytes], path: Path) -> tuple[str, str]:
    """The archive; the digests of its manifest and of the whole."""
    entries = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(contents.items())
    }
    manifest = json.dumps({"format": FORMAT, "version": VERSION, "files": entries}, indent=0).encode()
    with reported(path, "name another file with --out"), publish_file(path) as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in (("__main__.py", contents["__main__.py"]), (MANIFEST, manifest)):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
            for name in sorted(contents.keys() - {"__main__.py"}):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), contents[name], zipfile.ZIP_DEFLATED)
        out.seek(0)
        whole = hashlib.file_digest(cast(Any, out), "sha256").hexdigest()
    return hashlib.sha256(manifest).hexdigest(), whole
