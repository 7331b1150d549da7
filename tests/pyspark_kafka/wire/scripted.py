"""A broker on loopback that follows a script.

Purpose: responses that no real broker sends: late, out of order, truncated, with wrong lengths. The
script runs in a thread for each connection. What it must not know: `wire`; it uses kio.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading
from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request: its header's first fields, and all that follows them."""

    api_key: int
    version: int
    correlation_id: int
    rest: bytes


class Peer:
    """One connection, seen from the broker."""

    def __init__(self, connected: socket.socket, over: threading.Event) -> None:
        self._socket = connected
        self._over = over

    def read(self) -> ReceivedRequest:
        """Read the next request; raises `ConnectionError` if the client has closed."""
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
        """Answer the first request, ApiVersions; `features` are finalized ones."""
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
        self.answer(request, "api_versions", api_keys=keys, **fields)

    def answer(self, request: ReceivedRequest, api: str, /, **fields: Any) -> None:
        """Answer with kio's entity of the request's version."""
        self.send(answer_frame(request.correlation_id, api, request.version, **fields))

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self._socket.sendall(data)

    def hang(self) -> None:
        """Send and read nothing until the end of the test."""
        self._over.wait()

    def until_closed(self) -> None:
        """Read and drop until the client closes."""
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


def answer_frame(correlation_id: int, api: str, version: int, **fields: Any) -> bytes:
    """A whole response: length, header and body."""
    entity = raw.response(api, version, **fields)
    flexible = type(entity).__header_schema__.__flexible__
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return frame(struct.pack(">i", correlation_id) + bytes(flexible) + buffer.getvalue())


def frame(data: bytes) -> bytes:
    """These bytes after their length."""
    return struct.pack(">i", len(data)) + data


Script = Callable[[Peer], None]


class ScriptedBroker:
    """Listens on a free port; each connection plays the next script, later ones the last."""

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
            pass  # the client went away
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


class Answers:
    """The answers of a broker by API, in turn; the last answer is repeated.

    An answer is `Fields` of the response, or a function of peer and request. `received` has the
    names of the requested APIs in order.
    """

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.received: list[str] = []

    def __call__(self, peer: Peer) -> None:
        peer.negotiate()
        self.serve(peer)

    def serve(self, peer: Peer) -> None:
        """Answer until the client closes."""
        while True:
            request = peer.read()
            api = api_key_map[request.api_key]
            self.received.append(api)
            turns = self.answers[api]
            answer = turns.pop(0) if len(turns) > 1 else turns[0]
            if callable(answer):
                answer(peer, request)
            else:
                peer.answer(request, api, **answer)

    def count(self, api: str) -> int:
        return self.received.count(api)
