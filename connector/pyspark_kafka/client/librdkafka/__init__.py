"""The engine `librdkafka`: the port `client.port` over confluent-kafka.

Only this package imports `confluent_kafka`. It hides librdkafka's global error events, its logs on
stderr and its endless retries: every call returns a result or raises an error of
`pyspark_kafka.errors` in bounded time.
"""

from __future__ import annotations

from pyspark_kafka.client.librdkafka.admin import LibrdkafkaClient

__all__ = ["LibrdkafkaClient"]
