"""A proxy before every node of a cluster: `open_cluster(..., links=ProxiedLinks())`.

Purpose: brokers advertise their proxies, so that clients and other brokers come through them, and
each broker finds the controller through a proxy of its own. Invariant: one proxy for each link,
closed with the links. What it must not know: the backend.

Followers fetch through the leader's proxy as well: a rule that matches their client id cuts one
follower off and no client (`is_follower`).
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from integration.faults.proxy import TcpProxy
from integration.faults.rules import Match, RequestHeader, of_api


def is_follower(broker_id: int) -> Match:
    """Matches what the replica fetchers of this broker send, by Kafka's client id for them."""
    asks = of_api("fetch", "offset_for_leader_epoch", "list_offsets")
    prefix = f"broker-{broker_id}-fetcher"

    def matches(request: RequestHeader) -> bool:
        return asks(request) and (request.client_id or "").startswith(prefix)

    return matches


class ProxiedLinks:
    """`Links` through proxies: `brokers[id]` stands before it, `controllers[id]` behind it.

    A context manager; the cluster must be closed before it.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, TcpProxy] = {}
        self.controllers: dict[int, TcpProxy] = {}

    def to_broker(self, broker_id: int, address: str) -> str:
        """The address of a proxy before this broker."""
        return _replace(self.brokers, broker_id, address)

    def to_controller(self, broker_id: int, address: str) -> str:
        """The address of a proxy on this broker's way to the controller."""
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
