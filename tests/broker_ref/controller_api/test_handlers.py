"""Tests of the controller's APIs with encoded requests, in all versions."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Call, Wait
from broker_ref.api.k18_api_versions import ApiVersionsRequest
from broker_ref.api.k60_describe_cluster import DescribeClusterRequest
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.metadata_batches import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    decode_commits,
    decode_snapshot,
)
from broker_ref.controller.records import ConfigResourceType
from broker_ref.controller.topics import NewTopic
from broker_ref.controller_api import (
    APIS,
    k01_fetch,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k33_alter_configs,
    k37_create_partitions,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k56_alter_partition,
    k57_update_features,
    k59_fetch_snapshot,
    k60_describe_cluster,
    k62_broker_registration,
    k63_broker_heartbeat,
    k64_unregister_broker,
    k67_allocate_producer_ids,
)
from broker_ref.controller_api.contract import ControllerContext
from broker_ref.frozen import dataclass
from broker_ref.protocol.frames import (
    finish_header,
    read_prefix,
    read_response,
    request_frame,
    request_schema,
    response_frame,
)
from broker_ref.protocol.identifiers import Uuid
from broker_ref.protocol.reader import Cursor, read_message
from broker_ref.security.acls import AclCache
from broker_ref.security.authorizer import UNRESTRICTED, AuthHelper, StandardAuthorizer
from tests.broker_ref.controller.clusters import CLUSTER_ID, ControllerDriver
from tests.broker_ref.controller_api.test_messages import response_message


class Wire:
    """A client that sends encoded messages to a controller's handlers."""

    def __init__(self, driver: ControllerDriver) -> None:
        self.driver = driver

    def send(
        self,
        api: Api[Any],
        request: object,
        version: int | None = None,
        *,
        auth: AuthHelper = UNRESTRICTED,
    ) -> Any:
        """Send a request and return the decoded response or the `Wait`."""
        version = api.versions[-1] if version is None else version
        frame = request_frame(
            api_key=api.key, version=version, correlation_id=5, client_id="test", message=request
        )
        cursor = Cursor(frame)
        schema = request_schema(api.key, version)
        finish_header(cursor, read_prefix(cursor), flexible=schema.__flexible__)
        side = ControllerContext(
            config=self.driver.config,
            cluster_id=CLUSTER_ID,
            controller=self.driver.controller,
            apis=lambda: tuple(APIS.values()),
        )
        call = Call(version=version, client_id="test", now_ms=self.driver.now_ms, auth=auth)
        outcome = api.handle(side, call, read_message(schema, api.request, cursor))
        return outcome if isinstance(outcome, Wait) else self.received(api, version, outcome)

    def received(self, api: Api[Any], version: int, outcome: object) -> Any:
        frame = response_frame(api_key=api.key, version=version, correlation_id=5, message=outcome)
        return read_response(
            api_key=api.key, version=version, message=response_message(api), frame=frame
        )


@pytest.fixture
def wire() -> Wire:
    return Wire(ControllerDriver(1, 2, 3, default_replication_factor="3"))


def fetch(offset: int, *, max_wait_ms: int = 0, topic_id: Uuid = METADATA_TOPIC_ID) -> object:
    partition = k01_fetch.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    topic = k01_fetch.FetchTopic(topic_id=topic_id, partitions=(partition,))
    return k01_fetch.FetchRequest(max_wait_ms=max_wait_ms, topics=(topic,))


def fetched(response: k01_fetch.FetchResponse) -> k01_fetch.FetchedPartition:
    return response.responses[0].partitions[0]


def test_metadata_is_fetched_in_commits(wire: Wire) -> None:
    response = fetched(wire.send(k01_fetch.API, fetch(0)))
    follower = ClusterMetadata()
    for commit in decode_commits(response.records or b""):
        follower.apply_commit(commit)
    assert follower.records() == wire.driver.metadata.records()
    assert response.high_watermark == follower.end_offset


