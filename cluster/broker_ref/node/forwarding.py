"""Forwards requests that only the controller can serve.

The broker wraps a client's request in an Envelope request to the controller. Invariants: the client
receives the controller's response unchanged, or one error code for the whole request. The broker
retries until the controller responds or the timeout expires. Source: KIP-590,
`kafka.server.ForwardingManager`.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.frozen import dataclass
from broker_ref.node.dispatch import Dispatcher, Request
from broker_ref.schedule import Schedule
from broker_ref.security.principals import Principal, encode_principal

ENVELOPE_KEY: Final = 58
ENVELOPE_VERSION: Final = 0
RETRY_BACKOFF_MS: Final = 100
FORWARDING_TIMEOUT_MS: Final = 30_000
"""The timeout for a forwarded request (Kafka's default for `request.timeout.ms`)."""

FORWARDED_BYTES_MAX: Final = 64 * 2**20
"""The maximum size of all requests that wait for the controller, except for a single request."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeRequest:
    """An Envelope with a client's request, including its header."""

    request_data: bytes
    request_principal: bytes | None = None
    client_host_address: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeResponse:
    """An Envelope with the response to the client, including its header."""

    error_code: ErrorCode = ErrorCode.none
    response_data: bytes | None = None


def envelope(frame: bytes, *, principal: Principal, host: str) -> EnvelopeRequest:
    """Return an Envelope with a request frame, and the principal and the host of the client."""
    return EnvelopeRequest(
        request_data=frame,
        request_principal=encode_principal(principal),
        client_host_address=_address_bytes(host),
    )


class ForwardingManager:
    """Forwards client requests to the controller."""

    def __init__(
        self,
        *,
        controller: ControllerClient,
        schedule: Schedule,
        now_ms: Callable[[], int],
        dispatcher: Dispatcher,
    ) -> None:
        self._controller = controller
        self._schedule = schedule
        self._now_ms = now_ms
        self._dispatcher = dispatcher
        self._waiting_bytes = 0

    def forward(self, request: Request) -> None:
        """Forward a request to the controller. The client receives the controller's response.

        Close the client's connection if the requests that are waiting for the controller would
        exceed `FORWARDED_BYTES_MAX` in total. The client can reconnect and retry.
        """
        request_bytes = len(request.frame)
        if self._waiting_bytes and self._waiting_bytes + request_bytes > FORWARDED_BYTES_MAX:
            self._dispatcher.close_connection(
                request.pending.connection_id,
                f"{self._waiting_bytes} bytes of other requests are waiting for the controller",
            )
            return
        self._waiting_bytes += request_bytes
        self._send(request, self._now_ms() + FORWARDING_TIMEOUT_MS)

    def _send(self, request: Request, deadline_ms: int) -> None:
        def handle_response(response: EnvelopeResponse) -> None:
            self._waiting_bytes -= len(request.frame)
            if response.error_code is ErrorCode.none and response.response_data is not None:
                self._dispatcher.send_response(request.pending, response.response_data)
            else:
                logger.warning(
                    "The controller rejected a forwarded request with API key %d: %s.",
                    request.api.key, response.error_code.name,
                )  # fmt: skip
                self._dispatcher.refuse(request, ErrorCode.unknown_server_error)

        def handle_failure(reason: str) -> None:
            again_ms = self._now_ms() + RETRY_BACKOFF_MS
            if again_ms >= deadline_ms:
                logger.warning(
                    "The controller did not respond to a forwarded request with API key %d: %s.",
                    request.api.key, reason,
                )  # fmt: skip
                self._waiting_bytes -= len(request.frame)
                self._dispatcher.refuse(request, ErrorCode.request_timed_out)
                return
            self._schedule.at(again_ms, lambda _: self._send(request, deadline_ms))

        self._controller.send(
            purpose="forwarding",
            api_key=ENVELOPE_KEY,
            version=ENVELOPE_VERSION,
            request=envelope(
                request.frame,
                principal=request.pending.client.principal,
                host=request.pending.client.host,
            ),
            response=EnvelopeResponse,
            on_response=handle_response,
            on_failure=handle_failure,
            timeout_ms=max(deadline_ms - self._now_ms(), 1),
        )


def _address_bytes(host: str) -> bytes:
    """Return an IP address in network byte order, or empty bytes if `host` is not an IP address."""
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return b""
