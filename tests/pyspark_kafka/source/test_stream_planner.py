"""Tests of stream planning: the start of a query, the end of each micro-batch, data loss."""

from __future__ import annotations

import logging
import re

import pytest

from pyspark_kafka.errors import (
    CheckpointError,
    DataLossError,
    OffsetError,
    OptionError,
    PysparkKafkaError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.source.record_sizes import RecordSizes
from pyspark_kafka.source.stream_planner import StreamPlanner
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import (
    FakeTime,
    offset_reader,
    source_options,
    spans,
    tp,
)


class Query:
    def __init__(self, client: FakeClient, **options: str) -> None:
        self.client, self.time = client, FakeTime()
        if not options.keys() & {"assign", "subscribe", "subscribePattern"}:
            options["subscribe"] = "t"
        parsed = source_options(streaming=True, **options)
        reader = offset_reader(client, parsed, self.time)
        sizes = RecordSizes(client, parsed)
        self.planner = StreamPlanner(reader, parsed, sizes, now_ms=self.time.now_ms)

    def spans(self, start: PartitionOffsets, end: PartitionOffsets) -> list[tuple[str, int, int]]:
        return spans(self.planner.plan(start, end))


def assert_object(
    error: PysparkKafkaError, topic: str, partition: int, offset: int | None = None
) -> None:
    assert (error.topic, error.partition, error.offset) == (topic, partition, offset)


@pytest.fixture
def log() -> FakeLog:
    return FakeLog(start=2, end=9, stable=7)


@pytest.fixture
def client(log: FakeLog) -> FakeClient:
    return FakeClient({"t": FakeTopic({0: log})})


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        pytest.param({}, 7, id="latest-is-the-last-stable-offset"),
        pytest.param({"isolation_level": "read_uncommitted"}, 9, id="latest-uncommitted"),
        pytest.param({"startingOffsets": "earliest"}, 2, id="earliest"),
        pytest.param({"startingOffsets": '{"t":{"0":5}}'}, 5, id="offset"),
        pytest.param({"startingOffsets": '{"t":{"0":-1}}'}, 7, id="offset-latest"),
        pytest.param({"startingTimestamp": "4000"}, 4, id="timestamp"),
    ],
)
def test_initial_offsets(client: FakeClient, options: dict[str, str], offset: int) -> None:
    assert Query(client, **options).planner.initial_offsets() == {tp("t"): offset}


MOVING = [
    pytest.param({}, id="latest"),
    pytest.param({"startingOffsets": '{"t":{"0":-1}}'}, id="offset-latest"),
    pytest.param(
        {"startingTimestamp": "99000", "startingOffsetsByTimestampStrategy": "latest"},
        id="timestamp-not-reached",
    ),
    pytest.param({"startingOffsets": "committed", "group_id": "g"}, id="committed"),
]


@pytest.mark.parametrize("has_start", [True, False], ids=["spark-4.2", "spark-4.0"])
@pytest.mark.parametrize("options", MOVING)
def test_a_moving_start_results_in_an_empty_first_micro_batch(
    client: FakeClient, log: FakeLog, options: dict[str, str], has_start: bool
) -> None:
    client.committed["g", tp("t")] = 7
    query = Query(client, **options)
    start = query.planner.initial_offsets() if has_start else None
    log.stable = log.end = 12
    client.committed["g", tp("t")] = 11
    first = query.planner.latest_offsets(start)
    assert query.planner.initial_offsets() == first, "Spark calls the method again for the batch"
    assert query.spans(query.planner.initial_offsets(), first) == []
    log.stable = log.end = 15
    second = query.planner.latest_offsets(first if has_start else None)
    assert query.spans(first, second) == [("t-0", first[tp("t")], 15)]


