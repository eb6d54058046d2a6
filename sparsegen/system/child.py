"""A child process that answers messages, and that neither hangs its parent nor outlives it.

Not `multiprocessing`: its spawned children import the caller's main module, which breaks scripts without an
``if __name__ == "__main__"`` guard, and share the terminal's Ctrl-C. A child here is a fresh interpreter in
a session of its own, on one end of a socket.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import format_exception
from typing import Any

from sparsegen.errors import MachineError, SparsegenError
from sparsegen.settings import absolute

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
PATIENCE = 20.0  # seconds that a killed child is waited for
LOG_TAIL = 2000  # characters of a dead child's stderr that go into the reason
HOME = str(Path(__file__).parents[2])  # the folder that this sparsegen was imported from


# Signals for a program's own faults. Any other signal comes from outside: from the kernel when memory runs out,
# a batch system when time is up, a person.
FAULTS = frozenset(
    (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)


def is_from_outside(number: int) -> bool:
    """True if a signal that ended a process was sent by others, and not for its own faults."""
    return number not in FAULTS


class ChildDiedError(SparsegenError):
    """The child ended; the message holds its exit status and the end of what it wrote to stderr.

    Attributes:
        was_killed: true if a signal ended it that was not for its own faults.
    """

    def __init__(self, message: str, *, was_killed: bool = False) -> None:
        self.was_killed = was_killed
        super().__init__(message)


class ChildTimeoutError(SparsegenError):
    """The child did not answer in time."""


class Interrupted(SparsegenError):  # noqa: N818 - a request, not an error
    """The person in front of the program asked it to stop."""


class ChildTraceback(Exception):  # noqa: N818 - no error of its own, but the cause of one
    """A traceback in a child, as text. As the cause of the parent's error it is printed with the parent's own."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to a message that raised.

    Attributes:
        traceback: traceback in the child, as Python prints it.
    """

    error: SparsegenError
    traceback: str

    @classmethod
    def of(cls, error: Exception, message: str | None = None) -> Failed:
        """One of sparsegen's own errors as it is, if it can be pickled; of another its type and its message.

        Args:
            message: message in place of the error's own.
        """
        traceback = "".join(format_exception(error))
        if message is None and isinstance(error, SparsegenError) and _survives_pickling(error):
            return cls(error, traceback)
        return cls(SparsegenError(message or f"{type(error).__name__}: {error}"), traceback)


def _survives_pickling(error: SparsegenError) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the code of its attributes raises
        return False
    return True


class ChildProcess:
    """Runs ``target``, a function of one `Connection` named as ``"module:function"``, in a fresh interpreter.

    Args:
        arguments: the function's arguments after the connection.
        stop: an event that, once set, ends the waiting of `receive`.

    Raises:
        MachineError: no process can be started.
    """

    def __init__(self, target: str, *arguments: int, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self._sending, self._closing = threading.Lock(), threading.Lock()
        try:
            self._start(target, arguments)
        except OSError as error:
            raise MachineError(
                f"no worker process can be started: {error.strerror or error}; it needs memory and a folder for "
                f"temporary files, which TMPDIR names"
            ) from error

    def _start(self, target: str, arguments: tuple[int, ...]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        ours, theirs = socket.socketpair()
        given = (theirs.fileno(), target, *arguments)
        command = f"from sparsegen.system.child import main; main{given!r}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_search_path())},
            stdin=subprocess.PIPE,  # never written to: its end tells the child that we are gone
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Sends a message; raises ChildDiedError if the child has ended."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            raise self._death() from None

    def send_in_background(self, message: object) -> None:
        """`send` for what does not fit into the socket at once: it takes until the child reads it.

        That the child died meanwhile shows in the next `receive`.
        """

        def send() -> None:
            # TypeError: what a Connection that is closed between two writes raises.
            with contextlib.suppress(ChildDiedError, OSError, ValueError, TypeError):
                self.send(message)

        threading.Thread(target=send, daemon=True).start()

    def receive(self, timeout: float) -> Any:
        """The next answer.

        Raises:
            ChildTimeoutError: none came within ``timeout`` seconds; the child still runs.
            ChildDiedError: the child ended.
            Interrupted: ``stop`` was set meanwhile.
            SparsegenError: any error of the child, with its ``child_traceback``; or its answer could not be read.
        """
        deadline = time.monotonic() + timeout
        try:
            while not self._connection.poll(max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))):
                if self._stop.is_set():
                    raise Interrupted("interrupted")
                if time.monotonic() >= deadline:
                    raise ChildTimeoutError(f"no answer within {timeout:g} s")
            received = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._death() from None
        try:
            answer = pickle.loads(received)
        except Exception as error:
            raise SparsegenError(f"an answer could not be read: {type(error).__name__}: {error}") from error
        if isinstance(answer, Failed):
            log.debug("a child process raised an error\n%s", answer.traceback)
            answer.error.child_traceback = answer.traceback
            raise answer.error from ChildTraceback(answer.traceback)
        return answer

    def has_answer(self) -> bool:
        """True if `receive` would return at once (or raise that the child died)."""
        try:
            return self._connection.poll(0)
        except OSError:
            return True

    def end(self) -> None:
        """Kill the child and all that it started without waiting until they are gone; `close` comes later."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child and all that it started; safe to call twice, and from two threads."""
        with self._closing:
            self._connection.close()
        self._kill()
        self._log.close()

    def _kill(self) -> None:
        self.end()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            log.warning(
                "worker process %d was killed %g s ago and has not ended: the driver may wait for a kernel that hangs, "
                "and other work on its device with it",
                *(self._process.pid, PATIENCE),
            )
        if self._process.stdin:
            self._process.stdin.close()

    def _death(self) -> ChildDiedError:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:  # it closed its end and goes on: of no use any more
            self._kill()
            ended = self._process.poll()
            if ended is None:
                return ChildDiedError("the worker process was killed and has not ended", was_killed=False)
            status = ended
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        tail = ""
        if not self._log.closed:
            self._log.seek(0)
            written = self._log.read().decode(errors="replace").strip()
            if len(written) > LOG_TAIL:
                log.debug("the worker process ended %s; all that it wrote to stderr\n%s", how, written)
            tail = written[-LOG_TAIL:]
        message = f"the worker process ended {how}" + (f": {tail}" if tail else "")
        return ChildDiedError(message, was_killed=status < 0 and is_from_outside(-status))


def _search_path() -> list[str]:
    """The module search path of this process for a child, whose first entry is not the working folder.

    An interactive Python has "" there, which means the working folder of the moment. A sparsegen found by way of it is
    the child's too, wherever this process has gone since.
    """
    paths = [path or str(absolute(Path())) for path in sys.path]
    if HOME not in paths:
        paths.insert(sys.path.index("") if "" in sys.path else len(paths), HOME)
    return paths


def main(descriptor: int, target: str, *arguments: int) -> None:
    """Entry point of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is done with us
        named(target)(connection, *arguments)


def named(target: str) -> Any:
    """The function or class that ``"module:name"`` stands for, as messages name what a child is to open."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _die_with_parent() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def requests(connection: Connection) -> Iterator[Any]:
    """The parent's messages, until it closes its end; one that cannot be read is answered as failed."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        except Exception as error:
            connection.send(Failed.of(error, f"a request could not be read: {error}"))
            continue
        yield message


def answer(connection: Connection, work: Callable[[], Any]) -> bool:
    """Send what ``work`` returns, or how it failed; whether it went well."""
    try:
        connection.send(work())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        connection.send(Failed.of(error))
        return False
    return True
