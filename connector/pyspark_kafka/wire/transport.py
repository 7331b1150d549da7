"""Opens TCP connections, and waits for several connections at the same time.

Only this module and `tls` use sockets. `send` and `receive_into` never block.
`connect` and `wait` return within their timeouts.

A TLS transport can hold buffered bytes even when its file descriptor is not readable. Callers
therefore wait for a transport only after `receive_into` has returned None.
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
"""The maximum number of buffers in one `sendmsg` call; Linux and macOS allow 1024."""

CLOSED: Final = "the broker closed the connection"
_UNUSABLE: Final = (OSError, ValueError, OverflowError)
"""The errors that a lookup of an invalid address raises. A broker can advertise any text as its
host."""


class TransportError(Exception):
    """The connection failed or could not be opened. The error message contains the reason.

    `option` is the option that is probably wrong, and `advice` describes what to check. If
    `is_rejection` is True, one side rejected the certificate or the protocol of the other side, so
    a retry would also fail.
    """

    def __init__(
        self,
        reason: str,
        *,
        advice: str | None = None,
        option: str | None = None,
        is_rejection: bool = False,
    ) -> None:
        super().__init__(reason)
        self.advice = advice
        self.option = option
        self.is_rejection = is_rejection


READABLE: Final = selectors.EVENT_READ
WRITABLE: Final = selectors.EVENT_WRITE


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A broker's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port` or `[IPv6]:port`. The text must be valid."""
        host, _, port = text.strip().rpartition(":")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class Transport(Protocol):
    """A bidirectional byte stream. After an error, only `close` may be called.

    After `receive_into` has returned None, wait for `read_event`. After `send` has returned 0, wait
    for `write_event`. Each event is `READABLE` or `WRITABLE`, because TLS may have to write before
    it can read, or read before it can write.
    """

    @property
    def read_event(self) -> int: ...

    @property
    def write_event(self) -> int: ...

    def send(self, parts: Iterable[memoryview]) -> int:
        """Send bytes without waiting, and return the number of bytes sent, which can be 0.

        Raises `TransportError`.
        """

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read without waiting. Return the number of bytes, or None if no bytes are available.

        Raises `TransportError`, for example if the peer has closed the connection.
        """

    def fileno(self) -> int:
        """Return the file descriptor, which `wait` uses."""

    def close(self) -> None: ...


Family = Literal["any", "v4", "v6"]
_FAMILIES: Final = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}

Connect = Callable[[Address, float], Transport]
"""A function that opens a transport within a timeout in seconds, or raises `TransportError`."""


class TcpTransport:
    """A TCP connection without TLS."""

    read_event = READABLE
    write_event = WRITABLE

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    def send(self, parts: Iterable[memoryview]) -> int:
        try:
            return self._socket.sendmsg(list(islice(parts, _PARTS_MAX)))
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportError(reason_of(error)) from None

    def receive_into(self, buffer: memoryview) -> int | None:
        try:
            count = self._socket.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(reason_of(error)) from None
        if count == 0:
            raise TransportError(CLOSED)
        return count

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def connect(address: Address, timeout_s: float, *, family: Family = "any") -> Transport:
    """Open a TCP connection without TLS. See `connected_socket`."""
    return TcpTransport(connected_socket(address, timeout_s, family=family))


def connected_socket(
    address: Address, timeout_s: float, *, family: Family = "any"
) -> socket.socket:
    """Connect to the first address of the host that accepts a connection. Raises `TransportError`.

    The timeout is divided among the addresses of the host.
    """
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
            reasons.append("the timeout expired before all addresses were tried")
            break
        try:
            return _connected(found, kind, protocol, at, share_s)
        except OSError as error:
            reasons.append(reason_of(error))
        except OverflowError as error:
            reasons.append(str(error))
    version = "" if family == "any" else f"IP{family} "
    raise TransportError(
        "; ".join(dict.fromkeys(reasons)) or f"the host name has no {version}address"
    )


def wait(
    reading: Collection[Transport], writing: Collection[Transport], timeout_s: float
) -> list[Transport]:
    """Wait until a transport is readable or writable, and return all such transports.

    Returns an empty list after the timeout.
    """
    events: dict[int, int] = {}
    transports: dict[int, Transport] = {}
    for transport in reading:
        events[transport.fileno()] = transport.read_event
        transports[transport.fileno()] = transport
    for transport in writing:
        events[transport.fileno()] = events.get(transport.fileno(), 0) | transport.write_event
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
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except BaseException:
        opened.close()
        raise
    return opened


_Candidate = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str | int, ...]]
_Resolved = list[_Candidate]


def _resolve(address: Address, timeout_s: float) -> _Resolved:
    """Return the addresses of the host. A DNS lookup has no timeout, so it runs in a thread."""
    try:
        return _lookup(address, socket.AI_NUMERICHOST)
    except _UNUSABLE:
        pass
    results: list[_Resolved | Exception] = []

    def look_up() -> None:
        try:
            results.append(_lookup(address, 0))
        except _UNUSABLE as error:
            results.append(error)

    thread = threading.Thread(target=look_up, name=f"resolve {address.host}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not results:
        raise TransportError(f"the host name was not resolved within {timeout_s:.3g} s")
    result = results[0]
    if isinstance(result, Exception):
        raise TransportError(f"the host name cannot be resolved ({result})")
    return result


def _lookup(address: Address, flags: int) -> _Resolved:
    return [
        (family, kind, protocol, name, (str(at[0]), *at[1:]))
        for family, kind, protocol, name, at in socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=flags
        )
    ]


def reason_of(error: OSError) -> str:
    """Return the text of an operating system error."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return os.strerror(errno.ETIMEDOUT)
    return error.strerror or str(error)
