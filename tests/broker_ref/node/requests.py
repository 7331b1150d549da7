"""Common requests as kio entities."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.index import load_request_schema
from kio.schema.create_topics.v7.request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

from broker_ref.log.batch import encode_batch
from broker_ref.log.records import Record
from integration.simulation.event_queue import START_MS
from tests.broker_ref.node.driver import NodeDriver


def batch(
    *values: str, key: bytes | None = b"k", timestamp: int = START_MS, **kwargs: Any
) -> bytes:
    records = [Record(timestamp=timestamp, key=key, value=value.encode()) for value in values]
    return bytes(encode_batch(records, **kwargs))


def request(api_key: int, version: int, **fields: Any) -> Any:
    """Return a request of any version, with kio's field names."""
    schema: Any = load_request_schema(api_key, version)
    return schema(**fields)


def ms(milliseconds: int) -> Any:
    return timedelta(milliseconds=milliseconds)


def create_topic(driver: NodeDriver, name: str, partitions: int = 1, **configs: str) -> Any:
    """Create a topic; config names have underscores instead of dots."""
    made = driver.call(
        CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=name,  # type: ignore[arg-type]
                    num_partitions=partitions,  # type: ignore[arg-type]
                    replication_factor=1,  # type: ignore[arg-type]
                    assignments=(),
                    configs=tuple(
                        CreatableTopicConfig(name=key.replace("_", "."), value=value)
                        for key, value in configs.items()
                    ),
                ),
            ),
            timeout=ms(1000),
            validate_only=False,
        )
    )
    assert made.topics[0].error_code is ErrorCode.none, made
    return made.topics[0].topic_id


def produce(
    records: bytes | None,
    *,
    topic: str = "t",
    partition: int = 0,
    acks: int = -1,
    timeout: int = 1000,
) -> Any:
    values: Any = {"index": partition, "records": records}
    data = PartitionProduceData(**values)
    return ProduceRequest(
        transactional_id=None,
        acks=acks,  # type: ignore[arg-type]
        timeout=ms(timeout),
        topic_data=(
            TopicProduceData(
                name=topic,  # type: ignore[arg-type]
                partition_data=(data,),
            ),
        ),
    )


def fetch(
    *partitions: tuple[int, int],
    topic: str = "t",
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    isolation_level: int = 0,
    session: tuple[int, int] = (0, -1),
    replica_id: int = -1,
) -> Any:
    """Return a fetch request for (partition, offset) pairs of one topic."""
    values: Any = {
        "replica_id": replica_id,
        "max_wait": ms(max_wait),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session[0],
        "session_epoch": session[1],
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    shared: Any = {
        "current_leader_epoch": leader_epoch,
        "last_fetched_epoch": last_fetched_epoch,
        "log_start_offset": -1,
        "partition_max_bytes": partition_max_bytes,
    }
    pairs: Any = partitions
    wanted = tuple(FetchPartition(partition=p, fetch_offset=o, **shared) for p, o in pairs)
    named: Any = topic
    return FetchRequest(topics=(FetchTopic(topic=named, partitions=wanted),), **values)


def produced(response: Any) -> Any:
    ((partition,),) = (topic.partition_responses for topic in response.responses)
    return partition


def fetched(response: Any) -> Any:
    (topic,) = response.responses
    return topic.partitions