@pytest.mark.parametrize("options", MOVING)
def test_a_first_micro_batch_replayed_by_the_next_process_is_empty(
    client: FakeClient, log: FakeLog, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    client.committed["g", tp("t")] = 7
    planned = Query(client, **options).planner
    end = planned.latest_offsets(planned.initial_offsets())
    log.stable = log.end = 12
    client.committed["g", tp("t")] = 11
    restarted = Query(client, **options)
    assert restarted.spans(restarted.planner.initial_offsets(), end) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert options or "'latest'" in caplog.text
    assert restarted.spans(end, restarted.planner.latest_offsets(end)) == [("t-0", 7, 12)]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest"},
        {"startingOffsets": '{"t":{"0":-2}}'},
        {"startingTimestamp": "4000"},
    ],
)
def test_records_of_a_replayed_first_micro_batch_that_are_deleted_are_lost(
    client: FakeClient, log: FakeLog, options: dict[str, str]
) -> None:
    query = Query(client, **options)
    end = query.planner.latest_offsets(query.planner.initial_offsets())
    log.start, log.end, log.stable = 20, 25, 25
    restarted = Query(client, **options)
    with pytest.raises(DataLossError) as caught:
        restarted.spans(restarted.planner.initial_offsets(), end)
    assert_object(caught.value, "t", 0, 7)
    forgiving = Query(client, failOnDataLoss="false", **options)
    assert forgiving.spans(forgiving.planner.initial_offsets(), end) == []


def test_compacted_records_of_a_replayed_first_micro_batch_are_not_lost(
    client: FakeClient, log: FakeLog
) -> None:
    query = Query(client, startingTimestamp="4000")
    end = query.planner.latest_offsets(query.planner.initial_offsets())
    log.gaps, log.end, log.stable = frozenset(range(2, 8)), 12, 12
    restarted = Query(client, startingTimestamp="4000")
    assert restarted.spans(restarted.planner.initial_offsets(), end) == []


def test_a_replayed_first_micro_batch_keeps_its_records_if_the_timestamp_strategy_changes(
    client: FakeClient,
) -> None:
    options = {"startingTimestamp": "4000"}
    planned = Query(client, **options).planner
    end = planned.latest_offsets(planned.initial_offsets())
    restarted = Query(client, startingOffsetsByTimestampStrategy="latest", **options)
    assert restarted.spans(restarted.planner.initial_offsets(), end) == [("t-0", 4, 7)]


def test_a_first_micro_batch_with_a_fixed_start_is_replayed_with_the_same_range(
    client: FakeClient, log: FakeLog, caplog: pytest.LogCaptureFixture
) -> None:
    planned = Query(client, startingOffsets="earliest").planner
    end = planned.latest_offsets(planned.initial_offsets())
    log.stable = log.end = 12
    restarted = Query(client, startingOffsets="earliest")
    assert restarted.spans(restarted.planner.initial_offsets(), end) == [("t-0", 2, 7)]
    assert re.search(r"'startingOffsets'.*\bt-0\b", caplog.text)


def test_a_partition_that_was_added_after_the_first_micro_batch_is_not_data_loss(
    client: FakeClient,
) -> None:
    planned = Query(client, startingOffsets="earliest").planner
    end = planned.latest_offsets(planned.initial_offsets())
    client.topics["t"].partitions[1] = FakeLog(start=0, end=3, stable=3)
    restarted = Query(client, startingOffsets="earliest")
    assert restarted.spans(restarted.planner.initial_offsets(), end) == [("t-0", 2, 7)]
    assert restarted.spans(end, restarted.planner.latest_offsets(end)) == [("t-1", 0, 3)]


def test_a_start_after_the_log_end_is_data_loss(client: FakeClient) -> None:
    options = {"startingOffsets": '{"t":{"0":1000}}'}
    with pytest.raises(DataLossError, match="'startingOffsets'") as caught:
        Query(client, **options).planner.initial_offsets()
    assert_object(caught.value, "t", 0, 1000)
    forgiving = Query(client, **options, failOnDataLoss="false").planner
    assert forgiving.initial_offsets() == {tp("t"): 9}