def test_a_fetch_at_the_end_waits_for_a_change(wire: Wire) -> None:
    end_offset = wire.driver.metadata.end_offset
    waiting = wire.send(k01_fetch.API, fetch(end_offset, max_wait_ms=500))
    assert isinstance(waiting, Wait)
    assert waiting.keys == (k01_fetch.METADATA_CHANGED,)
    assert waiting.deadline_ms == wire.driver.now_ms + 500
    now_ms = wire.driver.now_ms
    assert waiting.operation.try_complete(now_ms) is None
    expired = wire.received(k01_fetch.API, 17, waiting.operation.expire(now_ms))
    assert fetched(expired).records == b""
    wire.driver.create_topic(NewTopic(name="t"))
    response = wire.received(k01_fetch.API, 17, waiting.operation.try_complete(now_ms))
    (commit,) = decode_commits(fetched(response).records or b"")
    assert commit.base_offset == end_offset


def test_a_broker_that_is_far_behind_gets_a_snapshot_in_parts(wire: Wire) -> None:
    wire.driver.restart()
    response = fetched(wire.send(k01_fetch.API, fetch(0, max_wait_ms=500)))
    end_offset = wire.driver.metadata.end_offset
    assert response.records == b""
    assert response.snapshot_id.end_offset == end_offset
    wire.driver.expire(2)  # The metadata changes, but the snapshot does not.
    data = b""
    size = None
    while size is None or len(data) < size:
        part = snapshot_part(wire, end_offset, len(data))
        assert (part.error_code, part.position) == (ErrorCode.none, len(data))
        data, size = data + part.unaligned_records, part.size
    follower = ClusterMetadata()
    follower.replace(decode_snapshot(data), end_offset)
    rest = fetched(wire.send(k01_fetch.API, fetch(end_offset)))
    for commit in decode_commits(rest.records or b""):
        follower.apply_commit(commit)
    assert follower.records() == wire.driver.metadata.records()
    beyond = snapshot_part(wire, end_offset, size)
    assert beyond.error_code is ErrorCode.position_out_of_range
    other = snapshot_part(wire, end_offset + 1, 0)
    assert other.error_code is ErrorCode.snapshot_not_found


def snapshot_part(wire: Wire, end_offset: int, position: int) -> k59_fetch_snapshot.SnapshotPart:
    wanted = k59_fetch_snapshot.RequestedSnapshot(
        partition=0,
        snapshot_id=k01_fetch.SnapshotId(end_offset=end_offset, epoch=0),
        position=position,
    )
    topic = k59_fetch_snapshot.RequestedTopic(name=METADATA_TOPIC, partitions=(wanted,))
    request = k59_fetch_snapshot.FetchSnapshotRequest(topics=(topic,), max_bytes=100)
    response: k59_fetch_snapshot.FetchSnapshotResponse = wire.send(k59_fetch_snapshot.API, request)
    return response.topics[0].partitions[0]


def test_fetches_of_unknown_topics_and_offsets(wire: Wire) -> None:
    end_offset = wire.driver.metadata.end_offset
    beyond = fetched(wire.send(k01_fetch.API, fetch(end_offset + 1, max_wait_ms=500)))
    assert beyond.error_code is ErrorCode.offset_out_of_range
    other = fetched(wire.send(k01_fetch.API, fetch(0, topic_id=Uuid(int=200))))
    assert other.error_code is ErrorCode.unknown_topic_id


def registration(
    broker_id: int, incarnation: int, cluster_id: str = CLUSTER_ID, security_protocol: int = 0
) -> object:
    listener = k62_broker_registration.Listener(
        name="PLAINTEXT", host="h", port=40_000, security_protocol=security_protocol
    )
    return k62_broker_registration.BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=cluster_id,
        incarnation_id=Uuid(int=incarnation),
        listeners=(listener,),
        rack="r",
    )


