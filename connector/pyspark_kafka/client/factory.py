"""Which engine serves: from validated options to an open `KafkaClient`.

Purpose: the one place that knows the engines, each imported only when it is used. What it must
not know: what the client is for.
"""

from __future__ import annotations

from typing import Literal

from pyspark_kafka.client.base import KafkaClient
from pyspark_kafka.options import ClientOptions


def open_client(
    options: ClientOptions, *, role: Literal["consumer", "producer"] = "consumer"
) -> KafkaClient:
    """Open a client for reading (`consumer`) or writing; it connects when it is first asked.

    Raises `OptionError` for settings that the engine refuses.
    """
    from pyspark_kafka.client.librdkafka import LibrdkafkaClient  # noqa: PLC0415
    from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings  # noqa: PLC0415

    return LibrdkafkaClient(LibrdkafkaSettings.of(options, role))
