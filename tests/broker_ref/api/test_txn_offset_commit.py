"""Tests of TxnOffsetCommit, and of OffsetFetch with `require_stable`.

The tests simulate the transaction coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.coordination.replies import Reply
from broker_ref.events import ConnectionOpened, Effect
from broker_ref.group.offset_metadata_manager import OffsetMetadataManager
from broker_ref.group.records import OffsetCommitValue, decode_value
from broker_ref.log.batch import decode_records, parse_batches
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from integration.raw import request
from integration.simulation.cluster import PORT, host_of
from tests.broker_ref.node.driver import NodeDriver, only_response
from tests.broker_ref.node.requests import create_topic

OFFSETS = PartitionKey(topic="__consumer_offsets", partition=0)
PartitionErrorCodes = Mapping[PartitionKey, ErrorCode]


class TransactionCoordinator:
    """A simulated coordinator; it delays its response if `response` is None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, verifies: bool = True) -> None:
        self.verifications: list[Any] = []
        self.waiting: list[Reply[PartitionErrorCodes]] = []
        self.response: PartitionErrorCodes | None = {}
        self.driver = NodeDriver(
            BrokerConfig(
                offsets_topic_num_partitions=1,
                offset_metadata_max_bytes=10,
                transaction_partition_verification_enable=verifies,
            )
        )
        create_topic(self.driver, "t", 3)
        monkeypatch.setattr(AddPartitionsToTxnManager, "add_or_verify_transaction", self._verify)

    def _verify(self, *arguments: Any, add: bool) -> Reply[PartitionErrorCodes]:
        self.verifications.append((*arguments, add))
        reply: Reply[PartitionErrorCodes] = Reply(self.driver.broker.replicas.mark_changed)
        if self.response is None:
            self.waiting.append(reply)
        else:
            reply.complete(self.response)
        return reply

    def make_offsets_topic(self) -> None:
        self.driver.call(request("find_coordinator", 2, key="g", key_type=0))

    def commit(self, *offsets: tuple[int, int], **changed: Any) -> list[ErrorCode]:
        """Commit (partition, offset) pairs of topic t and return the error codes."""
        return codes(self.driver.call(commit_request(*offsets, **changed)))

    def complete_verification(self) -> list[Effect]:
        """Process the coordinator's responses and return the broker's effects."""
        opened = ConnectionOpened(connection_id=2, peer="p:1", local=(host_of(1), PORT))
        return self.driver.handle(opened)

    def end(self, *, commit: bool, partition: int = 0, epoch: int = 0) -> ErrorCode:
        """Write a marker that ends the transaction in a partition of the offsets topic."""
        topic = {"name": OFFSETS.topic, "partition_indexes": [partition]}
        marker = {
            "producer_id": 7,
            "producer_epoch": epoch,
            "transaction_result": commit,
            "topics": [topic],
            "coordinator_epoch": 0,
        }
        response = self.driver.call(request("write_txn_markers", 1, markers=[marker]))
        code = response.markers[0].topics[0].partitions[0].error_code
        assert isinstance(code, ErrorCode)
        return code

    def fetch(
        self, *partitions: int, version: int = 8, require_stable: bool = True
    ) -> dict[int, tuple[int, ErrorCode]]:
        """Return (offset, error code) by partition of topic t, by default of all partitions."""
        topics = None
        if partitions:
            topics = [{"name": "t", "partition_indexes": list(partitions)}]
        requested: dict[str, Any] = {"group_id": "g", "topics": topics}
        if version >= 8:
            requested = {"groups": [requested]}
        response = self.driver.call(
            request("offset_fetch", version, **requested, require_stable=require_stable)
        )
        group = response.groups[0] if version >= 8 else response
        assert group.error_code is ErrorCode.none
        return {
            one.partition_index: (one.committed_offset, one.error_code)
            for topic in group.topics
            for one in topic.partitions
        }


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> TransactionCoordinator:
    made = TransactionCoordinator(monkeypatch)
    made.make_offsets_topic()
    return made


