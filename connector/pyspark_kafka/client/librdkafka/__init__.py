"""The engine `librdkafka`: the port of `client.port` over confluent-kafka.

Only this package imports `confluent_kafka`. It keeps librdkafka's own ways (global error events,
logs on stderr, endless retries) inside: what leaves is an answer, or one error of
`pyspark_kafka.errors`, in bounded time.
"""

from __future__ import annotations

from pyspark_kafka.client.librdkafka.admin import LibrdkafkaClient

__all__ = ["LibrdkafkaClient"]
