"""The `librdkafka` engine, which implements `client.port` with confluent-kafka.

Only this package imports `confluent_kafka`. librdkafka reports some errors only as global events,
logs to stderr and retries indefinitely. Callers of this package see none of this: every call
returns a result or raises an error of `pyspark_kafka.errors` in bounded time.
"""

from __future__ import annotations

from pyspark_kafka.client.librdkafka.admin import LibrdkafkaClient

__all__ = ["LibrdkafkaClient"]
