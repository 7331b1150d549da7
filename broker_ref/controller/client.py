"""A broker's client of the controller.

Purpose: send requests to the controller through the outbox, on one channel per purpose, so that a
long poll does not delay other requests. Invariant: as for `Outbox.send`. Must not know: the
contents of the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from broker_ref.events import Channel
from broker_ref.outbox import Outbox

Response = TypeVar("Response")

CONTROLLER_ID: Final = 3000
"""The node id of the controller. No broker may use it."""

REQUEST_TIMEOUT_MS: Final = 30_000
"""Kafka's default of `controller.socket.timeout.ms`, after which the request is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerClient:
    """The controller at `host` and `port`, seen from a broker."""

    outbox: Outbox
    host: str
    port: int

    def send(
        self,
        *,
        purpose: str,
        api_key: int,
        version: int,
        request: object,
        response: type[Response],
        on_response: Callable[[Response], None],
        on_failure: Callable[[str], None],
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Send a request to the controller as `Outbox.send` does, on one channel per `purpose`."""
        self.outbox.send(
            Channel(node_id=CONTROLLER_ID, host=self.host, port=self.port, purpose=purpose),
            api_key=api_key,
            version=version,
            request=request,
            response=response,
            on_response=on_response,
            on_failure=on_failure,
            timeout_ms=timeout_ms,
        )
