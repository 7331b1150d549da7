"""A broker on loopback that follows a script.

It sends responses that no real broker sends: late, out of order, truncated or with wrong lengths.
The script runs in one thread for each connection. The broker uses kio and does not depend on
`wire`.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kio.schema.index import api_key_map
from kio.serial import entity_writer

from integration import raw

ALL_VERSIONS: Mapping[int, tuple[int, int]] = {
    0: (3, 13),
    1: (4, 17),
    2: (1, 11),
    3: (0, 13),
    8: (2, 10),
    9: (1, 9),
    10: (0, 6),
    18: (0, 4),
    19: (2, 7),
    22: (0, 6),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    28: (0, 5),
    32: (1, 4),
    65: (0, 0),
    66: (0, 2),
}


@contextlib.contextmanager
def refusing_address() -> Iterator[str]:
    """Yield an address that refuses connections. Its port is held, so that nobody else gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        host, port = bound.getsockname()
        yield f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request: the first fields of its header, and all remaining bytes."""

    api_key: int
    version: int
    correlation_id: int
    rest: bytes


class Peer:
    def __init__(self, connected: socket.socket, over: threading.Event) -> None:
        self._socket = connected
        self._over = over

    def read(self) -> ReceivedRequest:
        """Read the next request. Raises `ConnectionError` if the client has closed."""
        (length,) = struct.unpack(">i", self._exactly(4))
        api_key, version, correlation_id = struct.unpack(">hhi", self._exactly(8))
        return ReceivedRequest(
            api_key=api_key,
            version=version,
            correlation_id=correlation_id,
            rest=self._exactly(length - 8),
        )

    def negotiate(
        self,
        ranges: Mapping[int, tuple[int, int]] = ALL_VERSIONS,
        features: Mapping[str, int] | None = None,
    ) -> None:
        """Answer the first request, which is ApiVersions; `features` are the finalized ones."""
        request = self.read()
        assert request.api_key == 18, request
        keys = [
            {"api_key": key, "min_version": first, "max_version": last}
            for key, (first, last) in ranges.items()
        ]
        finalized = [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in (features or {}).items()
        ]
        fields = {"finalized_features": finalized} if finalized else {}
        self.respond(request, "api_versions", api_keys=keys, **fields)

    def respond(self, request: ReceivedRequest, api: str, /, **fields: Any) -> None:
        """Answer a request with kio's entity of the same version."""
        self.send(response_frame(request.correlation_id, api, request.version, **fields))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hang(self) -> None:
        """Neither send nor read anything until the end of the test."""
        self._over.wait()

    def until_closed(self) -> None:
        """Read and drop all bytes until the client closes the connection."""
        while self._socket.recv(65_536):
            pass

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self._socket.recv(min(length - len(data), 65_536))
            if not part:
                raise ConnectionError("the client closed")
            data += part
        return bytes(data)


def response_frame(correlation_id: int, api: str, version: int, **fields: Any) -> bytes:
    """Return a complete response: length, header and body."""
    entity = raw.response(api, version, **fields)
    flexible = type(entity).__header_schema__.__flexible__
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return frame(struct.pack(">i", correlation_id) + bytes(flexible) + buffer.getvalue())


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


Script = Callable[[Peer], None]


class ScriptedBroker:
    """A broker on a free port.

    Each connection runs the next script; the last script is repeated.
    """

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._over = threading.Event()
        self._errors: list[Exception] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connected)
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._run(self._play, script, connected)

    def _play(self, script: Script, connected: socket.socket) -> None:
        try:
            script(Peer(connected, self._over))
        except OSError:
            pass  # the client closed the connection
        except Exception as error:
            self._errors.append(error)
        finally:
            connected.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in self._sockets:
            with contextlib.suppress(OSError):  # closed already
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=10)
        assert not self._errors, self._errors


Fields = Mapping[str, Any]


class ScriptedResponses:
    """The responses of a broker by API, in order; the last response is repeated.

    A response is `Fields` of the response, or a function of peer and request. `received` contains
    the names of the requested APIs in order.
    """

    def __init__(self, **responses: list[Any]) -> None:
        self.by_api = responses
        self.received: list[str] = []

    def __call__(self, peer: Peer) -> None:
        peer.negotiate()
        self.serve(peer)

    def serve(self, peer: Peer) -> None:
        while True:
            request = peer.read()
            api = api_key_map[request.api_key]
            self.received.append(api)
            turns = self.by_api[api]
            scripted = turns.pop(0) if len(turns) > 1 else turns[0]
            if callable(scripted):
                scripted(peer, request)
            else:
                peer.respond(request, api, **scripted)

    def count(self, api: str) -> int:
        return self.received.count(api)
