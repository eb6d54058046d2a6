"""Compile servers: answers, errors, hangs and crashes, with stand-ins for the compiler."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from patience import LONG, is_running, wait_until

from sparsegen.backends.cuda.compile_servers import CompileServers
from sparsegen.backends.cuda.nvrtc import Compilation, Installation, Source
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.system.child import answer, requests

NOWHERE = Installation(Path("/nowhere/libnvrtc.so.13"), Path("/nowhere/libnvrtc-builtins.so.13.0"), (13, 0))


def serve(connection: Connection) -> None:
    """Does what the source says, and answers with the server's process."""
    for _, source in requests(connection):
        if source is None:
            continue
        match source.text.split():
            case ["hang"]:
                time.sleep(3600)
            case ["crash"]:
                os.abort()
            case ["sleep", seconds]:
                time.sleep(float(seconds))
        answer(connection, lambda text=source.text: compiled(text))


def compiled(text: str) -> Compilation:
    if text == "error":
        raise CompileError("it failed", log="kernel.cu(3): error: nonsense")
    return Compilation(str(os.getpid()).encode(), text)


@pytest.fixture
def servers() -> Iterator[CompileServers]:
    pool = CompileServers(NOWHERE, "test_compile_servers:serve")
    yield pool
    pool.close()


def ask(servers: CompileServers, text: str, timeout: float = LONG) -> Compilation:
    return servers.compile(Source(text, "kernel.cu", ()), timeout=timeout)


def pid(servers: CompileServers, text: str = "int x;") -> int:
    return int(ask(servers, text).image)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_after_the_other_takes_one_server(servers: CompileServers) -> None:
    assert ask(servers, "int x;").log == "int x;"
    assert len({pid(servers) for _ in range(5)}) == 1


def test_servers_started_ahead_are_taken_first(servers: CompileServers) -> None:
    servers.start(2)
    started = {server.pid for server, _ in servers._idle}
    servers.start(2)
    assert len(started) == 2 == len(servers._idle), "there are enough"
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda _: pid(servers, "sleep 0.3"), range(2))) == started


def test_two_threads_take_two_servers(servers: CompileServers) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = set(pool.map(lambda _: pid(servers, "sleep 0.3"), range(2)))
        again = set(pool.map(lambda _: pid(servers, "sleep 0.3"), range(4)))
    assert len(first) == 2 and again == first and os.getpid() not in first


def test_a_source_larger_than_the_socket(servers: CompileServers) -> None:
    text = "x" * 3_000_000
    assert ask(servers, text).log == text


def test_an_error_in_the_source_keeps_the_server(servers: CompileServers) -> None:
    before = pid(servers)
    with pytest.raises(CompileError, match="it failed") as caught:
        ask(servers, "error")
    assert caught.value.log == "kernel.cu(3): error: nonsense"
    assert pid(servers) == before


def test_a_server_that_hangs_is_replaced(servers: CompileServers) -> None:
    before = pid(servers)
    with pytest.raises(CompileError, match=r"did not end within 0\.2 s"):
        ask(servers, "hang", timeout=0.2)
    assert not is_alive(before)
    assert pid(servers) != before


def test_a_server_that_hangs_before_it_reads(servers: CompileServers) -> None:
    """Its socket is full, and the time limit holds all the same."""
    os.kill(pid(servers), signal.SIGSTOP)
    with pytest.raises(CompileError, match="did not end"):
        ask(servers, "x" * 3_000_000, timeout=0.3)
    assert ask(servers, "int x;").log == "int x;"


def test_a_compiler_that_crashes_is_replaced(servers: CompileServers) -> None:
    before = pid(servers)
    with pytest.raises(CompileError, match=r"crashed.*SIGABRT"):
        ask(servers, "crash")
    assert pid(servers) != before


def test_a_server_killed_while_idle_is_nobodys_error(servers: CompileServers) -> None:
    before = pid(servers)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not is_running(before))
    assert pid(servers) != before


def test_servers_without_work_end() -> None:
    pool = CompileServers(NOWHERE, "test_compile_servers:serve", idle_seconds=0.2)
    before = pid(pool)
    wait_until(lambda: not is_running(before))
    assert pid(pool) != before
    pool.close()


def test_a_forked_child_has_servers_of_its_own(servers: CompileServers) -> None:
    before = pid(servers)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(pid(servers)).encode())
            servers.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 32)) != before
    assert pid(servers) == before


def test_a_library_that_does_not_load_is_not_the_sources_fault() -> None:
    pool = CompileServers(NOWHERE)
    with pytest.raises(
        DeviceUnavailableError, match=r"libnvrtc\.so\.13 does not load.*SPARSEGEN_COMPILER=nvcc"
    ):
        ask(pool, "int x;")
    pool.close()
