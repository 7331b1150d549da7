"""Bytes to and from one address, and waiting for several at once.

Purpose: the only module with sockets. TLS will be another `Connect` with another `Transport`.
Invariant: `send` and `receive_into` never wait; `connect` and `wait` end within their timeouts.
What it must not know: Kafka.

A TLS transport may buffer bytes that its file descriptor does not show. Callers therefore wait for
a transport only after `receive_into` has returned None.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, Protocol

_PARTS_MAX: Final = 64
"""Buffers of one `sendmsg`; POSIX guarantees 16, Linux and macOS allow 1024."""

_UNUSABLE: Final = (OSError, ValueError, OverflowError)
"""Errors of looking up an invalid address: a broker may advertise anything."""


class TransportError(Exception):
    """The connection failed or could not be opened; the text is the reason."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A broker's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port` or `[IPv6]:port`, which the options have validated."""
        host, _, port = text.strip().rpartition(":")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class Transport(Protocol):
    """A two-way stream of bytes. After an error only `close` may be called."""

    def send(self, parts: Iterable[memoryview]) -> int:
        """Send without waiting and return the number of bytes sent, maybe 0.

        Raises `TransportError`.
        """

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read without waiting; return the number of bytes, or None if none are there.

        Raises `TransportError`, also if the peer has closed the connection.
        """

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""

    def close(self) -> None: ...


Family = Literal["any", "v4", "v6"]
_FAMILIES: Final = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}

Connect = Callable[[Address, float], Transport]
"""Opens a transport within a timeout in seconds, or raises `TransportError`."""


class TcpTransport:
    """Plain TCP."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connected

    def send(self, parts: Iterable[memoryview]) -> int:
        try:
            return self._socket.sendmsg(list(islice(parts, _PARTS_MAX)))
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportError(_reason(error)) from None

    def receive_into(self, buffer: memoryview) -> int | None:
        try:
            count = self._socket.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(_reason(error)) from None
        if count == 0:
            raise TransportError("the broker closed the connection")
        return count

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def connect(address: Address, timeout_s: float, *, family: Family = "any") -> Transport:
    """Open plain TCP to the first address of the host that accepts, sharing the timeout."""
    deadline = time.monotonic() + timeout_s
    candidates = [
        candidate
        for candidate in _resolve(address, timeout_s)
        if _FAMILIES[family] in (socket.AF_UNSPEC, candidate[0])
    ]
    reasons = []
    for index, (found, kind, protocol, _, at) in enumerate(candidates):
        share_s = (deadline - time.monotonic()) / (len(candidates) - index)
        if share_s <= 0:
            reasons.append("the timeout ended before all addresses were tried")
            break
        try:
            return TcpTransport(_connected(found, kind, protocol, at, share_s))
        except OSError as error:
            reasons.append(_reason(error))
        except OverflowError as error:
            reasons.append(str(error))
    of_family = "" if family == "any" else f" of the family {family}"
    raise TransportError(
        "; ".join(dict.fromkeys(reasons)) or f"the host name has no address{of_family}"
    )


def wait(
    reading: Collection[Transport], writing: Collection[Transport], timeout_s: float
) -> list[Transport]:
    """Wait until a transport is readable or writable; return those that are, maybe none."""
    events: dict[int, int] = {}
    transports: dict[int, Transport] = {}
    for event, transports_of_event in (
        (selectors.EVENT_READ, reading),
        (selectors.EVENT_WRITE, writing),
    ):
        for transport in transports_of_event:
            events[transport.fileno()] = events.get(transport.fileno(), 0) | event
            transports[transport.fileno()] = transport
    with selectors.DefaultSelector() as selector:
        for descriptor, mask in events.items():
            selector.register(descriptor, mask, transports[descriptor])
        return [key.data for key, _ in selector.select(max(0.0, timeout_s))]


def _connected(
    family: int, kind: int, protocol: int, at: tuple[str | int, ...], timeout_s: float
) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.settimeout(timeout_s)
        opened.connect(at)
    except BaseException:
        opened.close()
        raise
    return opened


_Candidate = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str | int, ...]]
_Resolved = list[_Candidate]


def _resolve(address: Address, timeout_s: float) -> _Resolved:
    """Return the host's addresses. A look-up has no timeout, so it runs in a thread."""
    try:
        return _lookup(address, socket.AI_NUMERICHOST)
    except _UNUSABLE:
        pass
    answers: list[_Resolved | Exception] = []

    def look_up() -> None:
        try:
            answers.append(_lookup(address, 0))
        except _UNUSABLE as error:
            answers.append(error)

    thread = threading.Thread(target=look_up, name=f"resolve {address.host}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answers:
        raise TransportError(f"the host name was not resolved within {timeout_s:.3g} s")
    answer = answers[0]
    if isinstance(answer, Exception):
        raise TransportError(f"the host name cannot be resolved ({answer})")
    return answer


def _lookup(address: Address, flags: int) -> _Resolved:
    return [
        (family, kind, protocol, name, (str(at[0]), *at[1:]))
        for family, kind, protocol, name, at in socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=flags
        )
    ]


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return os.strerror(errno.ETIMEDOUT)
    return error.strerror or str(error)
