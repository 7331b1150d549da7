"""The options, columns and settings in Spark's Kafka integration guide for each kind of query.

Source: docs/streaming/structured-streaming-kafka-integration.md of Apache Spark. A test checks that
the table of cases covers the guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from integration.parity.case import READS, WRITES, Kind

_BATCH: Final = (Kind.BATCH_READ,)
_STREAM: Final = (Kind.STREAM_READ,)
_ALL: Final = READS + WRITES

OPTIONS: Final[Mapping[str, tuple[Kind, ...]]] = MappingProxyType(
    {
        "kafka.bootstrap.servers": _ALL,
        "assign": READS,
        "subscribe": READS,
        "subscribePattern": READS,
        "startingTimestamp": READS,
        "startingOffsetsByTimestamp": READS,
        "startingOffsets": READS,
        "endingTimestamp": _BATCH,
        "endingOffsetsByTimestamp": _BATCH,
        "endingOffsets": _BATCH,
        "failOnDataLoss": READS,
        "kafkaConsumer.pollTimeoutMs": READS,
        "fetchOffset.numRetries": READS,
        "fetchOffset.retryIntervalMs": READS,
        "maxOffsetsPerTrigger": _STREAM,
        "minOffsetsPerTrigger": _STREAM,
        "maxTriggerDelay": _STREAM,
        "minPartitions": READS,
        "maxRecordsPerPartition": READS,
        "groupIdPrefix": READS,
        "kafka.group.id": READS,
        "includeHeaders": _ALL,
        "startingOffsetsByTimestampStrategy": READS,
        "topic": WRITES,
        "key column": WRITES,
        "value column": WRITES,
        "headers column": WRITES,
        "topic column": WRITES,
        "partition column": WRITES,
        "kafka.partitioner.class": WRITES,
        "kafka.auto.offset.reset": READS,
        "kafka.key.deserializer": READS,
        "kafka.value.deserializer": READS,
        "kafka.key.serializer": WRITES,
        "kafka.value.serializer": WRITES,
        "kafka.enable.auto.commit": READS,
        "kafka.interceptor.classes": READS,
    }
)
"""The options, columns and Kafka settings of the guide."""

NOT_COMPARED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "`spark.kafka.consumer.cache.*`, `spark.kafka.consumer.fetchedData.cache.*`, "
        "`spark.kafka.producer.cache.*`": "They configure the client pools of Spark's connector. "
        "Ours has its own pools, and ignores Spark's configuration.",
        "`spark.sql.streaming.kafka.useDeprecatedOffsetFetching`": "It selects between two "
        "implementations in Spark's connector. The suite uses the default.",
        "`spark.kafka.clusters.*`, `spark.security.credentials.kafka.enabled`": "Delegation tokens "
        "need a Kerberos login or another secured cluster, and ours does not use them.",
        "`java.security.auth.login.config`": "It is a property of the JVM. Ours uses "
        "`kafka.sasl.jaas.config`.",
        "TLS and SASL": "The clusters of the suite are not secured. The guide lists the [tested "
        "cases](guide.md#security).",
    }
)
"""Parts of the guide that no case covers, with the reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldByTest:
    """A deviation that is checked by a test of the project, not by a case.

    `test` is the pytest node id of the test: the path of its file and the name of its function.
    """

    subject: str
    reason: str
    test: str


HELD_BY_TESTS: Final = (
    HeldByTest(
        subject="`CREATE TABLE ... USING`",
        reason="Spark does not pass the options of a table to Python data sources. Use `CREATE "
        "TEMPORARY VIEW`.",
        test="tests/spark/test_options_errors.py::"
        "test_a_temporary_view_is_an_alternative_to_a_table",
    ),
    HeldByTest(
        subject="rows that exceed the topic's `max.message.bytes`",
        reason="With Kafka's client 4.1.0, a write of Spark's connector can lose several such rows "
        "of one batch and succeed (KAFKA-19479). Whether this happens depends on timing. Ours "
        "fails.",
        test="tests/spark/test_stream_write.py::"
        "test_a_row_that_is_too_large_fails_the_query_and_a_restart_writes_it",
    ),
    HeldByTest(
        subject="JKS key stores and trust stores",
        reason="Ours rejects them, and the error explains how to convert them to PEM.",
        test="tests/pyspark_kafka/client/test_tls.py::test_unsupported_store_is_rejected",
    ),
)
