"""InitProducerId: the id by which brokers know a producer's sequences.

Purpose: one try of asking for an id without a transactional id. Invariant: nobody had the id
before. What it must not know: what is written with it. Source: InitProducerIdRequest.json of Kafka;
KIP-98, KIP-360.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch
from pyspark_kafka.wire.connection import Connection, Request, entity_request
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api

_LAST_VERSION: Final = 5
"""The next one is for two-phase commit."""
_TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Says nothing where there is no transactional id."""


def request_producer_id(router: Router, *, deadline: float) -> ProducerIdAndEpoch:
    """Ask any broker, as each of them can tell. Raises `ApiError` and what `call_any` raises."""

    def make(connection: Connection) -> Request[Any]:
        version = connection.versions.choose(Api.INIT_PRODUCER_ID, at_most=_LAST_VERSION)
        return entity_request(
            Api.INIT_PRODUCER_ID,
            version,
            transactional_id=None,
            transaction_timeout=_TRANSACTION_TIMEOUT_MS,
        )

    response = router.call_any(make, deadline=deadline)
    if response.error_code is not ErrorCode.none:
        raise ApiError(response.error_code, "asking for a producer id")
    return ProducerIdAndEpoch(
        producer_id=response.producer_id, producer_epoch=response.producer_epoch
    )