def test_a_temporarily_missing_partition_continues_at_its_offset(client: FakeClient) -> None:
    query = Query(client, subscribe="t,t2", failOnDataLoss="false", startingOffsets="earliest")
    client.topics["t2"] = topic(5)
    start = query.planner.initial_offsets()
    end = query.planner.latest_offsets(start)
    assert query.spans(start, end) == [("t-0", 2, 7), ("t2-0", 0, 5)]
    hidden = client.topics.pop("t2")
    without = query.planner.latest_offsets(end)
    assert query.spans(end, without) == []
    client.topics["t2"] = hidden
    hidden.partitions[0].end = 8
    assert query.spans(without, query.planner.latest_offsets(without)) == [("t2-0", 5, 8)]


def test_initial_offsets_of_missing_topics_and_partitions(client: FakeClient) -> None:
    with pytest.raises(UnknownTopicOrPartitionError) as missing_topic:
        Query(client, subscribe="nope").planner.initial_offsets()
    assert missing_topic.value.topic == "nope"
    with pytest.raises(OptionError) as missing_partition:
        Query(client, assign='{"t":[3]}').planner.initial_offsets()
    assert missing_partition.value.option == "assign"
    assert_object(missing_partition.value, "t", 3)


def test_micro_batches_follow_the_log(client: FakeClient, log: FakeLog) -> None:
    query = Query(client, startingOffsets="earliest")
    start = query.planner.initial_offsets()
    end = query.planner.latest_offsets(start)
    assert query.spans(start, end) == [("t-0", 2, 7)]
    assert query.planner.latest_offsets(end) == end
    log.stable = log.end = 12
    assert query.planner.latest_known == {tp("t"): 7}
    assert query.planner.latest_offsets(end) == {tp("t"): 12} == query.planner.latest_known


def test_a_batch_that_is_planned_again_needs_no_request(client: FakeClient) -> None:
    query = Query(client)
    start, end = {tp("t"): 3}, {tp("t"): 6}
    first = query.planner.plan(start, end)
    requests = len(client.requests)
    assert query.planner.plan(dict(start), dict(end)) == first
    assert len(client.requests) == requests


def test_discovered_partitions_start_at_earliest(client: FakeClient) -> None:
    query = Query(client, subscribePattern="t.*")
    start = query.planner.latest_offsets(query.planner.initial_offsets())
    client.topics["t"].partitions[1] = FakeLog(end=3)
    client.topics["t2"] = topic(4)
    end = query.planner.latest_offsets(start)
    assert end == {tp("t"): 7, tp("t", 1): 3, tp("t2"): 4}
    assert query.spans(start, end) == [("t-1", 0, 3), ("t2-0", 0, 4)]


def test_a_discovered_partition_with_deleted_records_is_data_loss(client: FakeClient) -> None:
    start, end = {tp("t"): 7}, {tp("t"): 7, tp("t", 1): 5}
    client.topics["t"].partitions[1] = FakeLog(start=3, end=5)
    with pytest.raises(DataLossError) as caught:
        Query(client).spans(start, end)
    assert_object(caught.value, "t", 1, 0)
    assert Query(client, failOnDataLoss="false").spans(start, end) == [("t-1", 3, 5)]


def test_a_pattern_without_a_match_yet() -> None:
    client = FakeClient({})
    query = Query(client, subscribePattern="t")
    assert query.planner.initial_offsets() == {} == query.planner.latest_offsets({})
    client.topics["t"] = topic(2)
    end = query.planner.latest_offsets({})
    assert query.spans({}, end) == [("t-0", 0, 2)]


def test_a_start_before_the_log_start_is_data_loss(client: FakeClient) -> None:
    start, end = {tp("t"): 0}, {tp("t"): 6}
    with pytest.raises(DataLossError) as caught:
        Query(client).spans(start, end)
    assert_object(caught.value, "t", 0, 0)
    assert Query(client, failOnDataLoss="false").spans(start, end) == [("t-0", 2, 6)]


def test_an_empty_range_is_not_data_loss(client: FakeClient) -> None:
    assert Query(client).spans({tp("t"): 0}, {tp("t"): 0}) == []


