"""A proxy in front of every node of a cluster: `open_cluster(..., links=ProxiedLinks())`.

Purpose: brokers advertise their proxies, so that clients and other brokers connect through them;
each broker connects to the controller through its own proxy. Invariant: one proxy per link, closed
with the links. What it must not know: the backend.

Followers fetch through the leader's proxy as well: a rule that matches their client id cuts off one
follower and no client (`is_follower`).
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from integration.faults.proxy import TcpProxy
from integration.faults.rules import Match, RequestHeader, of_api


def is_follower(broker_id: int) -> Match:
    """Return a matcher for the replica fetchers of this broker, by Kafka's client id for them."""
    asks = of_api("fetch", "offset_for_leader_epoch", "list_offsets")
    prefix = f"broker-{broker_id}-fetcher"

    def matches(request: RequestHeader) -> bool:
        return asks(request) and (request.client_id or "").startswith(prefix)

    return matches


class ProxiedLinks:
    """`Links` through proxies: of a broker's clients (`brokers[id]`) and to its controller.

    `controllers[id]` is between the broker and the controller. Use it as a context manager, and
    close the cluster first.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, TcpProxy] = {}
        self.controllers: dict[int, TcpProxy] = {}

    def to_broker(self, broker_id: int, address: str) -> str:
        """Return the address of a proxy in front of this broker."""
        return _replace(self.brokers, broker_id, address)

    def to_controller(self, broker_id: int, address: str) -> str:
        """Return the address of a proxy between this broker and the controller."""
        return _replace(self.controllers, broker_id, address)

    def heal(self) -> None:
        """End all faults."""
        for proxy in (*self.brokers.values(), *self.controllers.values()):
            proxy.heal()

    def close(self) -> None:
        with ExitStack() as closing:
            for proxy in (*self.brokers.values(), *self.controllers.values()):
                closing.callback(proxy.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _replace(proxies: dict[int, TcpProxy], broker_id: int, address: str) -> str:
    if broker_id in proxies:
        proxies.pop(broker_id).close()
    proxies[broker_id] = TcpProxy(address)
    return proxies[broker_id].address
