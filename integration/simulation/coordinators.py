"""Look up coordinators and send requests to them.

A client sends FindCoordinator again when a coordinator has moved to another broker. Invariant: a
request is retried if there is no response or the response contains a retriable error code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from integration.simulation.client import Call, Client, Sleep, Step
from integration.simulation.messages import Request, request

GROUP: Final = 0
TRANSACTION: Final = 1

MOVED: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)


class Coordinator:
    """The coordinator that a client has found for a group or a transactional id."""

    def __init__(self, client: Client, key: str, key_type: int) -> None:
        self._client = client
        self._search = request("find_coordinator", key=key, key_type=key_type)
        self._broker_id: int | None = None

    def call(
        self,
        payload: Request,
        code_of: Callable[[Any], ErrorCode] = lambda response: response.error_code,
        *,
        again_on: frozenset[ErrorCode] = frozenset(),
        on_send: Callable[[int], None] = lambda _broker_id: None,
        timeout_ms: int = 2_000,
        attempts_max: int = 1_000_000,
    ) -> Step:
        """Send a request, retry it if necessary, and return the response and its error code.

        `on_send` is called with the broker id before each attempt. If the retries are exhausted,
        return None and the last error code.
        """
        code = ErrorCode.network_exception
        for _ in range(attempts_max):
            if self._broker_id is None:
                yield from self._find()
            assert self._broker_id is not None
            on_send(self._broker_id)
            response = yield Call(broker_id=self._broker_id, request=payload, timeout_ms=timeout_ms)
            code = ErrorCode.network_exception if response is None else code_of(response)
            if code not in MOVED and code not in again_on:
                return response, code
            if code in MOVED:
                self._broker_id = None
            yield Sleep(ms=self._client.random.randint(5, 60))
        return None, code

    def _find(self) -> Step:
        while self._broker_id is None:
            response = yield Call(broker_id=self._client.any_broker(), request=self._search)
            if response is not None and response.error_code is ErrorCode.none:
                self._broker_id = response.node_id
            else:
                yield Sleep(ms=self._client.random.randint(10, 100))
