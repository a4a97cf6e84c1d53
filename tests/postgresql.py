"""A real PostgreSQL server of the tests' own: a scratch cluster on a free loopback port."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

_numbers = itertools.count(1)

PASSWORD = "hunter2"
"""What the role `locked` must give; every other role is trusted, but for `refused`."""

_DOOR = """
host all locked 127.0.0.1/32 scram-sha-256
host all refused 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
"""


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
        self.user = None if os.getuid() else pwd.getpwnam("nobody")
        self.directory = Path(tempfile.mkdtemp(prefix="gymckpt-postgresql-"))
        self.give(self.directory)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        data = str(self.directory / "data")
        self._run("initdb", "-D", data, "-U", "gymckpt", "-A", "trust", "-E", "UTF8", "--no-sync")
        (self.directory / "data" / "pg_hba.conf").write_text(_DOOR)
        self.start()
        self.execute(f"CREATE ROLE locked SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        self.execute("CREATE ROLE reader LOGIN")

    def give(self, path: Path) -> None:
        """Let the server's user own a file or directory."""
        if self.user is not None:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def _run(self, program: str, *arguments: str) -> None:
        user = {} if self.user is None else {"user": self.user.pw_uid, "group": self.user.pw_gid}
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

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._control("start", "-o", f"-p {self.port} -h 127.0.0.1 -k '' -F")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` is a crash."""
        self._control("stop", "-m", mode)

    @contextlib.contextmanager
    def stopped(self, mode: str = "immediate") -> Iterator[None]:
        """Stop the server for the time of the body."""
        self.stop(mode)
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """Run the body with a setting of the whole server changed."""
        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            self.execute(f"ALTER SYSTEM RESET {name}")
            self.execute("SELECT pg_reload_conf()")

    def close(self) -> None:
        """Stop the server, unless a test that failed has left it so, and remove all of it."""
        if (self.directory / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.directory)

    @property
    def log(self) -> str:
        """What the server has logged since it was made."""
        return (self.directory / "log").read_text("utf-8", "replace")

    def url(
        self,
        schema: str = "public",
        *,
        user: str = "gymckpt",
        database: str = "postgres",
        port: int | None = None,
        **settings: object,
    ) -> str:
        """Return what opens a schema, with settings of the session."""
        given = {"search_path": schema, **settings}
        options = "%20".join(f"-c%20{name}%3D{value}" for name, value in given.items())
        place = f"{user}@127.0.0.1:{port or self.port}/{database}"
        return f"postgresql+psycopg://{place}?options={options}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """Return a connection of the tests' own, outside any transaction."""
        where = f"host=127.0.0.1 port={self.port} user=gymckpt dbname={database}"
        return psycopg.connect(where, autocommit=True)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement outside any transaction, and return its rows."""
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def new_schema(self) -> str:
        """Make an empty schema and return its name."""
        name = f"journal_{next(_numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return name
