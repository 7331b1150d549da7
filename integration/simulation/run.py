"""One run of a plan: the cluster, its clients, the faults and the final checks.

Clients run while faults are injected. Then all faults are repaired, and the run waits until the
cluster is idle: all records of idempotent producers are acknowledged, all consumers have read all
records, and all replicas are in sync and identical. Invariant: the outcome depends only on the
plan.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from integration.simulation.administrator import Administrator
from integration.simulation.client import Client, TopicPartition
from integration.simulation.cluster import SimulatedCluster, UnexplainedFailureError, host_of
from integration.simulation.consumer_member import (
    CONSUMER_HEARTBEAT_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
    ConsumerGroupHistory,
    ConsumerGroupMember,
)
from integration.simulation.event_queue import START_MS, EndlessLoopError, EventQueue
from integration.simulation.faults import Faults
from integration.simulation.group_member import GroupHistory, GroupMember
from integration.simulation.invariants import (
    InvariantChecker,
    InvariantViolationError,
    name_of_log,
)
from integration.simulation.offset_transactions import OffsetTransactions
from integration.simulation.partition_consumer import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    PartitionConsumer,
)
from integration.simulation.plan import FAULTS_END_MS, Plan, Settings
from integration.simulation.producers import AcksOneProducer, IdempotentProducer
from integration.simulation.progress import Progress
from integration.simulation.recreated_topic import RecreatedTopic
from integration.simulation.transactional_producer import TransactionalProducer, TransactionHistory

TOPIC: Final = "t"
WORK_BEGINS_MS: Final = 1_000
READY_LIMIT_MS: Final = 10_000
IDLE_LIMIT_MS: Final = 30_000
"""Several times the usual duration: correct runs become idle after about four seconds."""
CHECK_INTERVAL_MS: Final = 250
_DELETE_RETENTION_MS: Final = 6_000
"""No follower is down for longer than this."""


class Work(Protocol):
    """The work of one client."""

    @property
    def is_done(self) -> bool:
        """Whether the client has finished its work."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a run. `violation` is None if all invariants held."""

    plan: Plan
    violation: str | None
    trace: list[str] = field(repr=False)
    digest: int
    steps: int
    elapsed_ms: int
    acknowledged: int

    @property
    def identity(self) -> tuple[str | None, int, int, int]:
        """A value that is equal for all runs of the same plan."""
        return self.violation, self.digest, self.steps, self.elapsed_ms


def run(plan: Plan) -> Outcome:
    """Run a plan and return its outcome."""
    return _Run(plan).outcome()


def config_of(broker_id: int, settings: Settings) -> BrokerConfig:
    """Return a broker's config. Its timeouts are short, so many of them expire during a run."""
    defaults = {
        "min.insync.replicas": str(settings.min_insync_replicas),
        "segment.ms": str(settings.segment_ms),
        "index.interval.bytes": "300",
    }
    if settings.flushes_always:
        defaults["flush.messages"] = "1"
    if settings.compacts_internal_topics:
        defaults |= {
            "segment.ms": "200",
            "min.cleanable.dirty.ratio": "0.01",
            # Followers must fetch tombstones and markers before compaction removes them.
            "delete.retention.ms": str(_DELETE_RETENTION_MS + 2 * settings.clock_skew_ms_max),
        }
    return BrokerConfig(
        node_id=broker_id,
        default_replication_factor=settings.replication_factor,
        num_partitions=settings.partitions,
        broker_heartbeat_interval_ms=400,
        broker_session_timeout_ms=1_800,
        replica_lag_time_max_ms=1_200,
        replica_fetch_wait_max_ms=400,
        replica_fetch_backoff_ms=100,
        replica_socket_timeout_ms=2_500,
        replica_high_watermark_checkpoint_interval_ms=1_000,
        log_flush_offset_checkpoint_interval_ms=3_000,
        leader_imbalance_check_interval_seconds=4,
        log_cleaner_enable=settings.compacts_internal_topics,
        log_cleaner_backoff_ms=300,
        group_initial_rebalance_delay_ms=200,
        group_min_session_timeout_ms=1_000,
        group_consumer_session_timeout_ms=CONSUMER_SESSION_TIMEOUT_MS,
        group_consumer_min_session_timeout_ms=CONSUMER_SESSION_TIMEOUT_MS,
        group_consumer_heartbeat_interval_ms=CONSUMER_HEARTBEAT_MS,
        group_consumer_min_heartbeat_interval_ms=CONSUMER_HEARTBEAT_MS,
        offsets_topic_num_partitions=settings.internal_partitions,
        offsets_topic_replication_factor=settings.replication_factor,
        offsets_commit_timeout_ms=1_500,
        transaction_state_log_num_partitions=settings.internal_partitions,
        transaction_state_log_replication_factor=settings.replication_factor,
        transaction_state_log_min_isr=settings.min_insync_replicas,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=400,
        topic_defaults=defaults,
    )