def commit_request(
    *offsets: tuple[int, int], version: int = 3, metadata: str | None = "m", **changed: Any
) -> Any:
    partitions = [
        {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        | ({"committed_leader_epoch": 2} if version >= 2 else {})
        for partition, offset in offsets
    ]
    fields: dict[str, Any] = {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": 7,
        "producer_epoch": 0,
        "topics": [{"name": "t", "partitions": partitions}],
    }
    return request("txn_offset_commit", version, **(fields | changed))


def codes(response: Any) -> list[ErrorCode]:
    return [one.error_code for one in response.topics[0].partitions]


@pytest.mark.parametrize("version", range(6))
def test_a_group_is_verified_once(coordinator: TransactionCoordinator, version: int) -> None:
    assert coordinator.commit((0, 5), (1, 6), version=version) == [ErrorCode.none] * 2
    assert coordinator.commit((2, 7), version=version) == [ErrorCode.none]
    assert coordinator.verifications == [("x", 7, 0, (OFFSETS,), version >= 5)]
    assert coordinator.end(commit=True, partition=1) is ErrorCode.unknown_topic_or_partition
    assert coordinator.end(commit=True) is ErrorCode.none
    assert coordinator.fetch(0, 1, 2) == {
        0: (5, ErrorCode.none), 1: (6, ErrorCode.none), 2: (7, ErrorCode.none),
    }  # fmt: skip
    assert coordinator.commit((0, 8), version=version) == [ErrorCode.none]
    assert len(coordinator.verifications) == 2


@pytest.mark.parametrize("version", [3, 4, 5])
def test_groups_are_added_even_if_verification_is_off(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    made = TransactionCoordinator(monkeypatch, verifies=False)
    made.make_offsets_topic()
    assert made.commit((0, 5), version=version) == [ErrorCode.none]
    assert len(made.verifications) == (version >= 5)


def test_nothing_is_written_before_the_verification(
    coordinator: TransactionCoordinator,
) -> None:
    coordinator.response = None
    requested = commit_request((0, 5))
    assert coordinator.driver.send(requested) == []
    partition = coordinator.driver.broker.groups.check_coordinator("g")
    assert partition.log.log_end_offset == 0
    (reply,) = coordinator.waiting
    reply.complete({OFFSETS: ErrorCode.none})
    assert codes(only_response(requested, coordinator.complete_verification())) == [ErrorCode.none]
    assert partition.log.log_end_offset == 1


def test_a_marker_during_the_verification_causes_another_one(
    coordinator: TransactionCoordinator,
) -> None:
    """The marker ends the previous transaction, while the producer is already in the next one."""
    coordinator.commit((0, 5), version=5)
    coordinator.response = None
    requested = commit_request((0, 6), version=4, producer_epoch=1)
    assert coordinator.driver.send(requested) == []
    coordinator.end(commit=True, epoch=1)
    coordinator.waiting[0].complete({OFFSETS: ErrorCode.none})
    assert coordinator.complete_verification() == []
    coordinator.driver.close(2)
    (_, again) = coordinator.waiting
    again.complete({OFFSETS: ErrorCode.none})
    assert codes(only_response(requested, coordinator.complete_verification())) == [ErrorCode.none]
    coordinator.end(commit=True, epoch=1)
    assert coordinator.fetch(0) == {0: (6, ErrorCode.none)}


@pytest.mark.parametrize(
    ("response", "version", "expected"),
    [
        (ErrorCode.transaction_abortable, 3, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, 4, ErrorCode.transaction_abortable),
        (ErrorCode.invalid_txn_state, 3, ErrorCode.invalid_txn_state),
        (ErrorCode.invalid_producer_epoch, 3, ErrorCode.invalid_producer_epoch),
        (ErrorCode.concurrent_transactions, 5, ErrorCode.concurrent_transactions),
        (ErrorCode.network_exception, 3, ErrorCode.coordinator_load_in_progress),
        (ErrorCode.network_exception, 1, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, 3, ErrorCode.not_coordinator),
    ],
)
def test_unverified_offsets_are_not_written(
    coordinator: TransactionCoordinator, response: ErrorCode, version: int, expected: ErrorCode
) -> None:
    coordinator.response = {OFFSETS: response}
    assert coordinator.commit((0, 5), version=version) == [expected]
    assert coordinator.fetch(0) == {0: (-1, ErrorCode.none)}


def test_invalid_offsets_do_not_prevent_the_others(
    coordinator: TransactionCoordinator,
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert coordinator.commit((9, 1)) == [unknown]
    assert coordinator.verifications == []
    too_large = coordinator.commit((9, 1), (1, 1), metadata="x" * 11)
    assert too_large == [unknown, ErrorCode.offset_metadata_too_large]
    assert coordinator.commit((0, 5), (9, 1)) == [ErrorCode.none, unknown]
    coordinator.end(commit=True)
    assert coordinator.fetch(0, 1) == {0: (5, ErrorCode.none), 1: (-1, ErrorCode.none)}


def test_group_errors_apply_to_all_existing_partitions(
    coordinator: TransactionCoordinator,
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    refused = coordinator.commit((0, 5), (9, 1), generation_id=3)
    assert refused == [ErrorCode.illegal_generation, unknown]
    too_large = coordinator.commit((0, 5), metadata="x" * 11, generation_id=3)
    assert too_large == [ErrorCode.illegal_generation]
    requested = len(coordinator.verifications)
    assert coordinator.commit((0, 5), group_id="") == [ErrorCode.invalid_group_id]
    assert len(coordinator.verifications) == requested


def test_without_the_offsets_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TransactionCoordinator(monkeypatch)
    assert made.commit((0, 5)) == [ErrorCode.coordinator_not_available]
    assert made.verifications == []


def test_a_group_that_is_being_loaded(
    coordinator: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = ApiError(ErrorCode.coordinator_load_in_progress, "it is read")

    def refuse(*_: object) -> None:
        raise loading

    monkeypatch.setattr(OffsetMetadataManager, "commit_transactional", refuse)
    for version, expected in (
        (1, ErrorCode.coordinator_not_available),
        (2, ErrorCode.coordinator_load_in_progress),
    ):
        assert coordinator.commit((0, 5), version=version) == [expected]


def test_offset_records_have_kafkas_format(coordinator: TransactionCoordinator) -> None:
    """Batches have sequence 0, and values have no topic id, because the request has none."""
    coordinator.commit((0, 5), metadata=None)
    partition = coordinator.driver.broker.groups.check_coordinator("g")
    data = partition.log.read(0, end_offset=1, max_bytes=1 << 20, at_least_one_batch=True)
    (header,) = parse_batches(data)
    assert (header.is_transactional, header.is_control) == (True, False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 0)
    (record,) = decode_records(data)
    assert record.value is not None
    assert decode_value(record.value) == OffsetCommitValue(
        offset=5, leader_epoch=2, metadata="", commit_timestamp_ms=coordinator.driver.now_ms
    )


@pytest.mark.parametrize("version", [7, 8])
def test_an_offset_in_an_open_transaction_is_unstable(
    coordinator: TransactionCoordinator, version: int
) -> None:
    coordinator.commit((0, 5))
    coordinator.end(commit=True)
    coordinator.commit((0, 6), (1, 1))
    unstable = (-1, ErrorCode.unstable_offset_commit)
    before, nothing = (5, ErrorCode.none), (-1, ErrorCode.none)
    assert coordinator.fetch(0, 1, 2, version=version) == {0: unstable, 1: unstable, 2: nothing}
    assert coordinator.fetch(version=version) == {0: unstable}
    assert coordinator.fetch(0, 1, version=version, require_stable=False) == {
        0: before, 1: nothing,
    }  # fmt: skip
    coordinator.end(commit=False)
    assert coordinator.fetch(0, 1, version=version) == {0: before, 1: nothing}
