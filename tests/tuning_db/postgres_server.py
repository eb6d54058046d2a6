"""A PostgreSQL server of the tests' own, from the binaries that are installed: started, asked, and gone again."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """Whom to run the server as; None for whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in UNPRIVILEGED:
        if name in known:
            return name
    raise UnavailableError(f"PostgreSQL refuses to run as root, and there is no user {UNPRIVILEGED[0]}")


@contextmanager
def running() -> Iterator[str]:
    """The URL of an empty database on a fresh server.

    Raises:
        UnavailableError: it cannot be started.
    """
    binaries, user = folder_of_binaries(), _user()
    folder = Path(tempfile.mkdtemp(prefix="sparsegen-postgres-"))
    data, log, password = folder / "data", folder / "log", secrets.token_hex(16)
    (folder / "password").write_text(password)
    if user is not None:
        for path in (folder, folder / "password"):
            shutil.chown(path, user)

    def call(program: str, *arguments: str) -> None:
        command = [str(binaries / program), "--pgdata", str(data), *arguments]
        with (folder / "calls").open("ab") as output:  # no pipe: the server would keep it open
            done = subprocess.run(
                command, user=user, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if done.returncode != 0:
            said = "".join(p.read_text(errors="replace") for p in (folder / "calls", log) if p.exists())
            raise UnavailableError(f"{program} ended with status {done.returncode}: {said[-2000:]}")

    try:
        call(
            "initdb", "--username", "test", "--pwfile", str(folder / "password"), "--auth", "scram-sha-256",
            "--encoding", "UTF8", "--no-sync",
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        call(
            "pg_ctl",
            "--wait",
            "--timeout",
            str(START_SECONDS),
            "--log",
            str(log),
            "--options",
            options,
            "start",
        )
        try:
            yield f"postgresql://test:{password}@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "--wait", "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
