"""Forwards requests that only the controller can serve.

Purpose: send a client's request to the controller in an Envelope, and the response to the client.
Invariant: the client gets the controller's bytes unchanged, or one error code for the whole
request; the broker retries until the controller answers or the timeout passes. Must not know: what
the request means. Source: KIP-590, `kafka.server.ForwardingManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.node.dispatch import Dispatcher, Request
from broker_ref.schedule import Schedule

ENVELOPE_KEY: Final = 58
ENVELOPE_VERSION: Final = 0
RETRY_BACKOFF_MS: Final = 100
FORWARDING_TIMEOUT_MS: Final = 30_000
"""Kafka's default of `request.timeout.ms`."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeRequest:
    """A client's request, with its header."""

    request_data: bytes
    request_principal: bytes | None = None
    client_host_address: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeResponse:
    """The response to the client's request, with its header."""

    error_code: ErrorCode = ErrorCode.none
    response_data: bytes | None = None


class ForwardingManager:
    """Forwards requests of a broker's clients to the controller."""

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

    def forward(self, request: Request) -> None:
        """Have the controller answer a request."""
        self._ask(request, self._now_ms() + FORWARDING_TIMEOUT_MS)

    def _ask(self, request: Request, deadline_ms: int) -> None:
        def answered(response: EnvelopeResponse) -> None:
            if response.error_code is ErrorCode.none and response.response_data is not None:
                self._dispatcher.send_response(request.pending, response.response_data)
            else:
                logger.warning(
                    "The controller rejects the forwarded request of API key %d: %s.",
                    request.api.key, response.error_code.name,
                )  # fmt: skip
                self._give_up(request, ErrorCode.unknown_server_error)

        def failed(reason: str) -> None:
            again_ms = self._now_ms() + RETRY_BACKOFF_MS
            if again_ms >= deadline_ms:
                logger.warning(
                    "The controller does not answer the forwarded request of API key %d: %s.",
                    request.api.key, reason,
                )  # fmt: skip
                self._give_up(request, ErrorCode.request_timed_out)
                return
            self._schedule.at(again_ms, lambda _: self._ask(request, deadline_ms))

        self._controller.send(
            purpose="forwarding",
            api_key=ENVELOPE_KEY,
            version=ENVELOPE_VERSION,
            request=EnvelopeRequest(request_data=request.frame),
            response=EnvelopeResponse,
            on_response=answered,
            on_failure=failed,
            timeout_ms=max(deadline_ms - self._now_ms(), 1),
        )

    def _give_up(self, request: Request, error_code: ErrorCode) -> None:
        self._dispatcher.refuse(request, error_code)
