"""Tests of Fetch with topic ids and leader epochs (KIP-516, KIP-320, KIP-392)."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.batches import batch, parse, values
from tests.conformance.eventually import eventually
from tests.conformance.wire import append, describe_topics, fetch, fetch_request, only, topic_id

TopicFactory = Callable[..., str]
BY_ID = 13


def test_response_contains_topic_ids(raw: RawConnection, topic: TopicFactory) -> None:
    first, second = topic(), topic()
    append(raw, first, batch(values("1")))
    append(raw, second, batch(values("2")))
    ids = {topic_id(raw, first): b"1", topic_id(raw, second): b"2"}
    response = raw.send(fetch_request({i: [{}] for i in ids}, version=BY_ID))
    found = {
        responses.topic_id: only(only(parse(only(responses.partitions).records)).records).value
        for responses in response.responses
    }
    assert found == ids


def test_unknown_topic_id(raw: RawConnection, topic: TopicFactory) -> None:
    known, unknown = topic_id(raw, topic()), uuid.uuid4()
    response = raw.send(fetch_request({known: [{}], unknown: [{}]}, version=13))
    codes = {t.topic_id: only(t.partitions).error_code for t in response.responses}
    assert codes == {known: ErrorCode.none, unknown: ErrorCode.unknown_topic_id}


def test_unknown_partition_of_a_known_topic_id(raw: RawConnection, topic: TopicFactory) -> None:
    response = fetch(raw, topic_id(raw, topic()), version=BY_ID, partition=1)
    assert response.error_code == ErrorCode.unknown_topic_or_partition


def test_old_id_of_a_recreated_topic_is_unknown(
    raw: RawConnection, topic: TopicFactory, cluster: Cluster
) -> None:
    # By name, a consumer would confuse the records of the new topic with those of the old one.
    name = topic()
    before = topic_id(raw, name)
    append(raw, name, batch(values("old")))
    raw.call("delete_topics", 5, topic_names=[name], timeout=30_000)
    unknown = ErrorCode.unknown_topic_or_partition
    eventually(lambda: only(describe_topics(raw, name).topics).error_code == unknown)
    cluster.create_topic(name, assignment=[[1]])
    append(raw, name, batch(values("new")))
    assert fetch(raw, before, version=BY_ID).error_code == ErrorCode.unknown_topic_id
    read = only(parse(fetch(raw, topic_id(raw, name), version=BY_ID).records))
    assert only(read.records).value == b"new"


def test_newer_leader_epoch_than_the_broker_has_is_unknown(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(values("a")))
    assert fetch(raw, name, current_leader_epoch=0).error_code == ErrorCode.none
    response = fetch(raw, name, current_leader_epoch=1)
    assert response.error_code == ErrorCode.unknown_leader_epoch
    assert not response.records


def test_fetch_with_a_matching_last_fetched_epoch(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b")))
    response = fetch(raw, name, 1, last_fetched_epoch=0)
    assert response.error_code == ErrorCode.none
    assert (response.diverging_epoch.epoch, response.diverging_epoch.end_offset) == (-1, -1)
    assert parse(response.records)


def test_no_preferred_read_replica_with_one_broker(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(values("a")))
    response = only(
        only(raw.send(fetch_request({name: [{}]}, rack_id="somewhere")).responses).partitions
    )
    assert (response.error_code, response.preferred_read_replica) == (ErrorCode.none, -1)
    assert parse(response.records)