def test_a_deleted_partition_is_data_loss(client: FakeClient) -> None:
    start = {tp("t"): 3, tp("t2"): 5}
    query = Query(client, subscribe="t,t2")
    end = query.planner.latest_offsets(start)
    assert end == {tp("t"): 7}
    with pytest.raises(DataLossError) as caught:
        query.spans(start, end)
    assert_object(caught.value, "t2", 0)
    forgiving = Query(client, subscribe="t,t2", failOnDataLoss="false")
    assert forgiving.spans(start, forgiving.planner.latest_offsets(start)) == [("t-0", 3, 7)]


def test_metadata_without_the_topic_is_requested_again(client: FakeClient) -> None:
    query = Query(client, startingOffsets="earliest")
    start = query.planner.initial_offsets()
    client.unknown_topics_responses = 2
    assert query.planner.latest_offsets(start) == {tp("t"): 7}
    assert query.time.slept == [1.0, 1.0]
    assert query.spans(start, {tp("t"): 7}) == [("t-0", 2, 7)]


def test_a_topic_deleted_before_the_request_for_offsets_is_data_loss(client: FakeClient) -> None:
    query = Query(client, startingOffsets="earliest")
    start = query.planner.initial_offsets()
    client.on_list_offsets = client.topics.clear
    end = query.planner.latest_offsets(start)
    with pytest.raises(DataLossError) as caught:
        query.spans(start, end)
    assert_object(caught.value, "t", 0)


def test_a_missing_topic_that_was_never_read_is_unknown(client: FakeClient) -> None:
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        Query(client, subscribe="t,t3").planner.latest_offsets({tp("t"): 3})
    assert caught.value.topic == "t3"


def test_a_recreated_topic_is_data_loss_even_if_the_offsets_exist(client: FakeClient) -> None:
    query = Query(client)
    start = query.planner.initial_offsets()
    client.topics["t"] = topic(20)
    with pytest.raises(DataLossError, match=r"'t'.*\bid-") as caught:
        query.planner.latest_offsets(start)
    assert caught.value.topic == "t"


