"""Compile servers: child processes with a compiler in them, NVRTC or PyCUDA's, as many as compile at once.

A server takes 0.06 s to start, a tenth of what one compile takes with nvcc, so that even a single compile is worth one.
It keeps some 25 MB to itself, and so ends when it has had nothing to do for a while.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from functools import cache

from sparsegen.backends.compiler_process import trouble
from sparsegen.backends.cuda.nvrtc import Compilation, Installation, Source
from sparsegen.backends.cuda.pycuda_compiler import NvccOfPycuda
from sparsegen.errors import CompileError, MachineError
from sparsegen.system.child import ChildDiedError, ChildProcess, ChildTimeoutError

IDLE_SECONDS = 30.0
NVRTC_SERVES = "sparsegen.backends.cuda.nvrtc:serve"


class CompileServers:
    """A pool that grows with the compiles under way. Safe to use from many threads.

    Args:
        installation: the compiler that the servers load; can be pickled.
        target: the function of a `Connection` that serves, as `ChildProcess` takes it.
        compiler: its name, for messages.
        idle_seconds: after how long without work a server ends.
    """

    def __init__(
        self,
        installation: Installation | NvccOfPycuda,
        target: str = NVRTC_SERVES,
        compiler: str = "NVRTC",
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._installation, self._target, self._compiler = installation, target, compiler
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        # Each with the time since when it is idle; the last one takes the next compile.
        self._idle: list[tuple[ChildProcess, float]] = []
        self._has_timer = False
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def start(self, count: int) -> None:
        """Have at least ``count`` idle servers, and let them load the compiler in the background."""
        with self._lock:
            missing = count - len(self._idle)
        if isinstance(self._installation, Installation):
            self._installation.read_ahead()
        for _ in range(missing):
            server = ChildProcess(self._target)
            server.send_in_background((self._installation, None))
            self._put_back(server)

    def compile(self, source: Source, *, timeout: float) -> Compilation:
        """Compile in a server that has nothing else to do; one that fails is replaced by the next compile.

        Raises:
            CompileError: with the compiler's log; also after ``timeout`` seconds, and when the compiler crashed.
            MachineError: the machine is to blame, and the source may be right.
            DeviceUnavailableError: the library does not load.
        """
        server = self._take()
        healthy = False
        try:
            server.send_in_background((self._installation, source))
            compilation = server.receive(timeout)
            healthy = True
        except ChildTimeoutError:
            raise CompileError(f"{self._compiler} did not end within {timeout:g} s") from None
        except ChildDiedError as error:
            if error.was_killed:
                raise MachineError(
                    f"{self._compiler} was killed: {error}; run the command again, which goes on"
                ) from None
            raise CompileError(f"{self._compiler} crashed: {error}") from None
        except CompileError as error:
            healthy = True
            if why := trouble(error.log):
                raise MachineError(f"{self._compiler} failed, and not by what it compiled: {why}") from error
            raise
        finally:
            if healthy:
                self._put_back(server)
            else:  # killed; also on Ctrl-C, as its answer would be taken for the next one's
                server.close()
        assert isinstance(compilation, Compilation)
        return compilation

    def close(self) -> None:
        """End the servers that have nothing to do; the next compile starts new ones."""
        self._end_idle(0.0)

    def _take(self) -> ChildProcess:
        with self._lock:
            while self._idle:
                server, _ = self._idle.pop()
                if not server.has_answer():  # nothing was asked: it died
                    return server
                server.close()
        return ChildProcess(self._target)

    def _put_back(self, server: ChildProcess) -> None:
        with self._lock:
            self._idle.append((server, time.monotonic()))
            if not self._has_timer:
                self._start_timer()

    def _start_timer(self) -> None:
        timer = threading.Timer(self._idle_seconds, self._on_timer)
        timer.daemon = True
        timer.start()
        self._has_timer = True

    def _on_timer(self) -> None:
        self._end_idle(self._idle_seconds)
        with self._lock:
            self._has_timer = False
            if self._idle:
                self._start_timer()

    def _end_idle(self, seconds: float) -> None:
        now = time.monotonic()
        with self._lock:
            ended = [server for server, since in self._idle if now - since >= seconds]
            self._idle = [(server, since) for server, since in self._idle if now - since < seconds]
        for server in ended:
            server.end()
        for server in ended:  # they end side by side
            server.close()

    def _forget(self) -> None:
        """A forked child must neither talk to its parent's servers nor find the lock taken."""
        self._lock = threading.Lock()
        self._idle = []
        self._has_timer = False


@cache
def compile_servers(
    installation: Installation | NvccOfPycuda, target: str = NVRTC_SERVES, compiler: str = "NVRTC"
) -> CompileServers:
    """The process's servers of a compiler; all toolchains share them."""
    return CompileServers(installation, target, compiler)
