"""A PostgreSQL server of the tests' own, from the binaries that are installed: started, asked, and gone again."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STANDARD_PLACES = Path("/usr/lib/postgresql")  # of Debian and Ubuntu, which put none on PATH
START_SECONDS = 120
UNPRIVILEGED = ("postgres", "nobody")  # whom root lets run it: PostgreSQL refuses to run as root


class UnavailableError(Exception):
    """There can be no server here; the message says why."""


def folder_of_binaries() -> Path:
    """
    Raises:
        UnavailableError: PostgreSQL is not installed.
    """
    found = shutil.which("initdb")
    if found and shutil.which("pg_ctl"):
        return Path(found).parent
    versions = [p for p in STANDARD_PLACES.glob("*/bin") if (p / "initdb").is_file()]
    if not versions:
        raise UnavailableError("PostgreSQL is not installed (apt install postgresql)")
    return max(versions, key=lambda p: [int(n) for n in re.findall(r"\d+", p.parent.name)])


def _user() -> str | None:
    """Returns the user to run the server as; None for the one who runs the tests."""
    if os.geteuid() != 0:
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in UNPRIVILEGED:
        if name in known:
            return name
    raise UnavailableError(f"PostgreSQL refuses to run as root, and there is no user {UNPRIVILEGED[0]}")


class Server:
    """A server with an empty database; `running` makes one.

    Attributes:
        url: of the database.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._data, self._log = folder, folder / "data", folder / "log"
        self._binaries, self._user = folder_of_binaries(), _user()
        password = secrets.token_hex(16)
        (folder / "password").write_text(password)
        if self._user is not None:
            for path in (folder, folder / "password"):
                shutil.chown(path, self._user)
        self._call(
            "initdb", "--username", "test", "--pwfile", str(folder / "password"), "--auth", "scram-sha-256",
            "--encoding", "UTF8", "--no-sync",
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.url = f"postgresql://test:{password}@127.0.0.1:{self._port}/postgres"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self._port} -h 127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._call(
            "pg_ctl", "--wait", "--timeout", str(START_SECONDS), "--log", str(self._log), "--options", options,
            "start",
        )  # fmt: skip

    def stop(self) -> None:
        """End it at once, as a power cut would: what is not committed is lost, and the next start recovers."""
        self._call("pg_ctl", "--wait", "--mode", "immediate", "stop")

    def kill(self) -> None:
        """Kill the process that all others of the server belong to, as a kernel without memory would."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + START_SECONDS
        while self._has_processes() and time.monotonic() < deadline:  # they end when they notice
            time.sleep(0.05)
        # Where nobody collects it, the dead process keeps its number, and a new server would take it for alive.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _has_processes(self) -> bool:
        """True if any process still has the data open: no other server could be started on it."""
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                with contextlib.suppress(OSError):
                    if (process / "cwd").readlink() == self._data and (process / "cmdline").read_bytes():
                        return True
        return False

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), "--pgdata", str(self._data), *arguments]
        calls = self._folder / "calls"
        with calls.open("ab") as output:  # no pipe: the server would keep it open
            done = subprocess.run(
                command,
                user=self._user,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        if done.returncode != 0:
            said = "".join(p.read_text(errors="replace") for p in (calls, self._log) if p.exists())
            raise UnavailableError(f"{program} ended with status {done.returncode}: {said[-2000:]}")


@contextmanager
def running() -> Iterator[Server]:
    """A fresh server, which is gone after the block.

    Raises:
        UnavailableError: it cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="sparsegen-postgres-"))
    try:
        server = Server(folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_or_skip() -> Iterator[Server]:
    """`running` for a test that stops and kills its server; the test is skipped where there can be none."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: make test-postgres")
    with contextlib.ExitStack() as started:
        try:
            server = started.enter_context(running())
        except UnavailableError as error:
            pytest.skip(str(error))
        yield server
