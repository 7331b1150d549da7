"""Transactional producers of a virtual cluster that send single requests."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.features import FeatureUpdate, UpgradeType
from broker_ref.controller.metadata import TRANSACTION_STATE_TOPIC
from broker_ref.events import TimePassed
from broker_ref.log.batch import parse_batches
from broker_ref.log.control import Marker, decode_marker
from broker_ref.replication.partition import Partition
from broker_ref.transaction.coordinator import TransactionCoordinator
from broker_ref.transaction.transitions import Transaction
from integration.raw import request
from integration.simulation.cluster import host_of
from tests.broker_ref.node.clients import Clients, SentRequest
from tests.broker_ref.node.requests import batch
from tests.broker_ref.virtual import VirtualCluster

WRITE_TXN_MARKERS = 27
NAME = "tx"
DATA = (("t", 0),)
Producer = tuple[int, int]
"""Producer id and epoch."""


class Producers:
    """A cluster with topics `t` (led by broker 1) and `u` (led by the last one), and producers."""

    def __init__(
        self, brokers: int = 1, *, transaction_version: int = 2, **configs: int | bool
    ) -> None:
        self.cluster = VirtualCluster(
            *(
                BrokerConfig(
                    node_id=node_id,
                    offsets_topic_num_partitions=2,
                    transaction_state_log_num_partitions=1,
                    offsets_topic_replication_factor=brokers,
                    transaction_state_log_replication_factor=brokers,
                    **configs,  # type: ignore[arg-type]
                )
                for node_id in range(1, brokers + 1)
            )
        )
        self.cluster.start_all()
        self.clients = Clients(self.cluster)
        if transaction_version != 2:
            update = FeatureUpdate(
                feature="transaction.version",
                version=transaction_version,
                upgrade_type=UpgradeType.UNSAFE_DOWNGRADE,
            )
            self.cluster.controller.controller.update_features([update], validate_only=False)
        ids = tuple(range(1, brokers + 1))
        self.clients.create_topic("t", *ids)
        self.clients.create_topic("u", *reversed(ids))
        self.find()

    # Coordinators and partitions

    def find(self) -> int:
        """Wait until there is a coordinator, and return its broker id."""
        found = -1

        def is_known() -> bool:
            nonlocal found
            broker_id = self.cluster.running[0]
            response = self.clients.call(
                broker_id, request("find_coordinator", 2, key=NAME, key_type=1)
            )
            found = response.node_id
            if response.error_code is not ErrorCode.none:
                return False
            return found in self.cluster.running and self.coordinator(found).is_ready()

        self.cluster.run_until(is_known)
        return found

    def coordinator(self, broker_id: int) -> CoordinatorState:
        broker = self.cluster.broker(broker_id).broker
        assert broker is not None
        return CoordinatorState(broker.transactions)

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        for broker_id in self.cluster.running:
            broker = self.cluster.broker(broker_id).broker
            assert broker is not None
            for partition in broker.replicas.partitions():
                key = partition.key
                if (key.topic, key.partition) == (topic, index) and partition.is_leader:
                    return partition
        raise AssertionError(f"no broker leads {topic}-{index}")

    def markers(self, topic: str = "t", index: int = 0) -> list[tuple[Marker, int, int]]:
        """Return the markers in a partition: type, producer epoch, coordinator epoch."""
        log = self.partition(topic, index).log
        data = log.read(
            0, end_offset=log.log_end_offset, max_bytes=1 << 24, at_least_one_batch=True
        )
        found, position = [], 0
        for header in parse_batches(data) if data else ():
            if header.is_control:
                marker = decode_marker(data[position : position + header.size_bytes])
                assert marker is not None
                found.append((marker.marker, header.producer_epoch, marker.coordinator_epoch))
            position += header.size_bytes
        return found

    # Requests

    def send(self, api: str, version: int, /, **fields: Any) -> SentRequest:
        return self.clients.send(self.find(), request(api, version, **fields))

    def call(self, api: str, version: int, /, **fields: Any) -> Any:
        return self.clients.outcome(self.send(api, version, **fields))

    def start(self, *, version: int = 5, was: Producer = (-1, -1), **fields: Any) -> Any:
        values: dict[str, Any] = {"transactional_id": NAME, "transaction_timeout": 60_000}
        if version >= 3:
            values |= {"producer_id": was[0], "producer_epoch": was[1]}
        return self.call("init_producer_id", version, **(values | fields))

    def generate_producer_id(self) -> int:
        """Return an id of the coordinator's block, for a producer without transactions."""
        response = self.start(version=1, transactional_id=None)
        assert response.error_code is ErrorCode.none
        return int(response.producer_id)

    def started(self, **fields: Any) -> Producer:
        """Start a producer, with retries, and return its id and epoch."""
        response: Any = None

        def is_there() -> bool:
            nonlocal response
            response = self.start(**fields)
            return response.error_code not in (
                ErrorCode.concurrent_transactions,
                ErrorCode.coordinator_load_in_progress,
                ErrorCode.coordinator_not_available,
            )

        self.cluster.run_until(is_there)
        assert response.error_code is ErrorCode.none, response
        return response.producer_id, response.producer_epoch

    def send_add_partitions(
        self, producer: Producer, *partitions: tuple[str, int], version: int = 3
    ) -> SentRequest:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions or DATA:
            topics.setdefault(topic, []).append(index)
        return self.send(
            "add_partitions_to_txn",
            version,
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                {"name": name, "partitions": indexes} for name, indexes in topics.items()
            ],
        )

    def add(self, producer: Producer, *partitions: tuple[str, int], version: int = 3) -> Any:
        """Send AddPartitionsToTxn; return the error codes, or one code if all are equal."""
        response = self.clients.outcome(
            self.send_add_partitions(producer, *partitions, version=version)
        )
        return only(
            result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        )

    def add_offsets(self, producer: Producer, group: str = "g") -> ErrorCode:
        code: ErrorCode = self.call(
            "add_offsets_to_txn",
            3,
            transactional_id=NAME,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        ).error_code
        return code

    def send_end(self, producer: Producer, *, commit: bool, version: int) -> SentRequest:
        return self.send(
            "end_txn",
            version,
            transactional_id=NAME,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )

    def end(self, producer: Producer, *, commit: bool = True, version: int = 4) -> Any:
        sent = self.send_end(producer, commit=commit, version=version)
        return self.clients.outcome(sent)

    def produce(
        self,
        producer: Producer,
        value: str = "v",
        *,
        topic: str = "t",
        sequence: int = 0,
        version: int = 11,
    ) -> ErrorCode:
        records = batch(
            value,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            is_transactional=True,
        )
        found = self.cluster.broker(self.cluster.running[0]).metadata.partition(topic, 0)
        assert found is not None
        response = self.clients.call(
            found.leader,
            request(
                "produce",
                version,
                transactional_id=NAME,
                acks=-1,
                timeout=5_000,
                topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
            ),
        )
        ((partition,),) = (each.partition_responses for each in response.responses)
        code: ErrorCode = partition.error_code
        return code

    def describe(self, name: str = NAME) -> Any:
        """Return the only state of DescribeTransactions. kio cannot decode a missing start time."""
        (state,) = self.call(
            "describe_transactions", 0, transactional_ids=[name]
        ).transaction_states
        return state

    @property
    def state(self) -> str:
        """The name of the transaction state, or an empty string for an unknown id."""
        value = self.coordinator(self.find()).value
        return "" if value is None else value.state.title

    def wait_for(self, state: str) -> None:
        self.cluster.run_until(lambda: self.state == state)

    def listed(self, version: int = 2, **filters: Any) -> Any:
        return self.call("list_transactions", version, **filters)

    # Injected faults

    def kill(self, broker_id: int) -> None:
        """Kill a broker as `kill -9` does: unsynced writes are kept."""
        self.cluster.kill(host_of(broker_id))

    def check_replication(self) -> None:
        """Make the leader check the high watermark of the coordinator's partition."""
        partition = self.partition(TRANSACTION_STATE_TOPIC)
        broker_id = partition.metadata.leader
        broker = self.cluster.broker(broker_id).broker
        assert broker is not None
        broker.replicas.mark_changed(partition.key)
        self.cluster.handle(broker_id, TimePassed())

    def restart_all(self) -> None:
        for broker_id in self.cluster.running:
            self.cluster.stop_broker(broker_id)
        for broker_id in self.cluster.configs:
            self.cluster.start_broker(broker_id)
        self.find()


class CoordinatorState:
    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    def is_ready(self) -> bool:
        """Return whether the coordinator has loaded the only partition."""
        return [shard.is_active for shard in self._coordinator._shards.values()] == [True]

    @property
    def value(self) -> Transaction | None:
        """The state of the transactional id, if it exists."""
        return self._coordinator.transactions().get(NAME)


def only(codes: Any) -> Any:
    """Return the error code if all codes are equal, else all of them."""
    found = list(codes)
    return found[0] if len(set(found)) == 1 else found
