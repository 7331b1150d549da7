"""Ids for producers, each handed out once in the life of the cluster.

Purpose: draw ids from blocks that the controller has noted durably, and have the next block before
the present one is used up. Invariant: after a crash the rest of a block is never used. What it must
not know: producers. Source: Kafka's `RPCProducerIdManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient

PRODUCER_IDS: Final = "producer ids"
"""What those wait for who want an id and find none."""

WAIT_FOR_IDS_MS: Final = 1_000
"""How long a producer may have to wait for them."""

PREFETCH_AT: Final = 0.1
"""The part of a block that is left when the next one is asked for."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """Who wants a block."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """The block, or why there is none."""

    error_code: ErrorCode
    producer_id_start: int
    producer_id_len: int


class ProducerIds:
    """The present block and the next; `wake` is told when a block has come."""

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

    def next(self) -> int | None:
        """An id that nobody has had; None where the next block has yet to come."""
        if not self._block and self._next_block is not None:
            self._block, self._next_block = self._next_block, None
            self._ids_left_to_prefetch = int(len(self._block) * PREFETCH_AT)
        producer_id = None
        if self._block:
            producer_id = self._block[0]
            self._block = self._block[1:]
        if len(self._block) <= self._ids_left_to_prefetch and self._next_block is None:
            self._ask()
        return producer_id

    def _ask(self) -> None:
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
            on_response=self._answered,
            on_failure=self._failed,
        )

    def _answered(self, response: AllocateProducerIdsResponse) -> None:
        self._is_asking = False
        if response.error_code is not ErrorCode.none:
            logger.warning("the controller gives no producer ids: %s", response.error_code.name)
            return
        first = response.producer_id_start
        self._next_block = range(first, first + response.producer_id_len)
        self._wake(PRODUCER_IDS)

    def _failed(self, reason: str) -> None:
        self._is_asking = False
        logger.warning("the controller gives no producer ids: %s", reason)