def test_a_broker_registers_heartbeats_and_unregisters(wire: Wire) -> None:
    registered = wire.send(k62_broker_registration.API, registration(9, 900))
    assert registered.error_code is ErrorCode.none

    def heartbeat(epoch: int, *, want_shut_down: bool = False) -> Any:
        request = k63_broker_heartbeat.BrokerHeartbeatRequest(
            broker_id=9,
            broker_epoch=epoch,
            current_metadata_offset=wire.driver.metadata.end_offset - 1,
            want_fence=False,
            want_shut_down=want_shut_down,
        )
        return wire.send(k63_broker_heartbeat.API, request)

    assert not heartbeat(registered.broker_epoch).is_fenced
    assert heartbeat(registered.broker_epoch + 1).error_code is ErrorCode.stale_broker_epoch
    duplicate = wire.send(k62_broker_registration.API, registration(9, 901))
    assert duplicate.error_code is ErrorCode.duplicate_broker_registration
    impostor = wire.send(k62_broker_registration.API, registration(3000, 902))
    assert impostor.error_code is ErrorCode.invalid_registration
    unknown = wire.send(k62_broker_registration.API, registration(9, 900, security_protocol=99))
    assert unknown.error_code is ErrorCode.invalid_registration
    foreign = wire.send(k62_broker_registration.API, registration(9, 900, "other"))
    assert foreign.error_code is ErrorCode.inconsistent_cluster_id
    assert wire.driver.metadata.brokers[9].port == 40_000
    ids = k67_allocate_producer_ids.AllocateProducerIdsRequest(
        broker_id=9, broker_epoch=registered.broker_epoch
    )
    first, second = (wire.send(k67_allocate_producer_ids.API, ids) for _ in range(2))
    assert second.producer_id_start == first.producer_id_start + first.producer_id_len
    assert heartbeat(registered.broker_epoch, want_shut_down=True).should_shut_down
    gone = k64_unregister_broker.UnregisterBrokerRequest(broker_id=9)
    assert wire.send(k64_unregister_broker.API, gone).error_code is ErrorCode.none
    again = wire.send(k64_unregister_broker.API, gone)
    assert again.error_code is ErrorCode.broker_id_not_registered
    stale = wire.send(k67_allocate_producer_ids.API, ids)
    assert stale.error_code is ErrorCode.stale_broker_epoch


