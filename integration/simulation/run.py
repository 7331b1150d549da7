"""One run of a plan: the cluster, its clients, the faults and the final checks.

Clients run while faults are injected. Then all faults are repaired, and the run waits until the
cluster is idle: all records of idempotent producers are acknowledged, all consumers have read to
the end, and all replicas are in sync and equal. Invariant: the outcome depends only on the plan.
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
from integration.simulation.administrator import Administrator
from integration.simulation.client import Client, TopicPartition
from integration.simulation.cluster import SimulatedCluster, UnexplainedFailureError, host_of
from integration.simulation.event_queue import START_MS, EndlessLoopError, EventQueue
from integration.simulation.faults import Faults
from integration.simulation.group_member import GroupHistory, GroupMember
from integration.simulation.invariants import InvariantChecker, InvariantViolationError
from integration.simulation.partition_consumer import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    PartitionConsumer,
)
from integration.simulation.plan import BROKERS, FAULTS_END_MS, Plan, Settings
from integration.simulation.producers import AcksOneProducer, IdempotentProducer
from integration.simulation.transactional_producer import TransactionalProducer, TransactionHistory

TOPIC: Final = "t"
WORK_BEGINS_MS: Final = 1_000
READY_LIMIT_MS: Final = 10_000
IDLE_LIMIT_MS: Final = 30_000
"""Several times the usual duration: correct runs become idle after about four seconds."""
CHECK_INTERVAL_MS: Final = 250


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
    """Return a broker's config, with short timeouts so that many timeouts expire during a run."""
    defaults = {
        "min.insync.replicas": str(settings.min_insync_replicas),
        "segment.ms": str(settings.segment_ms),
        "index.interval.bytes": "300",
    }
    if settings.flushes_always:
        defaults["flush.messages"] = "1"
    return BrokerConfig(
        node_id=broker_id,
        default_replication_factor=len(BROKERS),
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
        log_cleaner_enable=False,
        group_initial_rebalance_delay_ms=200,
        group_min_session_timeout_ms=1_000,
        offsets_topic_num_partitions=1,
        offsets_topic_replication_factor=len(BROKERS),
        offsets_commit_timeout_ms=1_500,
        transaction_state_log_num_partitions=1,
        transaction_state_log_replication_factor=len(BROKERS),
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
        self._checker = InvariantChecker()
        self._random = Random(f"clients {plan.seed}")
        self.cluster = SimulatedCluster(
            {broker_id: config_of(broker_id, settings) for broker_id in BROKERS},
            event_queue=self._event_queue,
            random=Random(f"network {plan.seed}"),
            network_conditions=settings.network_conditions,
            seed=str(plan.seed),
            features={"transaction.version": settings.transaction_version},
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
        """Run to the end or to the first violation, and return the outcome."""
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
        self._event_queue.run_until(START_MS + FAULTS_END_MS)
        self._faults.repair()
        for partition in self.partitions:  # Read records that other consumers have already read.
            self._start_consumer(f"late-{partition.partition}", partition, READ_COMMITTED)
        self._await_idle()
        self._check_the_end()

    # Work

    def _client(self, name: str) -> Client:
        return Client(
            name,
            event_queue=self._event_queue,
            network=self.cluster.network,
            random=Random(self._random.getrandbits(64)),
            broker_ids=BROKERS,
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
        for number in range(settings.transactional_clients):
            self._start_transacting(TransactionHistory(f"tx-{number}", self._checker), 0)
        history = GroupHistory(self._checker, self.partitions)
        for number in range(settings.group_members):
            self._start_member(history, number, 0)

    def _start_member(self, history: GroupHistory, number: int, incarnation: int) -> None:
        member = GroupMember(
            self._client(f"member-{number}/{incarnation}"),
            history,
            partitions=self.partitions,
            until_ms=START_MS + FAULTS_END_MS,
            start_successor=lambda: self._start_member(history, number, incarnation + 1),
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
        """Return how replicas differ, or None if they are equal and completely committed."""
        for partition, committed in self._checker.committed.items():
            for broker_id in BROKERS:
                node = self.cluster.broker(broker_id)
                if node is None or node.broker is None:
                    return f"broker {broker_id} is not running"
                replica = node.broker.replicas.partition(partition.topic, partition.partition)
                ends = (replica.log.log_end_offset, replica.high_watermark)
                if ends != (committed.end_offset, committed.end_offset):
                    return (
                        f"{partition} on {host_of(broker_id)}: log end offset and high watermark "
                        f"are {ends} instead of {committed.end_offset}"
                    )
                if replica.last_stable_offset != committed.end_offset:
                    return (
                        f"{partition} on {host_of(broker_id)}: a transaction is open at offset "
                        f"{replica.last_stable_offset}"
                    )
        return None

    def _check_the_end(self) -> None:
        """Check all transactions, and check all replicas again from the start of their logs."""
        self._checker.transactions.check_end(self._checker.committed)
        for broker_id in BROKERS:
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
