"""A wire between a client and a server on which what a test says is lost, late or cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Literal

Fate = Literal["pass", "cut before", "cut after", "freeze"]
"""What becomes of a client's next message that holds the mark: passed on; lost, and the wire cut;
passed on and answered, but cut before the answer is through; passed on, and no answer for ever."""


class Proxy:
    """Relays every connection, and deals with marked messages as it is told."""

    def __init__(self, port: int, mark: bytes) -> None:
        self._target = ("127.0.0.1", port)
        self._mark = mark
        self._fates: list[Fate] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.refuses = False
        """Whether new connections are cut at once."""
        self.pause_s = 0.0
        """How long each small part of an answer takes."""
        self.seen = 0
        """How many marked messages came."""
        self._spawn(self._accept)

    def next(self, *fates: Fate) -> None:
        """Say what becomes of the next marked messages; of those after them, nothing."""
        self._fates = list(fates)

    def close(self) -> None:
        """Cut every connection and take no more."""
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _spawn(self, work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                if self.refuses:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                wire = _Wire(self, client, server)
                self._spawn(self._relay_questions, wire)
                self._spawn(wire.relay_answers)

    def _relay_questions(self, wire: _Wire) -> None:
        with wire.cut_at_the_end():
            while data := wire.client.recv(1 << 20):
                fate: Fate = "pass"
                if self._mark in data:
                    self.seen += 1
                    fate = self._fates.pop(0) if self._fates else "pass"
                if wire.fate != "freeze":
                    wire.fate = fate
                if fate == "cut before":
                    return
                wire.server.sendall(data)


class _Wire:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self.client, self.server = client, server
        self.fate: Fate = "pass"
        """What becomes of the server's next answer."""

    @contextlib.contextmanager
    def cut_at_the_end(self) -> Iterator[None]:
        with contextlib.suppress(OSError):
            yield
        for one in (self.client, self.server) if self.fate != "freeze" else ():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def relay_answers(self) -> None:
        with self.cut_at_the_end():
            while data := self.server.recv(1 << 14):
                if self.fate == "cut after":
                    return
                time.sleep(self._proxy.pause_s)
                if self.fate != "freeze":
                    self.client.sendall(data)


@contextlib.contextmanager
def proxied(port: int, mark: bytes = b"COMMIT\0") -> Iterator[Proxy]:
    """Put a proxy before a server for the time of the body; without a mark, commits are meant."""
    proxy = Proxy(port, mark)
    try:
        yield proxy
    finally:
        proxy.close()
