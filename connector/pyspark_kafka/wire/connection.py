"""One connection to one broker: requests out, responses in, in Kafka's order.

Purpose: pipelining. Requests are sent without waiting for the responses to earlier ones; a broker
responds in the order of the requests, and the correlation id confirms it. Invariant: whatever the
broker sends or omits, a wait ends at its deadline with a response, or with an error that names the
broker and the request. After such an error the connection is closed, all its requests have failed,
and it is never used again: the next bytes could belong to any response. What it must not know:
which broker to use, and how to handle a failure.

A response may have up to `response_bytes_max` bytes. Its memory comes from Arrow's pool, which does
not clear it and takes it back with the last view of the frame.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from pyspark_kafka.errors import BrokerUnreachableError, KafkaError, ProtocolError
from pyspark_kafka.wire.entities import (
    has_flexible_header,
    read_entity,
    request_bytes,
    request_header,
    response_schema,
)
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.transport import Transport, TransportError, wait
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api, BrokerVersions

T = TypeVar("T")

RESPONSE_BYTES_MAX: Final = 100 * 1024 * 1024
"""The default of librdkafka's `receive.message.max.bytes`; a longer response is an error."""
_FRAME_BYTES_MIN: Final = 4
_CORRELATION_IDS: Final = 2**31
_LENGTH: Final = struct.Struct(">i")
_TLS_ADVICE: Final = (
    "Set 'kafka.security.protocol' to 'SSL' or 'SASL_SSL', or use a listener without TLS."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """A request of one version: its body, and how to read the body of the response.

    `read` raises `MalformedResponseError`. `throttle_ms` is the response's throttle time.
    """

    api: Api
    version: int
    body: Sequence[bytes | memoryview]
    read: Callable[[Reader], T]
    throttle_ms: Callable[[T], int]

    def __str__(self) -> str:
        return f"{self.api.title} v{self.version}"


def entity_request(api: Api, version: int, **fields: Any) -> Request[Any]:
    """A request whose response is kio's entity; see `entities.request_bytes` for `fields`."""
    schema = response_schema(api, version)
    return Request(
        api=api,
        version=version,
        body=(request_bytes(api, version, fields),),
        read=lambda reader: read_entity(schema, reader),
        throttle_ms=_entity_throttle_ms,
    )


def _entity_throttle_ms(response: Any) -> int:
    throttle_time = getattr(response, "throttle_time", None)
    return 0 if throttle_time is None else round(throttle_time.total_seconds() * 1000)


@dataclass(slots=True, eq=False)
class Pending(Generic[T]):
    """A request that was sent, and later its response or error."""

    connection: Connection
    request: Request[T]
    correlation_id: int
    done: bool = field(default=False)
    _response: T | None = field(default=None, repr=False)
    _error: KafkaError | None = field(default=None)
    _abandoned: bool = field(default=False)

    def result(self) -> T:
        """Return the response, or raise the error; only when `done`."""
        assert self.done, self.request
        if self._error is not None:
            raise self._error
        return self._response  # type: ignore[return-value]

    def abandon(self) -> None:
        """Drop the response when it arrives."""
        self._abandoned = True
        self._response = None

    def _succeed(self, response: T) -> None:
        self.done = True
        self._response = None if self._abandoned else response

    def _fail(self, error: KafkaError) -> None:
        self.done = True
        self._error = error


class Connection:
    """Requests to one broker over one transport, which it owns.

    `broker` is its name in errors, such as `broker 2 at 10.0.0.2:9092`. Deadlines are times of
    `clock`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        broker: str,
        client_id: str,
        clock: Clock,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> None:
        self.broker = broker
        self.versions = BrokerVersions(broker=broker, ranges={})
        self.throttled_until = 0.0
        self.used_at = clock.now()
        self._transport = transport
        self._client_id = client_id
        self._clock = clock
        self._response_bytes_max = response_bytes_max
        self._next_correlation_id = 0
        self._in_flight: deque[Pending[Any]] = deque()
        self._failure: tuple[type[KafkaError], str, str | None] | None = None
        self._length = memoryview(bytearray(_LENGTH.size))
        self._body: memoryview | None = None
        self._unfilled = self._length
        self._outgoing: deque[memoryview] = deque()

    @property
    def is_usable(self) -> bool:
        """Whether requests can be sent, as far as known without waiting."""
        if self.is_idle:
            while self._read_available():  # brokers close idle connections
                pass
        return self._failure is None

    @property
    def is_idle(self) -> bool:
        """Whether no response is awaited."""
        return all(pending._abandoned for pending in self._in_flight)

    @property
    def is_open(self) -> bool:
        """Whether it is not known to have failed or closed."""
        return self._failure is None

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._in_flight)

    def send(self, request: Request[T], *, deadline: float) -> Pending[T]:
        """Send a request when the broker's throttling is over, without waiting for the response.

        Raises `BrokerUnreachableError` if that is not possible until the deadline.
        """
        self._raise_if_failed(request)
        self._wait_for_throttling(request, deadline)
        pending = self.post(request)
        try:
            self._write_all(request, deadline)
        except BaseException:
            self.fail(BrokerUnreachableError, f"{request} was interrupted while it was sent")
            raise
        return pending

    def post(self, request: Request[T]) -> Pending[T]:
        """Send as much of a request as possible without waiting; `wait_any` sends the rest.

        The caller respects `throttled_until` and does not change the request's buffers until it is
        done. Raises `BrokerUnreachableError` if the connection has failed.
        """
        self._raise_if_failed(request)
        self.used_at = self._clock.now()
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        header = request_header(
            request.api,
            request.version,
            correlation_id=correlation_id,
            client_id=self._client_id,
        )
        size = len(header) + sum(len(part) for part in request.body)
        pending = Pending(self, request, correlation_id)
        self._in_flight.append(pending)
        parts = [_LENGTH.pack(size) + header, *request.body]
        self._outgoing.extend(view for part in parts if (view := memoryview(part).cast("B")))
        self._write_available()
        return pending

    def receive(self, pending: Pending[T], *, deadline: float) -> T:
        """Wait for a response; responses to earlier requests are kept for their `Pending`s.

        Raises `BrokerUnreachableError` or `ProtocolError`; at the deadline the connection closes.
        """
        if not wait_any([pending], deadline=deadline, clock=self._clock):
            first = self._in_flight[0].request
            before = "" if first is pending.request else f" (nor to the earlier {first})"
            self.fail(
                BrokerUnreachableError, f"no response to {pending.request}{before} arrived in time"
            )
        return pending.result()

    def call(self, request: Request[T], *, deadline: float) -> T:
        """`send` and `receive`."""
        return self.receive(self.send(request, deadline=deadline), deadline=deadline)

    def fail(self, kind: type[KafkaError], reason: str, advice: str | None = None) -> None:
        """Close the connection; all requests in flight fail with this error."""
        if self._failure is not None:
            return
        self._failure = (kind, reason, advice)
        self._transport.close()
        self._begin_frame()
        for pending in self._in_flight:
            pending._fail(self._error(pending.request))
        self._in_flight.clear()
        self._outgoing.clear()

    def close(self) -> None:
        """Close the connection."""
        self.fail(BrokerUnreachableError, "this client closed the connection")

    # --- sending ---

    def _wait_for_throttling(self, request: Request[Any], deadline: float) -> None:
        if self.throttled_until > deadline:
            waiting_s = self.throttled_until - self._clock.now()
            raise BrokerUnreachableError(
                f"{request} to {self.broker} was not sent: a quota of the broker throttles this "
                f"client for another {waiting_s:.3g} s, which is longer than the timeout.",
                advice="Raise the quota of this client id, or the timeout.",
            )
        pause_s = self._clock.left_s(self.throttled_until)
        if pause_s:
            self._clock.sleep(pause_s)

    def _write_available(self) -> None:
        while self._outgoing and self._failure is None:
            try:
                sent = self._transport.send(self._outgoing)
            except TransportError as error:
                self._fail_transport(error)
                return
            if not sent:
                return
            _drop(self._outgoing, sent)

    def _write_all(self, request: Request[Any], deadline: float) -> None:
        while self._outgoing and self._failure is None:
            # A broker whose responses are not read stops reading requests.
            self._read_available()
            left_s = self._clock.left_s(deadline)
            if not left_s:
                self.fail(BrokerUnreachableError, f"{request} could not be sent in time")
            elif self._failure is None:
                wait([self._transport], [self._transport], left_s)
                self._write_available()
        self._raise_if_failed(request)

    # --- receiving ---

    def _read_available(self) -> bool:
        """Read without waiting until a frame is complete or no bytes are left.

        Return whether a frame is complete, so that there may be another.
        """
        while self._failure is None:
            try:
                count = self._transport.receive_into(self._unfilled)
            except TransportError as error:
                self._fail_transport(error)
                return False
            if count is None:
                return False
            self._unfilled = self._unfilled[count:]
            if self._unfilled:
                continue
            if self._body is None:
                self._begin_body()
            else:
                body = self._body
                self._begin_frame()
                self._take_frame(body)
                return True
        return False

    def _begin_frame(self) -> None:
        self._body = None
        self._unfilled = self._length

    def _begin_body(self) -> None:
        (length,) = _LENGTH.unpack(self._length)
        if not _FRAME_BYTES_MIN <= length <= self._response_bytes_max:
            self.fail(
                ProtocolError,
                f"the broker announced a response of {length} bytes, but a response has "
                f"{_FRAME_BYTES_MIN} to {self._response_bytes_max} bytes{_tls_alert(length)}",
                _TLS_ADVICE if _tls_alert(length) else None,
            )
        elif not self._in_flight:
            self.fail(ProtocolError, "the broker sent a response without a request")
        else:
            try:
                self._body = memoryview(pa.allocate_buffer(length)).cast("B")
            except MemoryError:
                self.fail(
                    KafkaError,
                    f"there is no memory for a response of {length} bytes",
                    "Give the process more memory, or lower 'kafka.fetch.max.bytes'.",
                )
            else:
                self._unfilled = self._body

    def _take_frame(self, body: memoryview) -> None:
        pending = self._in_flight[0]
        reader = Reader(body)
        correlation_id = reader.int32("the correlation id")
        if correlation_id != pending.correlation_id:
            self.fail(ProtocolError, self._wrong_correlation_id(pending, correlation_id))
            return
        request = pending.request
        try:
            if has_flexible_header(request.api, request.version):
                reader.skip_tagged_fields("the header")
            response = request.read(reader)
            reader.end(f"the response to {request}")
        except MalformedResponseError as error:
            self.fail(ProtocolError, f"the response to {request} is malformed: {error}")
            return
        self._in_flight.popleft()
        self._note_throttling(request, response)
        pending._succeed(response)

    def _wrong_correlation_id(self, pending: Pending[Any], correlation_id: int) -> str:
        expected = f"instead of {pending.correlation_id} ({pending.request})"
        for other in self._in_flight:
            if other.correlation_id == correlation_id:
                return (
                    f"the broker responded out of order with correlation id {correlation_id} "
                    f"({other.request}) {expected}"
                )
        return f"the broker responded with the unknown correlation id {correlation_id} {expected}"

    def _note_throttling(self, request: Request[T], response: T) -> None:
        throttle_s = request.throttle_ms(response) / 1000
        if throttle_s > 0 and request.version >= SUPPORTED_VERSIONS[request.api].throttled_from:
            self.throttled_until = max(self.throttled_until, self._clock.now() + throttle_s)

    # --- failing ---

    def _fail_transport(self, error: TransportError) -> None:
        is_partial = self._body is not None or len(self._unfilled) < _LENGTH.size
        where = ", in the middle of a response" if is_partial else ""
        self.fail(BrokerUnreachableError, f"{error}{where}")

    def _raise_if_failed(self, request: Request[Any]) -> None:
        if self._failure is not None:
            raise self._error(request)

    def _error(self, request: Request[Any]) -> KafkaError:
        assert self._failure is not None
        kind, reason, advice = self._failure
        return kind(f"{request} to {self.broker} failed: {reason}.", advice=advice)


def wait_any(
    pendings: Collection[Pending[Any]], *, deadline: float, clock: Clock
) -> list[Pending[Any]]:
    """Wait until one is done; return all that are done, none at the deadline.

    The pendings may be of several brokers. Posted requests of their connections are sent meanwhile.
    A failed pending is done. Reading stops at a completed response.
    """
    while True:
        connections = {id(p.connection): p.connection for p in pendings if not p.done}
        for connection in connections.values():
            connection._write_available()
            waiting = [p for p in pendings if p.connection is connection]
            while connection._read_available() and not any(p.done for p in waiting):
                pass
        done = [pending for pending in pendings if pending.done]
        left_s = clock.left_s(deadline)
        if done or not left_s or not connections:
            return done
        wait(
            [connection._transport for connection in connections.values()],
            [c._transport for c in connections.values() if c._outgoing],
            left_s,
        )


def _tls_alert(length: int) -> str:
    """Return a note if the length is the start of a TLS alert: 0x15 and version 3."""
    return " (the bytes are a TLS alert)" if length >> 16 == 0x1503 else ""


def _drop(parts: deque[memoryview], count: int) -> None:
    """Remove `count` bytes from the front."""
    while count:
        part = parts[0]
        if count < len(part):
            parts[0] = part[count:]
            return
        count -= len(part)
        parts.popleft()
