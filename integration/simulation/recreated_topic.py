"""A topic that an administrator deletes and creates again while a client writes to it.

The client writes each value once, with acks=all. Checked invariants: no value is in two topics with
the same name, and an acknowledged value is committed in one of them. A record may be lost together
with its topic.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from integration.simulation.administrator import Administrator
from integration.simulation.client import Call, Client, Script, Sleep, TopicPartition
from integration.simulation.invariants import RECREATED_TOPIC, InvariantChecker
from integration.simulation.messages import request
from integration.simulation.producers import encode, produce_request, produced

_PARTITION: Final = TopicPartition(RECREATED_TOPIC, 0)


class RecreatedTopic:
    """The administrator and the writer of the topic. The administrator stops at `until_ms`."""

    def __init__(
        self,
        client: Client,
        administrator: Administrator,
        checker: InvariantChecker,
        *,
        pace_ms: int,
        until_ms: int,
    ) -> None:
        self.is_done = False
        """Whether a record was acknowledged after the last deletion."""
        self._client = client
        self._administrator = administrator
        self._checker = checker
        self._pace_ms = pace_ms
        self._until_ms = until_ms
        self._is_recreating = True
        client.spawn(self._recreate())
        client.spawn(self._write())

    def _recreate(self) -> Script:
        random = self._client.random
        yield from self._administrator.create(RECREATED_TOPIC)
        while self._client.now_ms < self._until_ms:
            yield Sleep(ms=random.randint(200, 2_000))
            yield Call(
                broker_id=self._client.any_broker(),
                request=request("delete_topics", topic_names=[RECREATED_TOPIC], timeout=1_000),
            )
            yield Sleep(ms=random.choice((0, 0, 20, 200)))
            yield from self._administrator.create(RECREATED_TOPIC)
        self._is_recreating = False
        while not self.is_done:  # A late request may delete the topic again.
            yield from self._administrator.create(RECREATED_TOPIC)
            yield Sleep(ms=500)

    def _write(self) -> Script:
        client, number = self._client, 0
        while not self.is_done:
            yield Sleep(ms=client.random.randint(1, self._pace_ms))
            leader = client.leader(_PARTITION)
            if leader is None:
                if not self._is_recreating:  # a delayed request can delete the topic at the end
                    yield from self._administrator.create(RECREATED_TOPIC)
                client.forget_leaders(RECREATED_TOPIC)
                yield from client.find_leaders(RECREATED_TOPIC)
                continue
            number += 1
            value = f"{client.name}:{number}".encode()
            is_last = not self._is_recreating
            request = produce_request(_PARTITION, encode([value], client.now_ms))
            response = produced((yield Call(broker_id=leader.broker_id, request=request)))
            if response is not None and response.error_code is ErrorCode.none:
                self._checker.acknowledged_in_any(_PARTITION, value, response.base_offset)
                self.is_done = is_last
            else:
                client.forget_leaders(RECREATED_TOPIC)