def test_a_recreated_topic_is_read_from_its_start(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(client, failOnDataLoss="false")
    start = query.planner.latest_offsets(query.planner.initial_offsets())
    client.topics["t"] = topic(start[tp("t")])
    end = query.planner.latest_offsets(start)
    assert end == {tp("t"): 0}
    assert query.spans(start, end) == []
    assert re.search(r"'t'.*\bid-", caplog.text)
    assert query.time.slept == [], "the earlier end is known without another request"
    for restarted in (query, Query(client, failOnDataLoss="false")):
        assert restarted.spans(start, end) == []
        assert restarted.spans(end, restarted.planner.latest_offsets(end)) == [("t-0", 0, 7)]
    client.topics["t"].partitions[0].end = 8
    assert query.spans({tp("t"): 7}, query.planner.latest_offsets({tp("t"): 7})) == [("t-0", 7, 8)]


def test_a_recreated_topic_is_read_within_the_rate_limit(client: FakeClient) -> None:
    query = Query(
        client, startingOffsets="earliest", failOnDataLoss="false", maxOffsetsPerTrigger="7"
    )
    position = {tp("t"): 7}
    assert query.planner.latest_offsets(position, limited=True) == position
    client.topics["t"] = topic(9)
    spans: list[tuple[str, int, int]] = []
    for _ in range(3):
        end = query.planner.latest_offsets(position, limited=True)
        if end != position:  # Otherwise, Spark runs no micro-batch.
            spans += query.spans(position, end)
        position = end
    assert spans == [("t-0", 0, 7), ("t-0", 7, 9)]


def test_a_topic_recreated_after_an_error_is_read_from_its_start(client: FakeClient) -> None:
    start, end = {tp("t"): 3, tp("t2"): 5}, {tp("t"): 7}
    restarted = Query(client, subscribe="t,t2", failOnDataLoss="false")
    assert restarted.spans(start, end) == [("t-0", 3, 7)]
    client.topics["t2"] = topic(8)
    assert restarted.spans(end, restarted.planner.latest_offsets(end)) == [("t2-0", 0, 8)]


def test_a_topic_deleted_while_a_micro_batch_is_planned(client: FakeClient) -> None:
    client.topics["t2"] = topic(8)
    start = {tp("t"): 3, tp("t2"): 5}
    query = Query(client, subscribe="t,t2", failOnDataLoss="false")
    end = query.planner.latest_offsets(start)
    client.topics.pop("t2")
    assert query.spans(start, end) == [("t-0", 3, 7)]


def test_a_new_topic_deleted_while_its_log_start_is_requested(client: FakeClient) -> None:
    client.topics["t2"] = topic(8)
    query = Query(
        client, subscribePattern="t.*", failOnDataLoss="false", maxOffsetsPerTrigger="100"
    )
    query.planner.prepare_available_now()
    requests: list[None] = []

    def delete() -> None:
        requests.append(None)
        if len(requests) == 2:  # The first one is for the latest offsets.
            client.topics.pop("t2")

    client.on_list_offsets = delete
    for _ in range(2):
        assert query.planner.latest_offsets({tp("t"): 3}, limited=True) == {tp("t"): 7}


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_backwards_latest_offsets_are_requested_again(
    client: FakeClient, log: FakeLog, level: str
) -> None:
    query = Query(client, isolation_level=level)
    log.stable = log.end = 5

    def catch_up() -> None:
        if len(query.time.slept) == 2:
            log.stable = log.end = 8

    client.on_list_offsets = catch_up
    end = query.planner.latest_offsets({tp("t"): 7})
    assert end == {tp("t"): 8 if level == "read_uncommitted" else 7}
    assert query.planner.latest_offsets(end) == {tp("t"): 8}


def test_latest_offsets_that_remain_backwards_are_data_loss(
    client: FakeClient, log: FakeLog
) -> None:
    start = {tp("t"): 7}
    log.stable = log.end = 5
    query = Query(client)
    end = query.planner.latest_offsets(start)
    assert end == {tp("t"): 5}
    with pytest.raises(DataLossError, match=r"\b5\b") as caught:
        query.spans(start, end)
    assert_object(caught.value, "t", 0, 7)
    forgiving = Query(client, failOnDataLoss="false")
    assert forgiving.spans(start, forgiving.planner.latest_offsets(start)) == []


def test_a_query_after_the_last_stable_offset_waits(client: FakeClient, log: FakeLog) -> None:
    query, start = Query(client), {tp("t"): 8}
    assert query.planner.latest_offsets(start) == start
    assert query.time.slept == []
    log.stable = log.end = 12
    assert query.planner.latest_offsets(start) == {tp("t"): 12}


def test_a_micro_batch_from_after_the_last_stable_offset(client: FakeClient) -> None:
    start, end = {tp("t"): 8}, {tp("t"): 7}
    with pytest.raises(OffsetError, match=r"\b8\b") as caught:
        Query(client).spans(start, end)
    assert caught.value.option == "kafka.isolation.level"
    assert_object(caught.value, "t", 0, 7)
    assert Query(client, failOnDataLoss="false").spans(start, end) == []


def test_a_checkpoint_with_other_topics_is_an_error(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    start, end = {tp("other"): 1, tp("t"): 3}, {tp("t"): 5}
    with pytest.raises(CheckpointError, match="subscribe=t") as caught:
        Query(client).spans(start, end)
    assert_object(caught.value, "other", 0)
    with caplog.at_level(logging.WARNING):
        assert Query(client, failOnDataLoss="false").spans(start, end) == [("t-0", 3, 5)]
    assert "other-0" in caplog.text


def test_a_checkpoint_with_partitions_that_are_not_assigned_is_an_error(client: FakeClient) -> None:
    with pytest.raises(CheckpointError, match="assign=t-0") as caught:
        Query(client, assign='{"t":[0]}').spans({tp("t", 4): 1}, {tp("t"): 5})
    assert_object(caught.value, "t", 4)


def test_the_rate_limit_is_divided_by_backlog() -> None:
    query = Query(FakeClient({"t": topic(60, 30, 0)}), maxOffsetsPerTrigger="9")
    start = {tp("t", n): 0 for n in range(3)}
    end = query.planner.latest_offsets(start, limited=True)
    assert end == {tp("t", 0): 6, tp("t", 1): 3, tp("t", 2): 0}
    assert query.planner.latest_known[tp("t", 0)] == 60


def test_the_rate_limit_applies_to_discovered_partitions() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=0, end=100)})})
    query = Query(client, maxOffsetsPerTrigger="10")
    assert query.planner.latest_offsets({}, limited=True) == {tp("t"): 10}


