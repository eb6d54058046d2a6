"""Runs a compiler, and tells a source that does not compile from a machine that cannot compile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from sparsegen.errors import CompileError, MachineError
from sparsegen.system.child import is_from_outside

# Messages of compilers, assemblers and linkers (in English, LC_ALL=C) when the machine fails them.
TROUBLES = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "Read-only file system",
    "Input/output error",
    "Stale file handle",
    "Cannot create temporary file",
    "Cannot allocate memory",
    "virtual memory exhausted",
    "out of memory",
    "Resource temporarily unavailable",
    "Too many open files",
    "Unsupported gpu architecture",  # nvcc, of GPUs that its toolkit does not know, or no longer
    "invalid value for --gpu-architecture",  # NVRTC, of the same
)
_KILLED = re.compile(r"(Killed|Terminated|Hangup|Interrupt|Quit) signal terminated program")  # g++'s words
_DIED = re.compile(r"died due to signal (\d+)")  # nvcc's


NICENESS = 5


def give_way() -> None:
    """Have this process leave the cores to those that search and measure, where there are too few for all."""
    os.nice(NICENESS)


def run_compiler(command: list[str], folder: Path, timeout: float) -> str:
    """Run in ``folder``; what it printed. The compiler's own children are killed with it.

    Raises:
        CompileError: it found errors, crashed, or did not end in time.
        MachineError: the machine is to blame, and the source may be right.
    """
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(f"{name} cannot be started: {error.strerror}") from error
    try:
        log, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CompileError(f"{name} did not end within {timeout:g} s") from None
    finally:
        if process.poll() is None:  # also on Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        why = trouble(log) or killed(process.returncode)
        if why:
            raise MachineError(
                f"{name} failed, and not by what it compiled: {why}; mend that and run "
                "the command again, which goes on where it was"
            )
        raise CompileError(f"{name} ended with status {process.returncode}", log=log.strip())
    return log


def trouble(log: str) -> str:
    """Returns the line of a compiler's output that reports trouble of the machine; empty if there is none."""
    for line in log.splitlines():
        if any(words in line for words in TROUBLES) or _KILLED.search(line):
            return line.strip()
        died = _DIED.search(line)
        if died and is_from_outside(int(died[1])):
            return line.strip()
    return ""


def killed(status: int) -> str:
    """Names the signal from outside that ended a process, by its exit status; empty if none did."""
    return (
        f"it was ended by {signal.Signals(-status).name}" if status < 0 and is_from_outside(-status) else ""
    )