@pytest.mark.parametrize("version", k56_alter_partition.API.versions)
def test_a_leader_shrinks_its_isr(wire: Wire, version: int) -> None:
    wire.driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2, 3)),)))
    partition = wire.driver.partition()
    members = tuple(
        k56_alter_partition.BrokerState(
            broker_id=broker, broker_epoch=wire.driver.metadata.brokers[broker].broker_epoch
        )
        for broker in (1, 3)
    )
    proposed = k56_alter_partition.ProposedPartition(
        partition_index=0,
        leader_epoch=0,
        partition_epoch=0,
        new_isr=(1, 3),
        new_isr_with_epochs=members,
    )
    request = k56_alter_partition.AlterPartitionRequest(
        broker_id=1,
        broker_epoch=wire.driver.metadata.brokers[1].broker_epoch,
        topics=(
            k56_alter_partition.ProposedTopic(topic_id=partition.topic_id, partitions=(proposed,)),
            k56_alter_partition.ProposedTopic(topic_id=Uuid(int=777), partitions=(proposed,)),
        ),
    )
    response = wire.send(k56_alter_partition.API, request, version)
    answer, unknown = (topic.partitions[0] for topic in response.topics)
    assert (answer.isr, answer.partition_epoch, answer.leader_epoch) == ((1, 3), 1, 0)
    assert unknown.error_code is ErrorCode.unknown_topic_id
    assert wire.driver.partition().isr == (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCreatePartitionsRequest(k37_create_partitions.CreatePartitionsRequest):
    """A CreatePartitions request with the timeout, which the handler ignores."""

    timeout_ms: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedDeleteTopicsRequest(k20_delete_topics.DeleteTopicsRequest):
    """A DeleteTopics request with the timeout, which the handler ignores."""

    timeout_ms: int = 1000


def test_topics_are_created_grown_and_deleted(wire: Wire) -> None:
    requested = k19_create_topics.RequestedTopic(
        name="t", num_partitions=1, replication_factor=-1, assignments=(), configs=()
    )
    made = wire.send(
        k19_create_topics.API,
        k19_create_topics.CreateTopicsRequest(topics=(requested,), validate_only=False),
    )
    assert (made.topics[0].error_code, made.topics[0].replication_factor) == (ErrorCode.none, 3)
    grown = wire.send(
        k37_create_partitions.API,
        TimedCreatePartitionsRequest(
            topics=(k37_create_partitions.RequestedTopic(name="t", count=3, assignments=None),),
            validate_only=False,
        ),
    )
    assert grown.results[0].error_code is ErrorCode.none
    assert len(wire.driver.metadata.topics["t"].partitions) == 3
    deleted = wire.send(
        k20_delete_topics.API,
        TimedDeleteTopicsRequest(topics=(k20_delete_topics.RequestedTopic(name="t"),)),
    )
    assert deleted.responses[0].error_code is ErrorCode.none
    assert wire.driver.metadata.topics == {}


def test_repeated_topics_are_rejected_before_the_authorization(wire: Wire) -> None:
    wire.driver.create_topic(NewTopic(name="t"))
    by_name = k20_delete_topics.RequestedTopic(name="t")
    by_id = k20_delete_topics.RequestedTopic(
        name=None, topic_id=wire.driver.metadata.topics["t"].topic_id
    )
    denied = AuthHelper(authorizer=StandardAuthorizer(acls=AclCache()))
    for topics, error_code in (
        ((by_name, by_name), ErrorCode.invalid_request),
        ((by_id, by_id), ErrorCode.invalid_request),
        ((by_name,), ErrorCode.topic_authorization_failed),
    ):
        request = TimedDeleteTopicsRequest(topics=topics)
        (response,) = wire.send(k20_delete_topics.API, request, auth=denied).responses
        assert response.error_code is error_code
        assert (response.name, response.topic_id) == (topics[0].name, topics[0].topic_id)


def test_configs_of_several_resources_are_altered_in_one_commit(wire: Wire) -> None:
    module = k44_incremental_alter_configs
    commits: list[None] = []
    wire.driver.controller.on_change = lambda: commits.append(None)

    def alter(*values: str) -> list[ErrorCode]:
        resources = tuple(
            module.AlteredResource(
                resource_type=ConfigResourceType.GROUP,
                resource_name=f"g{number}",
                configs=(
                    module.AlterableConfig(
                        name="consumer.session.timeout.ms", config_operation=0, value=value
                    ),
                ),
            )
            for number, value in enumerate(values)
        )
        request = module.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        return [one.error_code for one in wire.send(module.API, request, 1).responses]

    none, invalid = ErrorCode.none, ErrorCode.invalid_config
    assert alter("50000", "soon", "51000") == [none, invalid, none]
    assert len(commits) == 1
    assert alter(*["52000"] * 10_001) == [ErrorCode.policy_violation] * 10_001
    assert len(commits) == 1


@pytest.mark.parametrize("version", k44_incremental_alter_configs.API.versions)
def test_configs_are_altered_incrementally(wire: Wire, version: int) -> None:
    wire.driver.create_topic(NewTopic(name="t", configs={"segment.ms": "9"}))

    def alter(name: str, operation: int, value: str | None, kind: int = 2) -> ErrorCode:
        module = k44_incremental_alter_configs
        config = module.AlterableConfig(name=name, config_operation=operation, value=value)
        resource = module.AlteredResource(resource_type=kind, resource_name="t", configs=(config,))
        request = module.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        code: ErrorCode = wire.send(module.API, request, version).responses[0].error_code
        return code

    assert alter("retention.ms", 0, "5") is ErrorCode.none
    end_offset = wire.driver.metadata.end_offset
    assert alter("retention.ms", 0, "5") is ErrorCode.none
    assert wire.driver.metadata.end_offset == end_offset  # no record without a change
    assert alter("cleanup.policy", 2, "compact") is ErrorCode.none
    assert alter("cleanup.policy", 3, "delete") is ErrorCode.none
    assert alter("segment.ms", 1, None) is ErrorCode.none
    configs = wire.driver.metadata.topics["t"].configs
    assert configs == {"retention.ms": "5", "cleanup.policy": "compact"}
    assert alter("retention.ms", 0, "x") is ErrorCode.invalid_config
    assert alter("retention.ms", 2, "x") is ErrorCode.invalid_config
    assert alter("no.such", 0, "1") is ErrorCode.invalid_config
    assert alter("retention.ms", 0, None) is ErrorCode.invalid_request
    assert alter("retention.ms", 7, "1") is ErrorCode.invalid_request
    assert alter("retention.ms", 0, "1", kind=4) is ErrorCode.invalid_request
    assert alter("retention.ms", 0, "1", kind=3) is ErrorCode.invalid_request
    assert wire.driver.metadata.topics["t"].configs == configs


@pytest.mark.parametrize("version", k33_alter_configs.API.versions)
def test_configs_are_altered_as_a_whole(wire: Wire, version: int) -> None:
    wire.driver.create_topic(NewTopic(name="t", configs={"segment.ms": "9"}))
    resource, unknown = (
        k33_alter_configs.AlteredResource(
            resource_type=2,
            resource_name=name,
            configs=(k33_alter_configs.AlterableConfig(name="retention.ms", value="5"),),
        )
        for name in ("t", "u")
    )

    def alter(*resources: object, validate_only: bool) -> list[ErrorCode]:
        request = k33_alter_configs.AlterConfigsRequest(
            resources=resources,  # type: ignore[arg-type]
            validate_only=validate_only,
        )
        response = wire.send(k33_alter_configs.API, request, version)
        return [answer.error_code for answer in response.responses]

    wanted = [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    assert alter(resource, unknown, validate_only=True) == wanted
    assert wire.driver.metadata.topics["t"].configs == {"segment.ms": "9"}
    assert alter(resource, resource, validate_only=False) == [ErrorCode.invalid_request]
    assert alter(resource, unknown, validate_only=False) == wanted
    assert wire.driver.metadata.topics["t"].configs == {"retention.ms": "5"}


@pytest.mark.parametrize("version", k43_elect_leaders.API.versions)
def test_preferred_leaders_are_elected(wire: Wire, version: int) -> None:
    wire.driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2)), (1, (2, 1)))))
    wire.driver.expire(1)
    wire.driver.start(1)
    isr_of_all_in(wire.driver)
    assert wire.driver.partition().leader == 2
    named = k43_elect_leaders.TopicPartitions(topic="t", partitions=(0, 1, 2))
    request = k43_elect_leaders.ElectLeadersRequest(topic_partitions=(named,))
    response = wire.send(k43_elect_leaders.API, request, version)
    codes = [answer.error_code for answer in response.replica_election_results[0].partition_result]
    assert codes == [
        ErrorCode.none,
        ErrorCode.election_not_needed,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert wire.driver.partition().leader == 1
    every = k43_elect_leaders.ElectLeadersRequest(topic_partitions=None)
    nothing = wire.send(k43_elect_leaders.API, every, version)
    assert nothing.replica_election_results[0].partition_result == ()


def test_an_empty_list_is_not_all_partitions(wire: Wire) -> None:
    wire.driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2)),)))
    wire.driver.expire(1)
    wire.driver.start(1)
    isr_of_all_in(wire.driver)
    none = k43_elect_leaders.ElectLeadersRequest(topic_partitions=())
    response = wire.send(k43_elect_leaders.API, none, 2)
    assert response.replica_election_results == ()
    assert wire.driver.partition().leader == 2