def test_the_limits_of_offsets_and_bytes_apply_together() -> None:
    log = FakeLog(end=1_000, value_bytes=1_000)
    client, start = FakeClient({"t": FakeTopic({0: log})}), {tp("t"): 0}

    def size(**options: str) -> int:
        return Query(client, **options).planner.latest_offsets(start, limited=True)[tp("t")]

    assert 90 <= size(maxBytesPerTrigger="100000") <= 100
    assert size(maxBytesPerTrigger="100000", maxOffsetsPerTrigger="10") == 10
    assert 90 <= size(maxBytesPerTrigger="100000", maxOffsetsPerTrigger="500") <= 100
    assert size(maxBytesPerTrigger="1") == 1, "the query makes progress"
    assert size(maxBytesPerTrigger="1g") == 1_000


def test_min_offsets_per_trigger_delays_a_micro_batch() -> None:
    client = FakeClient({"t": topic(10)})
    query = Query(client, minOffsetsPerTrigger="5", maxTriggerDelay="1m")
    latest = query.planner.latest_offsets
    first = latest({tp("t"): 9}, limited=True)
    assert first == {tp("t"): 10}, "the first micro-batch never waits"
    client.topics["t"].partitions[0].end = 12
    assert latest(first, limited=True) == first
    assert latest(first, limited=False) == {tp("t"): 12}, (
        "there is no delay for all available offsets"
    )
    query.time.now = 61
    assert latest(first, limited=True) == {tp("t"): 12}
    client.topics["t"].partitions[0].end = 17
    assert latest({tp("t"): 12}, limited=True) == {tp("t"): 17}


def test_available_now_ends_while_the_topic_grows() -> None:
    client = FakeClient({"t": topic(10)})
    query = Query(client, minOffsetsPerTrigger="3", maxOffsetsPerTrigger="4")
    query.planner.prepare_available_now()
    offsets, rounds = {tp("t"): 0}, 0
    while (end := query.planner.latest_offsets(offsets, limited=True)) != offsets:
        assert query.spans(offsets, end)
        client.topics["t"].partitions[0].end += 100
        client.topics["t"].partitions[rounds + 1] = FakeLog(end=5)
        offsets, rounds = end, rounds + 1
    assert offsets == {tp("t"): 10}
    assert rounds == 3


def test_planning_without_a_start_before_spark_4_2(client: FakeClient, log: FakeLog) -> None:
    query = Query(client)
    assert query.planner.latest_offsets(None) == {tp("t"): 7}
    assert query.spans({tp("t"): 8}, {tp("t"): 8}) == [], "Spark plans this range after a restart"
    assert query.planner.latest_offsets(None) == {tp("t"): 8}, "the end does not move backwards"
    log.stable = log.end = 4
    assert query.planner.latest_offsets(None) == {tp("t"): 4}
    assert len(query.time.slept) == 2, (
        "the planner requests the offsets again if they moved backwards"
    )


def test_a_replayed_micro_batch_reads_the_partition_that_it_discovered(client: FakeClient) -> None:
    client.topics["t"].partitions[1] = FakeLog(end=5)
    start, end = {tp("t"): 3}, {tp("t"): 7, tp("t", 1): 5}
    query = Query(client)
    assert query.spans(end, end) == [], "Spark 4.0 and 4.1 plan this range after a restart"
    assert query.spans(start, end) == [("t-0", 3, 7), ("t-1", 0, 5)]
