"""How clients find coordinators and send them requests.

Purpose: FindCoordinator, again when a coordinator has moved. Invariant: a request is repeated after
retriable error codes. What it must not know: the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from integration.simulation.client import Ask, Client, Pause, Step
from integration.simulation.messages import request

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
    """The coordinator of a group or transactional id, as a client knows it."""

    def __init__(self, client: Client, key: str, key_type: int) -> None:
        self._client = client
        self._search = request("find_coordinator", key=key, key_type=key_type)
        self._broker_id: int | None = None

    def ask(
        self,
        question: RequestPayload,
        code_of: Callable[[Any], ErrorCode] = lambda response: response.error_code,
        *,
        again_on: frozenset[ErrorCode] = frozenset(),
        timeout_ms: int = 2_000,
        tries_max: int = 1_000_000,
    ) -> Step:
        """Return the response and its error code, after retries; (None, code) if retries are
        exhausted.
        """
        code = ErrorCode.network_exception
        for _ in range(tries_max):
            if self._broker_id is None:
                yield from self._find()
            assert self._broker_id is not None
            response = yield Ask(broker_id=self._broker_id, request=question, timeout_ms=timeout_ms)
            code = ErrorCode.network_exception if response is None else code_of(response)
            if code not in MOVED and code not in again_on:
                return response, code
            if code in MOVED:
                self._broker_id = None
            yield Pause(ms=self._client.random.randint(5, 60))
        return None, code

    def _find(self) -> Step:
        while self._broker_id is None:
            response = yield Ask(broker_id=self._client.any_broker(), request=self._search)
            if response is not None and response.error_code is ErrorCode.none:
                self._broker_id = response.node_id
            else:
                yield Pause(ms=self._client.random.randint(10, 100))
