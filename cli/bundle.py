"""The command line of a job's bundle, which runs where sparsegen is not installed: neither click nor rich is needed.

``python bundle.pyz info|verify|run``; `sparsegen.tuning.jobs.bootstrap` starts it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sparsegen import backends
from sparsegen.cli.parts.progress_lines import plain_lines
from sparsegen.cli.parts.streams import replace_unencodable
from sparsegen.errors import BundleError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.private import private_folder
from sparsegen.system.quantities import counted, size_text
from sparsegen.tuning.jobs.bundle import Bundle, open_bundle
from sparsegen.tuning.jobs.job import Job, Task
from sparsegen.tuning.jobs.results import ResultFile, begun
from sparsegen.tuning.jobs.runner import TaskOutcome, TaskState, require_fits, run_job
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.report import Progress

INTERRUPTED, NOT_FINISHED = 130, 75  # exit codes: of Ctrl-C, as shells expect; EX_TEMPFAIL: run it again


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the words say; the exit code."""
    replace_unencodable(sys.stdout)
    bundle, *words = sys.argv[1:] if arguments is None else arguments
    asked = parser(bundle).parse_args(words)
    logging.basicConfig(format="%(message)s", level=logging.INFO if asked.verbose else logging.WARNING)
    try:
        with open_bundle(Path(bundle)) as opened:
            return int(asked.do(opened, asked))
    except SparsegenError as error:
        print(f"error: {error}\nhelp: {error.help}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def parser(bundle: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python {Path(bundle).name}", description="Measure a job on this machine."
    )
    parser.set_defaults(verbose=False)
    commands = parser.add_subparsers(required=True, metavar="info|verify|run")
    for name, do, what in (
        ("info", _info, "Say what the bundle asks for."),
        ("verify", _verify, "Check every file of the bundle."),
        ("run", _run, "Measure, and write a result file; run again, it goes on where it was."),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.set_defaults(do=do)
        command.add_argument("--json", action="store_true", help="Print JSON for machines.")
        command.add_argument("--verbose", "-v", action="store_true", help="Say more.")
    command.add_argument(
        *("-o", "--output", "--out"),
        type=Path,
        metavar="FILE",
        help="The result file; default the bundle's name + .result.",
    )
    command.add_argument("--device", type=int, metavar="N", help="Which GPU, as CUDA counts them; default 0.")
    command.add_argument(
        "--budget", type=_seconds, metavar="SECONDS", help="Time for this run; default the job's."
    )
    return parser


def _seconds(text: str) -> float:
    """
    Raises:
        argparse.ArgumentTypeError: it is no finite number above 0.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


# --- info and verify ---------------------------------------------------------------------------------------


def _info(bundle: Bundle, asked: argparse.Namespace) -> int:
    job = bundle.job
    data = {
        "job": bundle.digest,
        "made_at": job.made_at.isoformat(),
        "made_by": f"sparsegen {job.version}",
        "backend": job.target.backend,
        "compute_capability": list(job.target.compute_capability),
        "compiled_by": job.compiler or None,
        "seconds": job.seconds,
        "tasks": [_task_data(task) for task in job.tasks],
    }
    count = sum(len(task.candidates) for task in job.tasks)
    lines = [
        f"job {bundle.digest[:24]}, made {job.made_at:%Y-%m-%d %H:%M} UTC by sparsegen {job.version}",
        f"for {_for(job)}; {'compiled beforehand' if job.compiler else 'compiled where it runs: that needs nvcc'}",
        f"{counted(len(job.tasks), 'workload')}, {count} candidates, {job.seconds:g} s",
        *(f"  {task.workload.problem}: {len(task.candidates)} candidates" for task in job.tasks),
    ]
    _say(asked, data, *lines)
    return 0


def _for(job: Job) -> str:
    major, minor = job.target.compute_capability
    return (
        "the emulator" if job.target.backend == "emulator" else f"GPUs of compute capability {major}.{minor}"
    )


def _task_data(task: Task) -> Json:
    return {
        "problem": task.workload.problem.named(),
        "fingerprint": task.workload.fingerprint,
        "nonzeros": task.workload.features.nnz,
        "has_values": task.has_values,
        "candidates": len(task.candidates),
    }


def _verify(bundle: Bundle, asked: argparse.Namespace) -> int:
    bundle.verify()
    total = sum(entry.size for entry in bundle.files.values())
    data = {"job": bundle.digest, "files": len(bundle.files), "bytes": total}
    _say(asked, data, f"{len(bundle.files)} files, {size_text(total)}: all are what the manifest says")
    return 0


# --- run ---------------------------------------------------------------------------------------------------


def _run(bundle: Bundle, asked: argparse.Namespace) -> int:
    out = asked.output or bundle.path.with_name(f"{bundle.path.name}.result")
    device = _device(bundle, asked.device)
    require_fits(bundle, device)
    stop = threading.Event()
    with _kernels(bundle), interruptible(stop):
        head = begun(bundle, device, backends.toolchain(device).fingerprint, _driver(device))
        with closing(ResultFile(out, bundle, head)) as results:
            outcomes = run_job(
                bundle,
                results,
                device,
                seconds=asked.budget or bundle.job.seconds,
                watch=_watch(bundle, asked),
                stop=stop,
            )
    return _finish(bundle, out, device, outcomes, asked, was_interrupted=stop.is_set())


def _device(bundle: Bundle, index: int | None) -> Device:
    if bundle.job.target.backend == "emulator":
        if index is not None:
            raise BundleError("this bundle runs on the emulator: drop --device")
        return backends.find_device("emulator")
    return backends.find_device(f"cuda:{index or 0}")


def _driver(device: Device) -> str:
    if device.backend != "cuda":
        return ""
    from sparsegen.backends.cuda import runtime

    return runtime.driver_version()


@contextmanager
def _kernels(bundle: Bundle) -> Iterator[None]:
    """Unpacks kernels that were compiled beforehand to a private folder, for as long as the block lasts."""
    folder = Settings.from_environment().kernels
    if folder is None:
        yield
        return
    private_folder(folder)
    _sweep(folder.parent)
    bundle.unpack_kernels(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def _sweep(own: Path) -> None:
    """Remove what killed runs left: each has a folder that its process's number ends."""
    for other in own.parent.iterdir():
        number = other.name.rpartition("-")[2]
        if other != own and number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(other, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _watch(bundle: Bundle, asked: argparse.Namespace) -> Any:
    count = len(bundle.job.tasks)

    @contextmanager
    def watch(task: Task, number: int) -> Iterator[Progress]:
        print(f"[{number + 1}/{count}] {task.workload.problem}", file=sys.stderr, flush=True)
        yield plain_lines(lambda line: print(line, file=sys.stderr, flush=True))

    return watch


def _finish(
    bundle: Bundle,
    out: Path,
    device: Device,
    outcomes: list[TaskOutcome],
    asked: argparse.Namespace,
    *,
    was_interrupted: bool,
) -> int:
    is_whole = all(o.state in (TaskState.MEASURED, TaskState.KNOWN) for o in outcomes)
    data = {
        "job": bundle.digest,
        "result": str(out),
        "device": device.key,
        "is_whole": is_whole,
        "tasks": [
            {**_task_data(o.task), "outcome": o.state, "tried": o.tried, "left_out": o.left_out}
            for o in outcomes
        ],
    }
    lines = [
        f"{o.task.workload.problem}: {o.state}, {o.tried} of {len(o.task.candidates)} tried"
        + (f", {o.left_out} not valid on this device" if o.left_out else "")
        for o in outcomes
    ]
    words = f"sparsegen db import {shlex.quote(out.name)} --bundle {shlex.quote(bundle.path.name)}"
    after = f"The result is in {out}. Where the bundle was made: {words}"
    again = "Not all is measured: the same command goes on from here."
    _say(asked, data, *lines, after, *(() if is_whole else (again,)))
    if was_interrupted:
        return INTERRUPTED
    return 0 if is_whole else NOT_FINISHED


def _say(asked: argparse.Namespace, data: Json, *lines: str) -> None:
    print(json.dumps(data, indent=2) if asked.json else "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
