"""One connection to one broker: requests out, responses in, in Kafka's order.

Purpose: pipelining. Requests are sent without waiting for the answers to earlier ones; a broker
answers in the order it was asked, and a correlation id says that it did. Invariant: whatever the
broker sends or leaves out, a wait ends at its deadline with a response or with an error naming
broker and request. After any such error the connection is closed, all that was asked on it has
failed, and it is never used again: its bytes cannot be told apart any more. What it must not
know: which broker to ask, and what to do about a failure.

A frame's length is believed up to `response_bytes_max`; its memory comes from Arrow's pool, which
hands it out without clearing it and takes it back when the last view of the frame is gone.
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
"""A longer response is refused; `receive.message.max.bytes` of librdkafka has the same default."""
_FRAME_BYTES_MIN: Final = 4
_CORRELATION_IDS: Final = 2**31
_LENGTH: Final = struct.Struct(">i")


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
    """A request on its way, and later its outcome."""

    connection: Connection
    request: Request[T]
    correlation_id: int
    done: bool = field(default=False)
    _response: T | None = field(default=None, repr=False)
    _error: KafkaError | None = field(default=None)
    _abandoned: bool = field(default=False)

    def result(self) -> T:
        """The response, or the error, of a pending that is done."""
        assert self.done, self.request
        if self._error is not None:
            raise self._error
        return self._response  # type: ignore[return-value]

    def abandon(self) -> None:
        """Nobody wants the response any more: it is read and dropped when it comes."""
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

    `broker` is how errors name it, such as `broker 2 at 10.0.0.2:9092`. Deadlines are moments of
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
        self._failure: tuple[type[KafkaError], str] | None = None
        self._length = memoryview(bytearray(_LENGTH.size))
        self._body: memoryview | None = None
        self._unfilled = self._length
        self._outgoing: deque[memoryview] = deque()

    @property
    def is_usable(self) -> bool:
        """Whether it may still be asked, as far as can be seen without waiting."""
        if self.is_idle:
            while self._take_what_is_there():  # a broker closes what is idle for long
                pass
        return self._failure is None

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return all(pending._abandoned for pending in self._in_flight)

    @property
    def is_open(self) -> bool:
        """Whether it has not failed and was not closed, as far as is known."""
        return self._failure is None

    @property
    def in_flight(self) -> int:
        """How many requests have not been answered."""
        return len(self._in_flight)

    def send(self, request: Request[T], *, deadline: float) -> Pending[T]:
        """Send a request, once the broker's throttling is over; the answer comes later.

        Raises `BrokerUnreachableError` where that cannot be done until the deadline.
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
        """Send as much of a request as goes without waiting; `wait_any` sends the rest.

        Whoever posts minds `throttled_until`, and keeps the request's buffers as they are until it
        is done. Raises `BrokerUnreachableError` where the connection has failed before.
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
        self._write_what_goes()
        return pending

    def receive(self, pending: Pending[T], *, deadline: float) -> T:
        """Wait for a response; those to earlier requests are put by.

        Raises `BrokerUnreachableError` or `ProtocolError`; at the deadline the connection is closed.
        """
        if not wait_any([pending], deadline=deadline, clock=self._clock):
            first = self._in_flight[0].request
            before = "" if first is pending.request else f" (nor to {first}, sent before)"
            self.fail(
                BrokerUnreachableError, f"no answer came to {pending.request}{before} in time"
            )
        return pending.result()

    def call(self, request: Request[T], *, deadline: float) -> T:
        """`send` and `receive`."""
        return self.receive(self.send(request, deadline=deadline), deadline=deadline)

    def fail(self, kind: type[KafkaError], reason: str) -> None:
        """Close the connection; all that is in flight fails for this reason."""
        if self._failure is not None:
            return
        self._failure = (kind, reason)
        self._transport.close()
        self._begin_frame()
        for pending in self._in_flight:
            pending._fail(self._error(pending.request))
        self._in_flight.clear()
        self._outgoing.clear()

    def close(self) -> None:
        """Close it in good order."""
        self.fail(BrokerUnreachableError, "this client closed the connection")

    # --- sending ---

    def _wait_for_throttling(self, request: Request[Any], deadline: float) -> None:
        if self.throttled_until > deadline:
            waiting_s = self.throttled_until - self._clock.now()
            raise BrokerUnreachableError(
                f"{request} to {self.broker} was not sent: the broker throttles this client for "
                f"another {waiting_s:.3g} s, by a quota, which is longer than there is time; raise "
                "the quota of this client id, or the timeout"
            )
        pause_s = self._clock.left_s(self.throttled_until)
        if pause_s:
            self._clock.sleep(pause_s)

    def _write_what_goes(self) -> None:
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
            # A broker that cannot get rid of its answers stops reading: take them meanwhile.
            self._take_what_is_there()
            left_s = self._clock.left_s(deadline)
            if not left_s:
                self.fail(BrokerUnreachableError, f"{request} could not be sent in time")
            elif self._failure is None:
                wait([self._transport], [self._transport], left_s)
                self._write_what_goes()
        self._raise_if_failed(request)

    # --- receiving ---

    def _take_what_is_there(self) -> bool:
        """Read without waiting until a frame is complete or nothing is left to read.

        True where a frame came to its end, so that there may be more.
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
                f"the broker announced a response of {length} bytes, where {_FRAME_BYTES_MIN} to "
                f"{self._response_bytes_max} are accepted{_hint(length)}",
            )
        elif not self._in_flight:
            self.fail(ProtocolError, "the broker sent a response to no request")
        else:
            try:
                self._body = memoryview(pa.allocate_buffer(length)).cast("B")
            except MemoryError:
                self.fail(KafkaError, f"there is no memory for a response of {length} bytes")
            else:
                self._unfilled = self._body

    def _take_frame(self, body: memoryview) -> None:
        pending = self._in_flight[0]
        reader = Reader(body)
        answered = reader.int32("the correlation id")
        if answered != pending.correlation_id:
            self.fail(ProtocolError, self._wrong_answer(pending, answered))
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

    def _wrong_answer(self, pending: Pending[Any], answered: int) -> str:
        asked = f"the broker answered with correlation id {answered}"
        expected = f"where {pending.correlation_id} ({pending.request}) was due"
        for other in self._in_flight:
            if other.correlation_id == answered:
                return f"{asked} ({other.request}) out of order, {expected}"
        return f"{asked}, which is none of its requests', {expected}"

    def _note_throttling(self, request: Request[T], response: T) -> None:
        throttle_s = request.throttle_ms(response) / 1000
        if throttle_s > 0 and request.version >= SUPPORTED_VERSIONS[request.api].throttled_from:
            self.throttled_until = max(self.throttled_until, self._clock.now() + throttle_s)

    # --- failing ---

    def _fail_transport(self, error: TransportError) -> None:
        is_within = self._body is not None or len(self._unfilled) < _LENGTH.size
        half = ", in the middle of a response" if is_within else ""
        self.fail(BrokerUnreachableError, f"{error}{half}")

    def _raise_if_failed(self, request: Request[Any]) -> None:
        if self._failure is not None:
            raise self._error(request)

    def _error(self, request: Request[Any]) -> KafkaError:
        assert self._failure is not None
        kind, reason = self._failure
        return kind(f"{request} to {self.broker} failed: {reason}.")


def wait_any(
    pendings: Collection[Pending[Any]], *, deadline: float, clock: Clock
) -> list[Pending[Any]]:
    """Wait until one of them is done, whichever their brokers; all that are, none at the deadline.

    What was posted on their connections is sent meanwhile.

    A pending that has failed is done. What comes behind one that is done is left where it is.
    """
    while True:
        connections = {id(p.connection): p.connection for p in pendings if not p.done}
        for connection in connections.values():
            connection._write_what_goes()
            wanted = [p for p in pendings if p.connection is connection]
            while connection._take_what_is_there() and not any(p.done for p in wanted):
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


def _hint(length: int) -> str:
    """Who else speaks on ports: a TLS alert begins with 0x15 and version 3."""
    return " (it is an alert of TLS: this listener wants it)" if length >> 16 == 0x1503 else ""


def _drop(parts: deque[memoryview], count: int) -> None:
    """Take `count` bytes off the front."""
    while count:
        part = parts[0]
        if count < len(part):
            parts[0] = part[count:]
            return
        count -= len(part)
        parts.popleft()