def isr_of_all_in(driver: ControllerDriver) -> None:
    for partition in list(driver.metadata.partitions()):
        response = driver.propose(partition, partition.replicas)
        assert not isinstance(response, Exception), response


def test_reassignments_are_started_listed_and_cancelled(wire: Wire) -> None:
    wire.driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2)),)))

    def alter(replicas: tuple[int, ...] | None, *, keeps_factor: bool = False) -> ErrorCode:
        module = k45_alter_partition_reassignments
        partition = module.ReassignablePartition(partition_index=0, replicas=replicas)
        topic = module.ReassignableTopic(name="t", partitions=(partition,))
        request = module.AlterPartitionReassignmentsRequest(
            topics=(topic,), allow_replication_factor_change=not keeps_factor
        )
        code: ErrorCode = wire.send(module.API, request).responses[0].partitions[0].error_code
        return code

    def moving() -> list[tuple[tuple[int, ...], ...]]:
        request = k46_list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None)
        response = wire.send(k46_list_partition_reassignments.API, request)
        return [
            (partition.replicas, partition.adding_replicas, partition.removing_replicas)
            for topic in response.topics
            for partition in topic.partitions
        ]

    assert alter(None) is ErrorCode.no_reassignment_in_progress
    assert alter((3, 9)) is ErrorCode.invalid_replica_assignment
    assert alter((3, 1)) is ErrorCode.none
    assert moving() == [((3, 1, 2), (3,), (2,))]
    # Two replicas remain: a replica that is being removed does not count.
    assert alter((1, 2, 3), keeps_factor=True) is ErrorCode.invalid_replication_factor
    assert alter(None) is ErrorCode.none
    assert moving() == []
    assert wire.driver.partition().replicas == (1, 2)


