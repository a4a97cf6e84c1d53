"""A real PostgreSQL server of the tests' own: a scratch cluster on a free loopback port."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg

_numbers = itertools.count(1)


def binaries() -> Path | None:
    """Return the directory of the server's programs; None where there is no server here."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parts[-2])
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    return next(
        (path for path in (*candidates, *versions[::-1]) if (path / "pg_ctl").exists()), None
    )


class Server:
    """One cluster; PostgreSQL refuses to run as root, so root starts it as another user."""

    def __init__(self) -> None:
        found = binaries()
        assert found is not None
        self._bin = found
        self._user = None if os.getuid() else pwd.getpwnam("nobody")
        self.directory = Path(tempfile.mkdtemp(prefix="gymckpt-postgresql-"))
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        data = str(self.directory / "data")
        self._run("initdb", "-D", data, "-U", "gymckpt", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        user = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}
        subprocess.run(
            [str(self._bin / program), *arguments],
            check=True,
            cwd=self.directory,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            extra_groups=[] if user else None,
            **user,
        )

    def _control(self, action: str, *arguments: str) -> None:
        data, log = str(self.directory / "data"), str(self.directory / "log")
        self._run("pg_ctl", "-D", data, "-l", log, "-w", *arguments, action)

    def start(self, *settings: str) -> None:
        """Start the server, and wait until it answers."""
        options = [f"-p {self.port}", "-h 127.0.0.1", "-k ''", "-F", *(f"-c {s}" for s in settings)]
        self._control("start", "-o", " ".join(options))

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` is a crash."""
        self._control("stop", "-m", mode)

    def close(self) -> None:
        """Stop the server and remove all of it."""
        self.stop()
        shutil.rmtree(self.directory)

    def url(self, schema: str) -> str:
        """Return what opens a schema."""
        place = f"gymckpt@127.0.0.1:{self.port}/postgres"
        return f"postgresql+psycopg://{place}?options=-csearch_path%3D{schema}"

    def execute(self, statement: str) -> None:
        """Run one statement outside any transaction."""
        where = f"host=127.0.0.1 port={self.port} user=gymckpt dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(statement.encode())

    def new_schema(self) -> str:
        """Make an empty schema and return its name."""
        name = f"journal_{next(_numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return name
