"""The `librdkafka` engine, which implements `client.port` with confluent-kafka.

Only this package imports `confluent_kafka`. librdkafka reports some errors only as global events,
logs to stderr and retries indefinitely. This package hides that behavior from its callers: every
call returns a result or raises an error of `pyspark_kafka.errors` within a bounded time.
"""

from __future__ import annotations

from pyspark_kafka.client.librdkafka.admin import LibrdkafkaClient

__all__ = ["LibrdkafkaClient"]
