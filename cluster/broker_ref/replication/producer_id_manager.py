"""Allocate producer ids. Each id is used at most once in a cluster.

The controller durably allocates blocks of producer ids to brokers. A broker assigns the ids of its
current block, and requests the next block before the current block is used up. After a crash, the
remaining ids of a block are never used. Source: Kafka's `RPCProducerIdManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.frozen import dataclass

PRODUCER_IDS: Final = "producer ids"
"""The purgatory key of requests that wait for a producer id."""

WAIT_FOR_IDS_MS: Final = 1_000
"""Maximum time that a request waits for a producer id."""

PREFETCH_AT: Final = 0.1
"""The next block is requested when at most this fraction of a block remains."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """A request for a block of producer ids."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """A response with a block of producer ids, or with an error code."""

    error_code: ErrorCode
    producer_id_start: int
    producer_id_len: int


class ProducerIdManager:
    """The current and next blocks of producer ids. `wake` is called when a new block arrives."""

    def __init__(
        self,
        *,
        controller: ControllerClient,
        broker_id: int,
        broker_epoch: Callable[[], int],
        wake: Callable[[Hashable], None],
    ) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._wake = wake
        self._block = range(0)
        self._ids_left_to_prefetch = 0
        self._next_block: range | None = None
        self._is_asking = False

    def generate_producer_id(self) -> int | None:
        """Return an unused producer id, or None if the broker must wait for the next block."""
        if not self._block and self._next_block is not None:
            self._block, self._next_block = self._next_block, None
            self._ids_left_to_prefetch = int(len(self._block) * PREFETCH_AT)
        producer_id = None
        if self._block:
            producer_id = self._block[0]
            self._block = self._block[1:]
        if len(self._block) <= self._ids_left_to_prefetch and self._next_block is None:
            self._request_block()
        return producer_id

    def _request_block(self) -> None:
        if self._is_asking:
            return
        self._is_asking = True
        self._controller.send(
            purpose="producer-ids",
            api_key=67,
            version=0,
            request=AllocateProducerIdsRequest(
                broker_id=self._broker_id, broker_epoch=self._broker_epoch()
            ),
            response=AllocateProducerIdsResponse,
            on_response=self._handle_response,
            on_failure=self._failed,
        )

    def _handle_response(self, response: AllocateProducerIdsResponse) -> None:
        self._is_asking = False
        if response.error_code is not ErrorCode.none:
            logger.warning("Failed to allocate producer ids: %s", response.error_code.name)
            return
        first = response.producer_id_start
        self._next_block = range(first, first + response.producer_id_len)
        self._wake(PRODUCER_IDS)

    def _failed(self, reason: str) -> None:
        self._is_asking = False
        logger.warning("Failed to allocate producer ids: %s", reason)
