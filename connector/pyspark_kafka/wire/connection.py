"""Implements a connection to one broker, with pipelined requests.

A request can be sent before the responses to earlier requests arrive. The broker responds in the
order of the requests, and the client verifies the order with the correlation ids. Every wait ends
by its deadline with a response, or with an error that names the broker and the request. After an
error, the connection is closed and all its requests fail. The connection is not used again, because
the next bytes could belong to any response. The callers choose the broker and handle failures.

With SASL, the client authenticates again before the session of the connection expires (KIP-368).
The broker accepts no other request between the first and the last request of an authentication.
Requests that are posted in the meantime are held back, and are sent when the authentication is
complete.

A response can be up to `response_bytes_max` bytes long. Its memory comes from Arrow's memory pool
and is not zeroed. The memory is released with the last view of the response.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from pyspark_kafka.errors import (
    AuthenticationError,
    BrokerUnreachableError,
    KafkaError,
    ProtocolError,
    reason_of,
)
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
"""The maximum size of a response: librdkafka's default for `receive.message.max.bytes`."""
_FRAME_BYTES_MIN: Final = 4
_CORRELATION_IDS: Final = 2**31
_LENGTH: Final = struct.Struct(">i")
_PROTOCOL_OPTION: Final = "kafka.security.protocol"
_TLS_ADVICE: Final = (
    f"Set '{_PROTOCOL_OPTION}' to 'SSL' or 'SASL_SSL', or use a listener without TLS."
)
_FIRST_REQUEST_ADVICE: Final = (
    f"Check '{_PROTOCOL_OPTION}': a listener with SASL closes the connection of a client that does "
    "not authenticate."
)
_REAUTHENTICATE_AFTER: Final = 0.85
_REAUTHENTICATE_JITTER: Final = 0.10
"""The fraction of the session lifetime after which Kafka's clients authenticate again."""
_AUTHENTICATING: Final = frozenset({Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
_WITHOUT_SASL: Final = _AUTHENTICATING | {Api.API_VERSIONS}
"""The requests that a broker accepts before the client has authenticated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """A request in one API version: its body, and the function that reads the response body.

    `read` raises `MalformedResponseError`. `throttle_ms` returns the throttle time of a response.
    """

    api: Api
    version: int
    body: Sequence[bytes | memoryview]
    read: Callable[[Reader], T]
    throttle_ms: Callable[[T], int]

    def __str__(self) -> str:
        return f"{self.api.title} v{self.version}"


def entity_request(api: Api, version: int, **fields: Any) -> Request[Any]:
    """Build a request with kio's schema. For `fields`, see `entities.request_bytes`."""
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


Authentication = Generator[Request[Any], Any, float]
"""Yields the requests of an authentication, and receives their responses.

Returns the lifetime of the session in seconds, or 0 if the session does not expire. Raises
`KafkaError`.
"""


@dataclass(slots=True, eq=False)
class InFlightRequest(Generic[T]):
    """A request that was sent. When it is `done`, it contains the response or the error."""

    connection: Connection
    request: Request[T]
    correlation_id: int = -1
    done: bool = field(default=False)
    _response: T | None = field(default=None, repr=False)
    _error: KafkaError | None = field(default=None)
    _abandoned: bool = field(default=False)

    def result(self) -> T:
        """Return the response or raise the error. The request must be `done`."""
        assert self.done, self.request
        if self._error is not None:
            raise self._error
        return self._response  # type: ignore[return-value]

    def abandon(self) -> None:
        """Discard the response when it arrives."""
        self._abandoned = True
        self._response = None

    def _succeed(self, response: T) -> None:
        self.done = True
        self._response = None if self._abandoned else response

    def _fail(self, error: KafkaError) -> None:
        self.done = True
        self._error = error


class Connection:
    """A connection to one broker. It owns its transport.

    `broker` names the broker in errors, for example `broker 2 at 10.0.0.2:9092`. Deadlines are
    times of `clock`, in seconds.
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
        self._in_flight: deque[InFlightRequest[Any]] = deque()
        self._begin_authentication: Callable[[], Authentication] | None = None
        self._authentication: Authentication | None = None
        self._held: deque[InFlightRequest[Any]] = deque()
        self._authenticate_at = math.inf
        self._session_ends_at = math.inf
        self._has_responded = False
        self._failure: tuple[type[KafkaError], str, str | None, str | None] | None = None
        self._length = memoryview(bytearray(_LENGTH.size))
        self._body: memoryview | None = None
        self._unfilled = self._length
        self._outgoing: deque[memoryview] = deque()

    @property
    def is_usable(self) -> bool:
        """Return whether requests can be sent.

        The result is False if the broker has closed an idle connection or the SASL session has
        expired.
        """
        if self.is_idle:
            while self._read_available():  # brokers close idle connections
                pass
            if self._clock.now() >= self._session_ends_at:
                return False
        return self._failure is None

    @property
    def is_idle(self) -> bool:
        """Return whether no caller is waiting for a response."""
        return all(
            pending._abandoned for requests in (self._in_flight, self._held) for pending in requests
        )

    @property
    def is_open(self) -> bool:
        """Return whether the connection is open."""
        return self._failure is None

    @property
    def in_flight(self) -> int:
        """Return the number of requests without a response."""
        return len(self._in_flight) + len(self._held)

    def authenticate(
        self, begin_authentication: Callable[[], Authentication], *, deadline: float
    ) -> None:
        """Authenticate now, and again whenever the session is about to expire.

        Raises `AuthenticationError`, or `BrokerUnreachableError` at the deadline.
        """
        self._begin_authentication = begin_authentication
        self._start_authentication()
        self._write_all("Authenticating", deadline)

    def send(self, request: Request[T], *, deadline: float) -> InFlightRequest[T]:
        """Send a request after the throttle time. Do not wait for the response.

        Raises `BrokerUnreachableError` if the request cannot be sent before the deadline.
        """
        self._raise_if_failed(request)
        self._wait_for_throttling(request, deadline)
        pending = self.post(request)
        try:
            self._write_all(request, deadline)
        except BaseException:
            self.fail(BrokerUnreachableError, f"{request} was interrupted while it was being sent")
            raise
        return pending

    def post(self, request: Request[T]) -> InFlightRequest[T]:
        """Send as many bytes of a request as possible without waiting.

        `wait_any` sends the remaining bytes. The caller must respect `throttled_until`, and must
        not change the buffers of the request until the request is done. Raises
        `BrokerUnreachableError` if the connection has failed.
        """
        self._raise_if_failed(request)
        self.used_at = self._clock.now()
        if self._authentication is None and self.used_at >= self._authenticate_at:
            self._start_authentication()
            self._raise_if_failed(request)
        pending = InFlightRequest(self, request)
        if self._authentication is None:
            self._enqueue(pending)
        else:
            self._held.append(pending)
        self._write_available()
        return pending

    def receive(self, pending: InFlightRequest[T], *, deadline: float) -> T:
        """Wait for the response to a request. Raises `BrokerUnreachableError` or `ProtocolError`.

        Responses to earlier requests are stored in their `InFlightRequest` objects. If the
        response does not arrive before the deadline, the connection is closed.
        """
        if not wait_any([pending], deadline=deadline, clock=self._clock):
            first = self._in_flight[0].request
            before = "" if first is pending.request else f" or to the earlier request {first}"
            self.fail(
                BrokerUnreachableError, f"no response to {pending.request}{before} arrived in time"
            )
        return pending.result()

    def call(self, request: Request[T], *, deadline: float) -> T:
        """Send a request and wait for its response."""
        return self.receive(self.send(request, deadline=deadline), deadline=deadline)

    def fail(
        self,
        kind: type[KafkaError],
        reason: str,
        advice: str | None = None,
        option: str | None = None,
    ) -> None:
        """Close the connection and fail all in-flight requests with an error of class `kind`."""
        if self._failure is not None:
            return
        self._failure = (kind, reason, advice, option)
        self._transport.close()
        self._begin_frame()
        self._authentication = None
        for pending in [*self._in_flight, *self._held]:
            pending._fail(self._error(pending.request))
        self._in_flight.clear()
        self._held.clear()
        self._outgoing.clear()

    def close(self) -> None:
        """Close the connection."""
        self.fail(BrokerUnreachableError, "this client closed the connection")

    # --- authentication ---

    def _start_authentication(self) -> None:
        assert self._begin_authentication is not None
        self._authentication = self._begin_authentication()
        self._continue_authentication(None)

    def _continue_authentication(self, response: Any) -> None:
        """Send the next authentication request or, after the last one, the held-back requests."""
        assert self._authentication is not None
        try:
            request = self._authentication.send(response)
        except StopIteration as complete:
            self._authentication = None
            self._begin_session(complete.value)
            while self._held:
                self._enqueue(self._held.popleft())
        except KafkaError as error:
            self.fail(type(error), reason_of(error), error.advice, error.option)
        else:
            self._enqueue(InFlightRequest(self, request))

    def _begin_session(self, lifetime_s: float) -> None:
        self._authenticate_at = self._session_ends_at = math.inf
        if lifetime_s > 0:
            now = self._clock.now()
            part = _REAUTHENTICATE_AFTER + _REAUTHENTICATE_JITTER * self._clock.random()
            self._authenticate_at = now + lifetime_s * part
            self._session_ends_at = now + lifetime_s

    # --- sending ---

    def _enqueue(self, pending: InFlightRequest[Any]) -> None:
        request = pending.request
        pending.correlation_id = self._next_correlation_id
        self._next_correlation_id = (pending.correlation_id + 1) % _CORRELATION_IDS
        header = request_header(
            request.api,
            request.version,
            correlation_id=pending.correlation_id,
            client_id=self._client_id,
        )
        size = len(header) + sum(len(part) for part in request.body)
        self._in_flight.append(pending)
        parts = [_LENGTH.pack(size) + header, *request.body]
        self._outgoing.extend(view for part in parts if (view := memoryview(part).cast("B")))

    def _wait_for_throttling(self, request: Request[Any], deadline: float) -> None:
        if self.throttled_until > deadline:
            waiting_s = self.throttled_until - self._clock.now()
            raise BrokerUnreachableError(
                f"{request} to {self.broker} was not sent, because a broker quota throttles this "
                f"client for another {waiting_s:.3g} s, which exceeds the timeout.",
                advice="Raise the quota for this client id, or raise the timeout.",
            )
        throttle_s = self._clock.left_s(self.throttled_until)
        if throttle_s:
            self._clock.sleep(throttle_s)

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

    def _is_sending(self) -> bool:
        """Return whether unsent bytes remain or authentication is in progress."""
        return self._failure is None and (bool(self._outgoing) or self._authentication is not None)

    def _write_all(self, request: Request[Any] | str, deadline: float) -> None:
        """Send all unsent bytes, including held-back requests. Error messages name `request`."""
        self._write_available()
        while self._is_sending():
            # A broker stops reading requests if the client does not read the responses.
            while self._read_available():
                pass
            self._write_available()
            left_s = self._clock.left_s(deadline)
            if not left_s:
                reason = f"{request} could not be sent in time"
                if self._authentication is not None:
                    reason = "the authentication did not complete in time"
                self.fail(BrokerUnreachableError, reason)
            elif self._is_sending():
                wait([self._transport], [self._transport] if self._outgoing else [], left_s)
        self._raise_if_failed(request)

    # --- receiving ---

    def _read_available(self) -> bool:
        """Read available bytes without waiting, up to the end of a frame.

        Return True if a frame is complete. Another frame may then be available.
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
            if _is_tls_alert(length):
                self.fail(
                    AuthenticationError,
                    "the listener expects TLS, and responded with a TLS alert",
                    _TLS_ADVICE,
                    _PROTOCOL_OPTION,
                )
            else:
                self.fail(
                    ProtocolError,
                    f"the broker announced a response of {length} bytes, but a response must be "
                    f"{_FRAME_BYTES_MIN} to {self._response_bytes_max} bytes long",
                )
        elif not self._in_flight:
            self.fail(ProtocolError, "the broker sent a response although no request is in flight")
        else:
            try:
                self._body = memoryview(pa.allocate_buffer(length)).cast("B")
            except MemoryError:
                self.fail(
                    KafkaError,
                    f"there is not enough memory for a response of {length} bytes",
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
        self._has_responded = self._has_responded or request.api not in _WITHOUT_SASL
        if request.api in _AUTHENTICATING:
            self._continue_authentication(response)

    def _wrong_correlation_id(self, pending: InFlightRequest[Any], correlation_id: int) -> str:
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
        kind = AuthenticationError if error.is_rejection else BrokerUnreachableError
        advice, option = error.advice, error.option
        is_first_request = bool(self.versions.ranges) and not self._has_responded
        if is_first_request and self._begin_authentication is None:
            # The broker responded to ApiVersions, but not to the next request.
            advice = advice or _FIRST_REQUEST_ADVICE
            option = option or _PROTOCOL_OPTION
        self.fail(kind, f"{error}{where}", advice, option)

    def _raise_if_failed(self, request: Request[Any] | str) -> None:
        if self._failure is not None:
            raise self._error(request)

    def _error(self, request: Request[Any] | str) -> KafkaError:
        assert self._failure is not None
        kind, reason, advice, option = self._failure
        return kind(f"{request} to {self.broker} failed: {reason}.", advice=advice, option=option)


def wait_any(
    in_flight_requests: Collection[InFlightRequest[Any]], *, deadline: float, clock: Clock
) -> list[InFlightRequest[Any]]:
    """Wait until at least one request is done, and return all requests that are done.

    Returns an empty list if no request is done before the deadline. The requests can belong to
    several brokers. During the wait, the function sends the unsent bytes of the requests'
    connections. A failed request counts as done. After a request is done, the function reads no
    more bytes from its connection.
    """
    while True:
        connections = {id(p.connection): p.connection for p in in_flight_requests if not p.done}
        for connection in connections.values():
            connection._write_available()
            waiting = [p for p in in_flight_requests if p.connection is connection]
            while connection._read_available() and not any(p.done for p in waiting):
                pass
        done = [pending for pending in in_flight_requests if pending.done]
        left_s = clock.left_s(deadline)
        if done or not left_s or not connections:
            return done
        wait(
            [connection._transport for connection in connections.values()],
            [c._transport for c in connections.values() if c._outgoing],
            left_s,
        )


def _is_tls_alert(length: int) -> bool:
    """Return whether the length field contains the start of a TLS alert (0x15, version 3)."""
    return length >> 16 == 0x1503


def _drop(parts: deque[memoryview], count: int) -> None:
    """Remove the first `count` bytes from the buffers."""
    while count:
        part = parts[0]
        if count < len(part):
            parts[0] = part[count:]
            return
        count -= len(part)
        parts.popleft()
