"""Offsets that a group member commits in transactions of its own producer (KIP-447).

Each process has its own transactional id, as with `exactly_once_v2` in Kafka Streams. The group
coordinator rejects commits from an earlier generation, and the process then aborts the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from integration.simulation.client import Client, Step
from integration.simulation.coordinators import TRANSACTION, Coordinator
from integration.simulation.messages import request
from integration.simulation.transactional_producer import CONCURRENT, FENCED, TIMEOUT_MS

NOT_COMMITTED: Final = ErrorCode.transaction_abortable
"""The result of a commit whose transaction was aborted because it had been open for too long."""


class OffsetTransactions:
    """The transactions of one process."""

    def __init__(self, client: Client, *, is_v2: bool) -> None:
        self._is_v2 = is_v2
        self._transactional_id = f"offsets-{client.name}"
        self._coordinator = Coordinator(client, self._transactional_id, TRANSACTION)
        self._producer_id = self._epoch = -1

    def commit(
        self,
        group: Coordinator,
        group_id: str,
        offset: Mapping[str, object],
        *,
        member: Mapping[str, Any],
        on_send: Callable[[int], None],
    ) -> Step:
        """Commit an offset in a transaction and return the error code.

        `member` contains the generation and the ids of the member. `on_send` is called before each
        TxnOffsetCommit request.
        """
        if self._producer_id < 0:
            yield from self._begin()
        code = yield from self._add_group(group_id)
        if code is ErrorCode.none:
            _, code = yield from group.call(
                request(
                    "txn_offset_commit",
                    is_v2=self._is_v2,
                    transactional_id=self._transactional_id,
                    group_id=group_id,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    topics=[offset],
                    **member,
                ),
                lambda response: response.topics[0].partitions[0].error_code,
                again_on=CONCURRENT | {ErrorCode.unknown_topic_or_partition},
                on_send=on_send,
            )
        if code in FENCED or not (yield from self._end(commit=code is ErrorCode.none)):
            self._producer_id = -1
            return NOT_COMMITTED
        return code

    def _begin(self) -> Step:
        response, code = yield from self._coordinator.call(
            request(
                "init_producer_id",
                transactional_id=self._transactional_id,
                transaction_timeout=TIMEOUT_MS,
            ),
            again_on=CONCURRENT,
        )
        if code is ErrorCode.none:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch

    def _add_group(self, group_id: str) -> Step:
        if self._is_v2:
            return ErrorCode.none
        _, code = yield from self._coordinator.call(
            request(
                "add_offsets_to_txn",
                transactional_id=self._transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=group_id,
            ),
            again_on=CONCURRENT,
        )
        return code

    def _end(self, *, commit: bool) -> Step:
        """End the transaction, and return whether this producer ended it."""
        response, code = yield from self._coordinator.call(
            request(
                "end_txn",
                is_v2=self._is_v2,
                transactional_id=self._transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                committed=commit,
            ),
            again_on=CONCURRENT,
        )
        if code is ErrorCode.none and self._is_v2:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        return code is ErrorCode.none
