"""Applies injected faults to the requests that a node receives.

Before each request, `Faults` determines an action. The action delays or rejects the request, drops
the request or its response, or closes the connection. Invariant: without fault rules, each request
requires only one additional attribute access.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.events import ConnectionId
from broker_ref.fault_requests import request_info
from broker_ref.faults import (
    Delay,
    Drop,
    DropResponse,
    Faults,
    Hold,
    Refuse,
    RequestInfo,
    Rule,
)
from broker_ref.node.dispatch import Dispatcher, Request
from broker_ref.protocol.identifiers import Uuid
from broker_ref.schedule import Schedule

Serve = Callable[[Request], None]


class FaultGate:
    """The faults injected into one node. `serve` handles the requests that no fault affects."""

    def __init__(
        self,
        *,
        faults: Faults,
        node_id: int,
        metadata: ClusterMetadata,
        schedule: Schedule,
        dispatcher: Dispatcher,
        serve: Serve,
    ) -> None:
        self._faults = faults
        self._node_id = node_id
        self._metadata = metadata
        self._schedule = schedule
        self._dispatcher = dispatcher
        self._serve = serve
        self._held: list[tuple[Rule, Request]] = []

    def admit(self, request: Request, now_ms: int) -> None:
        """Serve a request, or apply the action of a fault rule to it."""
        if not self._faults.is_active:
            self._serve(request)
            return
        action = self._faults.on_request(self._describe(request), now_ms)
        connection_id = request.pending.connection_id
        match action:
            case Delay():
                self._schedule.at(action.until_ms, lambda _: self._serve(request))
            case Hold():
                self._held.append((action.rule, request))
            case Drop():
                self._dispatcher.close_connection(
                    connection_id, "an injected fault dropped the request"
                )
            case Refuse():
                self._dispatcher.refuse(request, action.error_code)
            case DropResponse():
                pending = dataclasses.replace(request.pending, drops_response=True)
                self._serve(dataclasses.replace(request, pending=pending))
            case _:
                self._serve(request)

    def release(self) -> None:
        """Serve the requests that are no longer held by a fault rule."""
        held, self._held = self._held, []
        for rule, request in held:
            if rule.is_holding:
                self._held.append((rule, request))
            else:
                self._serve(request)

    def remove_requests(self, connection_id: ConnectionId) -> None:
        """Discard the held requests of a client that has disconnected."""
        self._held = [
            (rule, request)
            for rule, request in self._held
            if request.pending.connection_id != connection_id
        ]

    def _describe(self, request: Request) -> RequestInfo:
        header = request.pending.header
        return request_info(
            request.message,
            node_id=self._node_id,
            api_key=header.api_key,
            version=header.api_version,
            client_id=header.client_id,
            topic_name=self._topic_name,
        )

    def _topic_name(self, topic_id: Uuid) -> str | None:
        topic = self._metadata.topics_by_id.get(topic_id)
        return None if topic is None else topic.name
