"""The client that a broker uses to send requests to the controller.

The client sends requests through an `Outbox`, with a separate channel for each kind of request, so
a long poll does not delay other requests. The invariants of `Outbox.send` apply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from broker_ref.events import Channel
from broker_ref.frozen import dataclass
from broker_ref.outbox import Outbox

Response = TypeVar("Response")

CONTROLLER_ID: Final = 3000
"""The node id of the controller. Brokers cannot use this id."""

REQUEST_TIMEOUT_MS: Final = 30_000
"""The timeout after which a request is sent again.

The value is Kafka's default for `controller.socket.timeout.ms`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerClient:
    """A client of the controller at `host` and `port`."""

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
        """Send a request with `Outbox.send`, using a separate channel for each `purpose`."""
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