def test_describe_cluster_of_the_controller(wire: Wire) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    response = wire.send(k60_describe_cluster.API, request, 1)
    assert (response.cluster_id, response.controller_id) == (CLUSTER_ID, 3000)
    for_brokers = DescribeClusterRequest(include_cluster_authorized_operations=False)
    mismatched = wire.send(k60_describe_cluster.API, for_brokers, 1)
    assert mismatched.error_code is ErrorCode.mismatched_endpoint_type
    for version in k18_api_versions.API.versions:
        served = wire.send(
            k18_api_versions.API,
            ApiVersionsRequest(client_software_name="a", client_software_version="1"),
            version,
        )
        assert {api.api_key for api in served.api_keys} == APIS.keys()


@pytest.mark.parametrize("version", k57_update_features.API.versions)
def test_features_are_updated_and_described(wire: Wire, version: int) -> None:
    def update(feature: str, level: int) -> Any:
        one = k57_update_features.UpdatedFeature(
            feature=feature, max_version_level=level, upgrade_type=2
        )
        request = k57_update_features.UpdateFeaturesRequest(feature_updates=(one,))
        return wire.send(k57_update_features.API, request, version)

    def finalized() -> dict[str, int]:
        requested = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        response = wire.send(k18_api_versions.API, requested)
        assert response.finalized_features_epoch == wire.driver.metadata.end_offset - 1
        return {one.name: one.max_version_level for one in response.finalized_features}

    invalid = ApiVersionsRequest(client_software_name="-", client_software_version="1")
    assert wire.send(k18_api_versions.API, invalid).error_code is ErrorCode.invalid_request
    refused = update("no.such.feature", 1)
    assert refused.error_code is ErrorCode.invalid_update_version
    assert "no.such.feature" in refused.error_message
    response = update("transaction.version", 1)
    if version == 0:  # This version cannot express a downgrade.
        assert response.error_code is ErrorCode.invalid_update_version
        assert finalized()["transaction.version"] == 2
        return
    assert response.error_code is ErrorCode.none
    assert [one.feature for one in response.results] == ["transaction.version"] * (version < 2)
    assert finalized()["transaction.version"] == 1
