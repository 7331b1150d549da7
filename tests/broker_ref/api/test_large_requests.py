"""Tests that the work for a request is linear, not quadratic, in its entries."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker_ref.api import k02_list_offsets as list_offsets
from broker_ref.api import k32_describe_configs as describe_configs_api
from broker_ref.api import k50_describe_user_scram_credentials as describe_credentials_api
from broker_ref.api import k66_list_transactions as list_transactions_api
from broker_ref.api.contract import Call
from broker_ref.controller.metadata import Commit
from broker_ref.controller.records import ConfigResourceType, TopicRecord
from broker_ref.controller_api import k19_create_topics as create_topics
from broker_ref.controller_api import k20_delete_topics as delete_topics
from broker_ref.controller_api import k37_create_partitions as create_partitions
from broker_ref.controller_api.contract import ControllerContext
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.scram import ScramCredential
from integration.simulation.event_queue import START_MS
from tests.broker_ref.node.driver import NodeDriver
from tests.broker_ref.node.requests import create_topic, ms, request
from tests.broker_ref.work import CountedName, CountedNumber, assert_linear, count_calls

CALL = Call(version=5, client_id="test", now_ms=START_MS)


def unknown_names(entries: int) -> list[str]:
    return [CountedName(f"no such topic {index}") for index in range(entries)]


def side(driver: NodeDriver) -> ControllerContext:
    return driver.cluster.controller.side


def look_up_offsets(driver: NodeDriver, entries: int) -> None:
    partitions = tuple(
        list_offsets.RequestedPartition(partition_index=CountedNumber(index), timestamp=-1)
        for index in range(entries)
    )
    topic = list_offsets.RequestedTopic(name="t", partitions=partitions)
    list_offsets.handle(
        driver.broker, CALL, list_offsets.ListOffsetsRequest(replica_id=-1, topics=(topic,))
    )


def make_topics(driver: NodeDriver, entries: int) -> None:
    make(driver, unknown_names(entries))


def make(driver: NodeDriver, names: list[str], *assignments: create_topics.Assignment) -> None:
    count = -1 if assignments else 0
    topics = tuple(
        create_topics.RequestedTopic(
            name=name,
            num_partitions=count,
            replication_factor=-1,
            assignments=assignments,
            configs=(),
        )
        for name in names
    )
    create_topics.handle(
        side(driver), CALL, create_topics.CreateTopicsRequest(topics=topics, validate_only=True)
    )


def remove_one_topic_many_times(driver: NodeDriver, entries: int) -> None:
    delete_topics.handle(
        side(driver),
        CALL,
        delete_topics.DeleteTopicsRequest(
            topic_names=tuple(CountedName("t") for _ in range(entries))
        ),
    )


def grow_topics(driver: NodeDriver, entries: int) -> None:
    topics = tuple(
        create_partitions.RequestedTopic(name=name, count=2, assignments=None)
        for name in unknown_names(entries)
    )
    create_partitions.handle(
        side(driver),
        CALL,
        create_partitions.CreatePartitionsRequest(topics=topics, validate_only=True),
    )


def make_topics_that_may_collide(driver: NodeDriver, entries: int) -> None:
    metadata = side(driver).metadata
    others = [
        TopicRecord(name=f"there.is.{index}", topic_id=Uuid(int=index + 1))
        for index in range(entries)
    ]
    metadata.apply_commit(Commit(base_offset=metadata.end_offset, records=tuple(others)))
    make(driver, [CountedName(f"to_be_{index}") for index in range(entries)])


def make_a_topic_on_many_brokers(driver: NodeDriver, entries: int) -> None:
    broker_ids = tuple(CountedNumber(1) for _ in range(entries))
    make(driver, ["new"], create_topics.Assignment(partition_index=0, broker_ids=broker_ids))


def describe_configs(driver: NodeDriver, entries: int) -> None:
    resource = describe_configs_api.RequestedResource(
        resource_type=ConfigResourceType.TOPIC,
        resource_name="t",
        configuration_keys=tuple(unknown_names(entries)),
    )
    asked = describe_configs_api.DescribeConfigsRequest(resources=(resource,))
    calls = count_calls(lambda: describe_configs_api.handle(driver.broker, CALL, asked))
    assert calls < 10 * entries, "each config is compared with each key"


def describe_credentials(driver: NodeDriver, entries: int) -> None:
    credential = ScramCredential(salt=b"", stored_key=b"", server_key=b"", iterations=4096)
    names = [CountedName(f"user {index}") for index in range(entries)]
    driver.broker.metadata.scram_credentials = dict.fromkeys(
        [(1, name) for name in names], credential
    )
    asked = describe_credentials_api.DescribeUserScramCredentialsRequest(users=None)
    described = describe_credentials_api.handle(driver.broker, CALL, asked).results
    assert [each.user for each in described if each.credential_infos] == names


def list_transactions(driver: NodeDriver, entries: int) -> None:
    driver.call(request(10, 2, key="x", key_type=1))
    driver.call(request(22, 4, transactional_id="x", transaction_timeout=ms(60_000)))
    (transaction,) = driver.broker.transactions.transactions().values()
    known = dict.fromkeys(map(str, range(entries)), transaction)
    coordinator = SimpleNamespace(transactions=lambda: known)
    producer_ids = tuple(CountedNumber(10_000 + index) for index in range(entries))
    states = tuple(CountedName(f"no state {index}") for index in range(entries))
    for filters in ({"producer_id_filters": producer_ids}, {"state_filters": states}):
        asked = list_transactions_api.ListTransactionsRequest(**filters)
        broker: Any = SimpleNamespace(transactions=coordinator)
        assert not list_transactions_api.handle(broker, CALL, asked).transaction_states


@pytest.mark.parametrize(
    "ask",
    [
        describe_configs,
        describe_credentials,
        list_transactions,
        look_up_offsets,
        make_topics,
        make_topics_that_may_collide,
        make_a_topic_on_many_brokers,
        remove_one_topic_many_times,
        grow_topics,
    ],
)
def test_the_work_for_a_request_grows_linearly(ask: Callable[[NodeDriver, int], None]) -> None:
    driver = NodeDriver()
    create_topic(driver, "t")
    assert_linear(lambda entries: ask(driver, entries), entries=200)
