"""A proxy between a client and one broker that changes, delays or cuts responses.

It creates failures that a broker does not produce on request. It listens on a free loopback port
and reads complete frames from the broker. It replaces the broker's address in them with its own, so
that the client stays connected to the proxy. A replacement must have the length of the original
bytes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping

_LENGTH = struct.Struct(">i")


class Proxy:
    """A proxy that applies `replacements` to every response.

    `delay_s` delays every response, as a slow network does. `silence` holds all responses back.
    """

    def __init__(self, broker: str, replacements: Mapping[bytes, bytes]) -> None:
        host, _, port = broker.rpartition(":")
        self._broker = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        own = host.encode() + _LENGTH.pack(self.port)
        self._replacements = {host.encode() + _LENGTH.pack(int(port)): own, **replacements}
        self._speaking = threading.Event()
        self._speaking.set()
        self._closed = threading.Event()
        self.delay_s = 0.0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def silence(self) -> None:
        self._speaking.clear()

    def close(self) -> None:
        self._speaking.set()
        self._closed.set()
        # `shutdown` wakes up `accept`; `close` does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _run(self, target: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker)
                self._sockets += [client, broker]
                self._run(self._forward, client, broker)
                self._run(self._answer, broker, client)

    @staticmethod
    def _forward(client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                broker.sendall(data)
            broker.shutdown(socket.SHUT_RDWR)

    def _answer(self, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _exactly(broker, _LENGTH.unpack(_exactly(broker, 4))[0])
                for old, new in self._replacements.items():
                    frame = frame.replace(old, new)
                self._speaking.wait()
                self._closed.wait(self.delay_s)
                client.sendall(_LENGTH.pack(len(frame)) + frame)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


@contextlib.contextmanager
def proxy(broker: str, replacements: Mapping[bytes, bytes] | None = None) -> Iterator[Proxy]:
    for old, new in (replacements or {}).items():
        assert len(old) == len(new)
    one = Proxy(broker, replacements or {})
    try:
        yield one
    finally:
        one.close()
