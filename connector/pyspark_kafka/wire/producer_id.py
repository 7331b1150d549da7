"""Sends InitProducerId for an idempotent producer without a transactional id.

Source: InitProducerIdRequest.json of Kafka; KIP-98, KIP-360.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch
from pyspark_kafka.wire.connection import Connection, Request, entity_request
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api

_TRANSACTION_TIMEOUT_MS: Final = 60_000
"""The broker ignores this field if there is no transactional id."""


def request_producer_id(router: Router, *, deadline: float) -> ProducerIdAndEpoch:
    """Request a new producer id from any broker.

    Raises `ApiError` and the same errors as `call_any`.
    """

    def make_request(connection: Connection) -> Request[Any]:
        version = connection.versions.choose(Api.INIT_PRODUCER_ID)
        return entity_request(
            Api.INIT_PRODUCER_ID,
            version,
            transactional_id=None,
            transaction_timeout=_TRANSACTION_TIMEOUT_MS,
        )

    response = router.call_any(make_request, deadline=deadline)
    if response.error_code is not ErrorCode.none:
        raise ApiError(response.error_code, "requesting a producer id")
    return ProducerIdAndEpoch(
        producer_id=response.producer_id, producer_epoch=response.producer_epoch
    )
