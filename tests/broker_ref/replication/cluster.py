"""Brokers that replicate in one process, with disks in memory and in virtual time.

Each broker is a `ReplicaManager` with its outbox, schedule and purgatory, and serves Fetch and
ListOffsets with the broker's own handlers. The controller is minimal: it publishes metadata,
answers AlterPartition, and elects leaders from the in-sync replicas.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Call, Wait
from broker_ref.api.k01_fetch import API as FETCH
from broker_ref.api.k02_list_offsets import API as LIST_OFFSETS
from broker_ref.config import BrokerConfig
from broker_ref.controller.client import CONTROLLER_ID, ControllerClient
from broker_ref.controller.metadata import Broker, ClusterMetadata, PartitionMetadata, Topic
from broker_ref.events import CloseChannel, RequestFailed, ResponseReceived, SendRequest
from broker_ref.log.batch import decode_records
from broker_ref.outbox import Outbox
from broker_ref.protocol.frames import (
    RequestHeader,
    finish_header,
    read_prefix,
    request_schema,
    response_frame,
)
from broker_ref.protocol.reader import Cursor, read_message
from broker_ref.replication.alter_partition_manager import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    DefaultAlterPartitionManager,
    PartitionChange,
    PartitionResponse,
    TopicResponse,
)
from broker_ref.replication.fetch_session_cache import FetchSessionCache
from broker_ref.replication.partition import Partition, PartitionKey, PendingReplication
from broker_ref.replication.purgatory import Purgatory
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.log.logs import split
from tests.broker_ref.memory_storage import MemoryStorage

TOPIC = "t"
TOPIC_ID = UUID(int=77)
LATENCY_MS = 1
SERVED: dict[int, Api[Any]] = {1: FETCH, 2: LIST_OFFSETS}

Reply = Callable[[bytes], None]


class VirtualBroker:
    def __init__(self, cluster: VirtualCluster, broker_id: int, storage: MemoryStorage) -> None:
        self.id = broker_id
        self.storage = storage
        self.epoch = cluster.next_broker_epoch()
        self.requests: list[Any] = []
        self._cluster = cluster
        self.schedule = Schedule(cluster.now_ms)
        self.outbox = Outbox(client_id=f"broker-{broker_id}")
        self.outbox.advance(cluster.now_ms)
        self.metadata = ClusterMetadata()
        self._purgatory: Purgatory[tuple[RequestHeader, Reply]] = Purgatory()
        cluster.register(self)
        config = BrokerConfig(node_id=broker_id, **cluster.configs)
        self.replicas = ReplicaManager(
            config=config,
            storage=storage,
            metadata=self.metadata,
            alter_partition_manager=DefaultAlterPartitionManager(
                broker_id=broker_id,
                broker_epoch=lambda: self.epoch,
                controller=ControllerClient(outbox=self.outbox, host="controller", port=1),
                schedule=self.schedule,
                clock=lambda: cluster.now_ms,
            ),
            broker_epoch=lambda: self.epoch,
            clock=lambda: cluster.now_ms,
            schedule=self.schedule,
            outbox=self.outbox,
            now_ms=cluster.now_ms,
        )
        self._contract: Any = SimpleNamespace(
            config=config,
            metadata=self.metadata,
            replicas=self.replicas,
            fetch_sessions=self._new_sessions(),
        )

    @property
    def partition(self) -> Partition:
        return self.replicas.partition(TOPIC, 0)

    def reset_sessions(self) -> int:
        """Drop the fetch sessions of this broker and return how many there were."""
        forgotten = len(self._contract.fetch_sessions)
        self._contract.fetch_sessions = self._new_sessions()
        return forgotten

    def _new_sessions(self) -> FetchSessionCache:
        return FetchSessionCache(
            slots=100,
            random_bytes=Random(self.epoch).randbytes,
            wake=self.replicas.mark_changed,
        )

    def ask(self, api: Api[Any], request: object) -> object:
        call = Call(version=api.versions[-1], client_id="test", now_ms=self._cluster.now_ms)
        return api.handle(self._contract, call, request)

    def serve(self, frame: bytes, reply: Reply) -> None:
        cursor = Cursor(frame)
        header = read_prefix(cursor)
        api = SERVED[header.api_key]
        schema = request_schema(api.key, header.api_version)
        header = finish_header(cursor, header, flexible=schema.__flexible__)
        request = read_message(schema, api.request, cursor)
        self.requests.append(request)
        call = Call(
            version=header.api_version, client_id=header.client_id, now_ms=self._cluster.now_ms
        )
        outcome = api.handle(self._contract, call, request)
        if isinstance(outcome, Wait):
            self._purgatory.watch(
                owner=(header, reply),
                operation=outcome.operation,
                keys=outcome.keys,
                deadline_ms=outcome.deadline_ms,
            )
        else:
            _reply(header, reply, outcome)

    def pass_time(self) -> None:
        now_ms = self._cluster.now_ms
        self.outbox.advance(now_ms)
        self.schedule.run(now_ms)
        for completion in self._purgatory.expire(now_ms):
            _reply(*completion.owner, completion.message)

    def settle(self) -> None:
        while changed := self.replicas.take_changed():
            sessions = self._contract.fetch_sessions.partitions_changed(changed)
            for completion in self._purgatory.check((*changed, *sessions), self._cluster.now_ms):
                _reply(*completion.owner, completion.message)

    def next_deadline_ms(self) -> int | None:
        deadlines = (
            self.schedule.next_deadline_ms(),
            self._purgatory.next_deadline_ms(),
            self.outbox.next_deadline_ms(),
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)


def _reply(header: RequestHeader, reply: Reply, message: object) -> None:
    reply(
        response_frame(
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            message=message,
        )
    )


@dataclass(order=True)
class _Delivery:
    at_ms: int
    number: int
    deliver: Callable[[], None] = dataclasses.field(compare=False)


class VirtualCluster:
    """Brokers 1 to n with partition 0 of topic `t`, and a controller."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        isr: tuple[int, ...] | None = None,
        min_isr: int = 1,
        configs: dict[str, Any] | None = None,
        topic_configs: dict[str, str] | None = None,
    ) -> None:
        ids = tuple(range(1, brokers + 1))
        self.now_ms = NOW_MS
        self.configs = configs or {}
        self.topic_configs = {"min.insync.replicas": str(min_isr), **(topic_configs or {})}
        self.registered: dict[int, Broker] = {}
        self.cut_links: set[tuple[int, int]] = set()
        self.held_metadata: set[int] = set()
        self.isr_refusals: list[ErrorCode] = []
        self.isr_requests: list[PartitionChange] = []
        self.isr_is_silent = False
        self.state = PartitionMetadata(
            topic_id=TOPIC_ID, topic=TOPIC, partition=0, replicas=ids, isr=isr or ids, leader=1,
            leader_epoch=0, partition_epoch=0,
        )  # fmt: skip
        self.brokers: dict[int, VirtualBroker] = {}
        self._disks: dict[int, MemoryStorage] = {}
        self._epochs = 100
        self._deliveries: list[_Delivery] = []
        self._numbers = 0
        for broker_id in ids:
            self.brokers[broker_id] = VirtualBroker(self, broker_id, MemoryStorage())
        self.publish()

    # Operations of tests

    @property
    def leader(self) -> VirtualBroker:
        return self.brokers[self.state.leader]

    def produce(
        self, value: bytes = b"v", *, acks_all: bool = True, count: int = 1
    ) -> PendingReplication:
        leader = self.leader
        result = leader.partition.append(
            batch(count, value=value, timestamp=self.now_ms),
            all_replicas=acks_all,
            now_ms=self.now_ms,
        )
        appended = PendingReplication(
            partition=leader.partition, required_offset=result.last_offset + 1
        )
        self.step()
        return appended

    def crash(self, broker_id: int, *, random: Random | None = None, fence: bool = True) -> None:
        """Kill a broker; with `random`, also lose some unflushed data of its machine."""
        broker = self.brokers.pop(broker_id)
        if random is not None:
            broker.storage = broker.storage.crash(random)
        self._disks[broker_id] = broker.storage
        if fence:
            self.fence(broker_id)

    def restart(self, broker_id: int) -> VirtualBroker:
        self.brokers[broker_id] = broker = VirtualBroker(
            self, broker_id, self._disks.pop(broker_id)
        )
        if self.state.leader == -1 and broker_id in self.state.isr:
            self.elect(broker_id)
        self.publish()
        return broker

    def isolate(self, broker_id: int) -> None:
        """Cut a broker off from the other brokers, but not from the controller."""
        for other in self.brokers:
            if other != broker_id:
                self.cut_links.update({(other, broker_id), (broker_id, other)})

    def fence(self, broker_id: int) -> None:
        """Remove the broker from the ISR unless it is the last member; elect an in-sync replica."""
        self.registered[broker_id] = dataclasses.replace(self.registered[broker_id], is_fenced=True)
        state = self.state
        isr = tuple(member for member in state.isr if member != broker_id) or state.isr
        alive = [member for member in isr if not self.registered[member].is_fenced]
        if state.leader == broker_id:
            self.elect(alive[0] if alive else -1, isr=isr)
        elif isr != state.isr:
            self.state = dataclasses.replace(
                state, isr=isr, partition_epoch=state.partition_epoch + 1
            )
        self.publish()

    def elect(self, leader: int, *, isr: tuple[int, ...] | None = None) -> None:
        self.state = dataclasses.replace(
            self.state,
            leader=leader,
            isr=self.state.isr if isr is None else isr,
            leader_epoch=self.state.leader_epoch + 1,
            partition_epoch=self.state.partition_epoch + 1,
        )
        self.publish()

    def publish(self) -> None:
        """Send the metadata to every broker for which it is not held back."""
        for broker in list(self.brokers.values()):
            if broker.id in self.held_metadata:
                continue
            self.fill(broker.metadata)
            broker.replicas.apply_metadata(self.now_ms)
        self.step()

    def fill(self, metadata: ClusterMetadata) -> None:
        metadata.brokers.clear()
        metadata.brokers.update(self.registered)
        topic = Topic(
            name=TOPIC,
            topic_id=TOPIC_ID,
            partitions={0: self.state},
            configs=dict(self.topic_configs),
        )
        metadata.topics[TOPIC] = topic
        metadata.topics_by_id[TOPIC_ID] = topic

    def run(self, milliseconds: int) -> None:
        target_ms = self.now_ms + milliseconds
        self.step()
        while True:
            deadlines = [broker.next_deadline_ms() for broker in self.brokers.values()]
            if self._deliveries:
                deadlines.append(self._deliveries[0].at_ms)
            next_ms = min(
                (deadline for deadline in deadlines if deadline is not None), default=target_ms + 1
            )
            if next_ms > target_ms:
                break
            self.now_ms = max(self.now_ms, next_ms)
            while self._deliveries and self._deliveries[0].at_ms <= self.now_ms:
                heapq.heappop(self._deliveries).deliver()
            for broker in list(self.brokers.values()):
                broker.pass_time()
            self.step()
        self.now_ms = target_ms

    # Services for brokers

    def next_broker_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    def register(self, broker: VirtualBroker) -> None:
        self.registered[broker.id] = Broker(
            broker_id=broker.id,
            incarnation_id=UUID(int=broker.epoch),
            broker_epoch=broker.epoch,
            host="broker",
            port=broker.epoch,
            rack=None,
            is_fenced=False,
        )
        self.fill(broker.metadata)

    def step(self) -> None:
        for broker in list(self.brokers.values()):
            broker.settle()
            for effect in broker.outbox.take_effects():
                if isinstance(effect, SendRequest):
                    self._send(broker, effect)
                else:
                    assert isinstance(effect, CloseChannel)

    def _later(self, deliver: Callable[[], None]) -> None:
        self._numbers += 1
        delivery = _Delivery(self.now_ms + LATENCY_MS, self._numbers, deliver)
        heapq.heappush(self._deliveries, delivery)

    def _send(self, sender: VirtualBroker, sent: SendRequest) -> None:
        channel, request_id = sent.channel, sent.request_id

        def is_alive() -> bool:
            return self.brokers.get(sender.id) is sender

        def reply(frame: bytes) -> None:
            self._later(lambda: response(frame))

        def response(frame: bytes) -> None:
            if (channel.node_id, sender.id) in self.cut_links:
                fail()
            elif is_alive():
                sender.outbox.handle(ResponseReceived(request_id=request_id, frame=frame))
                sender.settle()

        def fail() -> None:
            if is_alive():
                sender.outbox.handle(RequestFailed(request_id=request_id, reason="cut"))

        def arrive() -> None:
            receiver = self.brokers.get(channel.node_id)
            if not is_alive():
                return
            if channel.node_id == CONTROLLER_ID:
                self._serve_controller(sent.frame, reply)
            elif (
                receiver is None
                or channel.port != receiver.epoch
                or (sender.id, channel.node_id) in self.cut_links
            ):
                self._later(fail)
            else:
                receiver.serve(sent.frame, reply)
                receiver.settle()

        self._later(arrive)

    def _serve_controller(self, frame: bytes, reply: Reply) -> None:
        cursor = Cursor(frame)
        header = read_prefix(cursor)
        schema = request_schema(header.api_key, header.api_version)
        header = finish_header(cursor, header, flexible=True)
        request: Any = read_message(schema, AlterPartitionRequest, cursor)
        if self.isr_is_silent:
            return
        (topic,) = request.topics
        (change,) = topic.partitions
        self.isr_requests.append(change)
        responses = self._alter(request.broker_id, change)
        _reply(
            header,
            reply,
            AlterPartitionResponse(
                error_code=ErrorCode.none,
                topics=(TopicResponse(topic_id=topic.topic_id, partitions=(responses,)),),
            ),
        )

    def _alter(self, broker_id: int, change: PartitionChange) -> PartitionResponse:
        state = self.state
        error = self.isr_refusals.pop(0) if self.isr_refusals else ErrorCode.none
        if error is ErrorCode.none:
            if change.leader_epoch != state.leader_epoch or broker_id != state.leader:
                error = ErrorCode.fenced_leader_epoch
            elif change.partition_epoch != state.partition_epoch:
                error = ErrorCode.invalid_update_version
            elif any(
                self.registered[member.broker_id].is_fenced
                or member.broker_epoch not in (-1, self.registered[member.broker_id].broker_epoch)
                for member in change.new_isr_with_epochs
            ):
                error = ErrorCode.ineligible_replica
        if error is not ErrorCode.none:
            return PartitionResponse(partition_index=0, error_code=error)
        isr = tuple(member.broker_id for member in change.new_isr_with_epochs)
        self.state = dataclasses.replace(state, isr=isr, partition_epoch=state.partition_epoch + 1)
        self._later(self.publish)
        return PartitionResponse(
            partition_index=0,
            error_code=ErrorCode.none,
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            isr=isr,
            partition_epoch=self.state.partition_epoch,
        )


def values(partition: Partition, *, until: int | None = None) -> dict[int, bytes]:
    log = partition.log
    end_offset = log.log_end_offset if until is None else until
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < end_offset:
        data = log.read(offset, end_offset=end_offset, max_bytes=10_000, at_least_one_batch=True)
        if not data:
            break
        for one in split(data):
            for index, record in enumerate(decode_records(one)):
                found[int.from_bytes(one[:8]) + index] = record.value or b""
        offset = max(found) + 1
    return found


KEY = PartitionKey(topic=TOPIC, partition=0)