class _Run:
    """The cluster, the clients and the faults of one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trace: list[str] = []
        settings = plan.settings
        self._event_queue = EventQueue()
        self._checker = InvariantChecker(
            settings.internal_partitions,
            compacts_internal_topics=settings.compacts_internal_topics,
        )
        self._random = Random(f"clients {plan.seed}")
        self.cluster = SimulatedCluster(
            {broker_id: config_of(broker_id, settings) for broker_id in settings.broker_ids},
            event_queue=self._event_queue,
            random=Random(f"network {plan.seed}"),
            network_conditions=settings.network_conditions,
            seed=str(plan.seed),
            features={"transaction.version": settings.transaction_version},
            clock_skew_ms_max=settings.clock_skew_ms_max,
            on_step=self._checker.check,
            note=self._note,
        )
        self._work: list[Work] = []
        self._administrator = Administrator(self._client("admin"))
        self._faults = Faults(
            self.cluster,
            self._administrator,
            event_queue=self._event_queue,
            settings=settings,
            note=self._note,
        )

    def outcome(self) -> Outcome:
        """Run the plan to its end or to the first violation, and return the outcome."""
        violation = None
        with quiet_logs():
            try:
                self._go()
            except (InvariantViolationError, EndlessLoopError, UnexplainedFailureError) as found:
                violation = str(found)
            except Exception as error:  # An exception of any class is a bug in a node.
                violation = f"{type(error).__name__}: {error}"
                self.trace += traceback.format_exception(error)
        if violation is not None:
            self._note(f"VIOLATION: {violation}")
        return Outcome(
            plan=self.plan,
            violation=violation,
            trace=self.trace,
            digest=self.cluster.digest,
            steps=self._event_queue.steps,
            elapsed_ms=self._event_queue.elapsed_ms,
            acknowledged=sum(
                work.acknowledged for work in self._work if isinstance(work, IdempotentProducer)
            ),
        )

    def _go(self) -> None:
        for host in self.cluster.hosts:
            self.cluster.start(host)
        self._administrator.make_topic(TOPIC)
        self._event_queue.run_until(START_MS + WORK_BEGINS_MS)
        while (
            TOPIC not in self._administrator.made and self._event_queue.elapsed_ms < READY_LIMIT_MS
        ):
            self._event_queue.run_until(self._event_queue.now_ms + CHECK_INTERVAL_MS)
        if TOPIC not in self._administrator.made:
            raise InvariantViolationError(
                "the topics were not created, although no fault was injected"
            )
        self._faults.schedule(self.plan.faults)
        self._start_work()
        self._inject_faults()
        self._faults.repair()
        for partition in self.partitions:  # Read records that other consumers have already read.
            self._start_consumer(f"late-{partition.partition}", partition, READ_COMMITTED)
        self._await_idle()
        self._check_the_end()

    def _inject_faults(self) -> None:
        """Run until all faults have ended. Check that producers make progress between faults."""
        progress = Progress()
        producers = [work for work in self._work if isinstance(work, IdempotentProducer)]
        while self._event_queue.elapsed_ms < FAULTS_END_MS:
            self._event_queue.run_until(
                min(self._event_queue.now_ms + CHECK_INTERVAL_MS, START_MS + FAULTS_END_MS)
            )
            progress.check(
                producers, has_fault=self._faults.is_active, now_ms=self._event_queue.now_ms
            )

    # Work

    def _client(self, name: str, *, resets: bool = False, random: Random | None = None) -> Client:
        return Client(
            name,
            event_queue=self._event_queue,
            network=self.cluster.network,
            random=random or Random(self._random.getrandbits(64)),
            broker_ids=self.plan.settings.broker_ids,
            resets=resets,
        )

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the topic to which clients write."""
        return [TopicPartition(TOPIC, index) for index in range(self.plan.settings.partitions)]

    def _start_work(self) -> None:
        settings = self.plan.settings
        until_ms = START_MS + FAULTS_END_MS
        for number in range(settings.idempotent_producers):
            self._work.append(
                IdempotentProducer(
                    self._client(f"producer-{number}"),
                    self._checker,
                    partitions=self.partitions,
                    pace_ms=settings.pace_ms,
                    until_ms=until_ms,
                )
            )
        for number in range(settings.acks_one_producers):
            self._work.append(
                AcksOneProducer(
                    self._client(f"careless-{number}"),
                    partitions=self.partitions,
                    pace_ms=settings.pace_ms,
                    until_ms=until_ms,
                )
            )
        for partition in self.partitions:
            self._start_consumer(f"reader-{partition.partition}", partition, READ_UNCOMMITTED)
            if settings.transactional_clients:
                self._start_consumer(f"committed-{partition.partition}", partition, READ_COMMITTED)
            if settings.reads_from_followers:
                name = f"nearest-{partition.partition}"
                client = self._client(name, random=Random(f"{name} {self.plan.seed}"))
                self._work.append(
                    PartitionConsumer(
                        client,
                        self._checker,
                        partition,
                        isolation=READ_COMMITTED,
                        reads_from_followers=True,
                    )
                )
        for number in range(settings.transactional_clients):
            self._start_transacting(TransactionHistory(f"tx-{number}", self._checker), 0)
        history = GroupHistory(self._checker, self.partitions)
        for number in range(settings.group_members):
            self._start_member(history, number, 0)

        if settings.recreates_topic:
            client = self._client("recreating", random=Random(f"recreating {self.plan.seed}"))
            self._work.append(
                RecreatedTopic(
                    client,
                    self._administrator,
                    self._checker,
                    pace_ms=settings.pace_ms,
                    until_ms=until_ms,
                )
            )
        consumers = ConsumerGroupHistory(self._checker, self.partitions)
        for number in range(settings.consumer_members):
            self._start_consumer_member(consumers, number, 0)

    def _start_consumer_member(
        self, history: ConsumerGroupHistory, number: int, incarnation: int
    ) -> None:
        name = f"consumer-{number}/{incarnation}"
        member = ConsumerGroupMember(
            self._client(name, resets=True, random=Random(f"{name} {self.plan.seed}")),
            history,
            topic=TOPIC,
            instance_id=f"instance-{number}" if number % 2 else None,
            until_ms=START_MS + FAULTS_END_MS,
            start_successor=lambda: self._start_consumer_member(history, number, incarnation + 1),
        )
        self._work.append(member)

    def _start_member(self, history: GroupHistory, number: int, incarnation: int) -> None:
        # A late OffsetCommit from the same generation overwrites a newer offset, in Kafka too.
        settings = self.plan.settings
        client = self._client(f"member-{number}/{incarnation}", resets=True)
        transactions = OffsetTransactions(client, is_v2=settings.transaction_version >= 2)
        member = GroupMember(
            client,
            history,
            partitions=self.partitions,
            until_ms=START_MS + FAULTS_END_MS,
            start_successor=lambda: self._start_member(history, number, incarnation + 1),
            instance_id=f"static-{number}" if settings.has_static_members else None,
            transactions=transactions if settings.members_use_transactions else None,
        )
        self._work.append(member)

    def _start_consumer(self, name: str, partition: TopicPartition, isolation: int) -> None:
        consumer = PartitionConsumer(
            self._client(name), self._checker, partition, isolation=isolation
        )
        self._work.append(consumer)

    def _start_transacting(self, history: TransactionHistory, incarnation: int) -> None:
        settings = self.plan.settings
        client = self._client(f"{history.transactional_id}/{incarnation}")
        producer = TransactionalProducer(
            client,
            self._checker,
            history,
            partitions=self.partitions,
            version=settings.transaction_version,
            pace_ms=settings.pace_ms,
            until_ms=START_MS + FAULTS_END_MS,
            start_successor=lambda: self._start_transacting(history, incarnation + 1),
        )
        self._work.append(producer)

    # The end

    def _await_idle(self) -> None:
        limit_ms = self._event_queue.now_ms + IDLE_LIMIT_MS
        while (not_idle := self._not_idle()) is not None:
            if self._event_queue.now_ms >= limit_ms:
                raise InvariantViolationError(
                    f"the cluster is not idle {IDLE_LIMIT_MS} ms after all faults were repaired: "
                    f"{not_idle}"
                )
            self._event_queue.run_until(self._event_queue.now_ms + CHECK_INTERVAL_MS)
            self._faults.restart_failed()

    def _not_idle(self) -> str | None:
        """Return why the cluster is not idle, or None if it is idle."""
        controller = self.cluster.controller
        if controller is None or self.cluster.failures:
            return f"nodes are not running: {self.cluster.failures}"
        for topic in controller.side.metadata.topics.values():
            for partition in topic.partitions.values():
                if set(partition.isr) != set(partition.replicas):
                    return f"{topic.name}-{partition.partition} has ISR {partition.isr}"
        for work in self._work:
            if not work.is_done:
                return f"{type(work).__name__} has not finished"
        return self._difference()

    def _difference(self) -> str | None:
        """Describe how replicas differ. Return None if they are identical and fully committed."""
        controller = self.cluster.controller
        assert controller is not None
        for metadata in controller.side.metadata.partitions():
            committed = self._checker.of(name_of_log(metadata))
            for broker_id in metadata.replicas:
                node = self.cluster.broker(broker_id)
                if node is None or node.broker is None:
                    return f"broker {broker_id} is not running"
                replica = node.broker.replicas.partition(metadata.topic, metadata.partition)
                name = f"{committed.partition} on {host_of(broker_id)}"
                ends = (replica.log.log_end_offset, replica.high_watermark)
                if ends != (committed.end_offset, committed.end_offset):
                    return (
                        f"{name}: log end offset and high watermark are {ends} instead of "
                        f"{committed.end_offset}"
                    )
                if replica.last_stable_offset != committed.end_offset:
                    return f"{name}: a transaction is open at offset {replica.last_stable_offset}"
        return self._stray_replica(controller.side.metadata)

    def _stray_replica(self, metadata: ClusterMetadata) -> str | None:
        """Describe the first stray replica on a broker. Return None if no replica is stray."""
        for broker_id in self.plan.settings.broker_ids:
            node = self.cluster.broker(broker_id)
            for replica in node.broker.replicas.partitions() if node and node.broker else ():
                current = metadata.partition(replica.key.topic, replica.key.partition)
                if (
                    current is None
                    or current.topic_id != replica.metadata.topic_id
                    or broker_id not in current.replicas
                ):
                    return f"{host_of(broker_id)} has a replica of {name_of_log(replica.metadata)}"
        return None

    def _check_the_end(self) -> None:
        """Check all transactions, and check all replicas again from the start of their logs."""
        self._checker.transactions.check_end(self._checker.committed)
        for broker_id in self.plan.settings.broker_ids:
            node = self.cluster.broker(broker_id)
            assert node is not None
            self._checker.check_again(host_of(broker_id), node)

    def _note(self, line: str) -> None:
        self.trace.append(f"{self._event_queue.elapsed_ms:6d} ms  {line}")


@contextmanager
def quiet_logs(name: str = "broker_ref") -> Iterator[None]:
    """Suppress the logs of nodes or clients, because injected faults cause many errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
