"""Proxies in front of all nodes of a cluster, for `open_cluster(..., links=ProxiedLinks())`.

Brokers advertise the addresses of their proxies, so clients and other brokers connect through the
proxies. Each broker connects to the controller through its own proxy. Invariant: there is one proxy
per link, and closing the links closes all proxies.

Followers also fetch through the leader's proxy. A rule that matches a follower's client id affects
only this follower and does not affect clients: see `is_follower`.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

from integration.faults.proxy import TcpProxy
from integration.faults.rules import Match, RequestHeader, of_api

_Key = TypeVar("_Key")


def is_follower(broker_id: int) -> Match:
    """Return a matcher for requests of this broker's replica fetchers.

    Kafka's replica fetchers have the client id `broker-ID-fetcher-N`.
    """
    asks = of_api("fetch", "offset_for_leader_epoch", "list_offsets")
    prefix = f"broker-{broker_id}-fetcher"

    def matches(request: RequestHeader) -> bool:
        return asks(request) and (request.client_id or "").startswith(prefix)

    return matches


class ProxiedLinks:
    """Implements `Links` with one proxy per link.

    `brokers[id]` is the proxy between the broker and its clients, including other brokers.
    `secured[id, listener]` is the proxy in front of a secured listener. `controllers[id]` is the
    proxy between the broker and the controller. Use the links as a context manager, and close the
    cluster before the links.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, TcpProxy] = {}
        self.secured: dict[tuple[int, str], TcpProxy] = {}
        self.controllers: dict[int, TcpProxy] = {}

    def to_broker(self, broker_id: int, address: str) -> str:
        """Create a proxy in front of a broker and return its address."""
        return _replace(self.brokers, broker_id, address)

    def to_secured(self, broker_id: int, listener: str, address: str) -> str:
        """Create a proxy in front of a secured listener and return its address."""
        return _replace(self.secured, (broker_id, listener), address)

    def to_controller(self, broker_id: int, address: str) -> str:
        """Create a proxy between a broker and the controller and return its address."""
        return _replace(self.controllers, broker_id, address)

    def heal(self) -> None:
        """Remove all faults from all proxies."""
        for proxy in self._all():
            proxy.heal()

    def of_broker(self, broker_id: int) -> list[TcpProxy]:
        """Return the proxies of all listeners of a broker."""
        secured = [proxy for (each, _), proxy in self.secured.items() if each == broker_id]
        return [self.brokers[broker_id], *secured]

    def _all(self) -> list[TcpProxy]:
        return [*self.brokers.values(), *self.secured.values(), *self.controllers.values()]

    def close(self) -> None:
        with ExitStack() as closing:
            for proxy in self._all():
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


def _replace(proxies: dict[_Key, TcpProxy], key: _Key, address: str) -> str:
    if key in proxies:
        proxies.pop(key).close()
    proxies[key] = TcpProxy(address)
    return proxies[key].address
