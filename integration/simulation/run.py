"""One run of a plan: the cluster, its clients, the faults, and the final checks.

Purpose: run clients while faults are injected, repair everything, and wait until the cluster is
idle: all records of idempotent producers are acknowledged, readers are at the end, all replicas are
in sync and equal. Invariant: the outcome depends on the plan alone. What it must not know: seeds,
and how runs are shrunk.
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
from integration.simulation.administering import Administrator
from integration.simulation.agenda import START_MS, Agenda, RestlessError
from integration.simulation.client import Client, TopicPartition
from integration.simulation.cluster import SimulatedCluster, UnexplainedFailureError, host_of
from integration.simulation.faults import Faults
from integration.simulation.grouping import GroupHistory, GroupMember
from integration.simulation.invariants import InvariantViolationError, Watch
from integration.simulation.plan import BROKERS, FAULTS_END_MS, Plan, Settings
from integration.simulation.producing import CarelessProducer, IdempotentProducer
from integration.simulation.reading import READ_COMMITTED, READ_UNCOMMITTED, Reader
from integration.simulation.transacting import Account, TransactionalProducer

TOPIC: Final = "t"
WORK_BEGINS_MS: Final = 1_000
READY_LIMIT_MS: Final = 10_000
IDLE_LIMIT_MS: Final = 30_000
"""Several times the usual time: correct runs are idle after about four seconds."""
LOOK_EVERY_MS: Final = 250


class Work(Protocol):
    """A client's work."""

    @property
    def is_done(self) -> bool:
        """Whether the client is finished."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a run; `violation` is None if all invariants held."""

    plan: Plan
    violation: str | None
    trace: list[str] = field(repr=False)
    digest: int
    steps: int
    elapsed_ms: int
    acknowledged: int

    @property
    def identity(self) -> tuple[str | None, int, int, int]:
        """A value that is equal in all runs of the same plan."""
        return self.violation, self.digest, self.steps, self.elapsed_ms


def run(plan: Plan) -> Outcome:
    """Run a plan."""
    return _Run(plan).outcome()


def config_of(broker_id: int, settings: Settings) -> BrokerConfig:
    """Return a broker's config, with short timeouts so that much happens in a short run."""
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
    """The cluster, the clients and the fault injection of one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trace: list[str] = []
        settings = plan.settings
        self._agenda = Agenda()
        self._watch = Watch()
        self._random = Random(f"clients {plan.seed}")
        self.cluster = SimulatedCluster(
            {broker_id: config_of(broker_id, settings) for broker_id in BROKERS},
            agenda=self._agenda,
            random=Random(f"network {plan.seed}"),
            weather=settings.weather,
            seed=str(plan.seed),
            features={"transaction.version": settings.transaction_version},
            on_step=self._watch.look,
            note=self._note,
        )
        self._work: list[Work] = []
        self._administrator = Administrator(self._client("admin"))
        self._faults = Faults(
            self.cluster,
            self._administrator,
            agenda=self._agenda,
            settings=settings,
            note=self._note,
        )

    def outcome(self) -> Outcome:
        """Run to the end, or to the first violation."""
        violation = None
        with _quiet_logs():
            try:
                self._go()
            except (InvariantViolationError, RestlessError, UnexplainedFailureError) as found:
                violation = str(found)
            except Exception as error:  # A bug of a node is a finding, whatever its class.
                violation = f"{type(error).__name__}: {error}"
                self.trace += traceback.format_exception(error)
        if violation is not None:
            self._note(f"VIOLATION: {violation}")
        return Outcome(
            plan=self.plan,
            violation=violation,
            trace=self.trace,
            digest=self.cluster.digest,
            steps=self._agenda.steps,
            elapsed_ms=self._agenda.elapsed_ms,
            acknowledged=sum(
                work.acknowledged for work in self._work if isinstance(work, IdempotentProducer)
            ),
        )

    def _go(self) -> None:
        for host in self.cluster.hosts:
            self.cluster.start(host)
        self._administrator.make_topic(TOPIC)
        self._agenda.run_until(START_MS + WORK_BEGINS_MS)
        while TOPIC not in self._administrator.made and self._agenda.elapsed_ms < READY_LIMIT_MS:
            self._agenda.run_until(self._agenda.now_ms + LOOK_EVERY_MS)
        if TOPIC not in self._administrator.made:
            raise InvariantViolationError(
                "the topics could not be created although no fault was injected"
            )
        self._faults.schedule(self.plan.faults)
        self._start_work()
        self._agenda.run_until(START_MS + FAULTS_END_MS)
        self._faults.repair()
        for partition in self.partitions:  # Read again what the other readers have passed.
            self._start_reader(f"late-{partition.partition}", partition, READ_COMMITTED)
        self._await_idle()
        self._check_the_end()

    # Work

    def _client(self, name: str) -> Client:
        return Client(
            name,
            agenda=self._agenda,
            network=self.cluster.network,
            random=Random(self._random.getrandbits(64)),
            broker_ids=BROKERS,
        )

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the topic that clients write to."""
        return [TopicPartition(TOPIC, index) for index in range(self.plan.settings.partitions)]

    def _start_work(self) -> None:
        settings = self.plan.settings
        until_ms = START_MS + FAULTS_END_MS
        for number in range(settings.idempotent_producers):
            self._work.append(
                IdempotentProducer(
                    self._client(f"producer-{number}"),
                    self._watch,
                    partitions=self.partitions,
                    pace_ms=settings.pace_ms,
                    until_ms=until_ms,
                )
            )
        for number in range(settings.careless_producers):
            self._work.append(
                CarelessProducer(
                    self._client(f"careless-{number}"),
                    partitions=self.partitions,
                    pace_ms=settings.pace_ms,
                    until_ms=until_ms,
                )
            )
        for partition in self.partitions:
            self._start_reader(f"reader-{partition.partition}", partition, READ_UNCOMMITTED)
            if settings.transactional_clients:
                self._start_reader(f"committed-{partition.partition}", partition, READ_COMMITTED)
        for number in range(settings.transactional_clients):
            self._start_transacting(Account(f"tx-{number}"), 0)
        history = GroupHistory(self.partitions)
        for number in range(settings.group_members):
            self._start_member(history, number, 0)

    def _start_member(self, history: GroupHistory, number: int, life: int) -> None:
        member = GroupMember(
            self._client(f"member-{number}/{life}"),
            history,
            partitions=self.partitions,
            until_ms=START_MS + FAULTS_END_MS,
            start_successor=lambda: self._start_member(history, number, life + 1),
        )
        self._work.append(member)

    def _start_reader(self, name: str, partition: TopicPartition, isolation: int) -> None:
        reader = Reader(self._client(name), self._watch, partition, isolation=isolation)
        self._work.append(reader)

    def _start_transacting(self, account: Account, life: int) -> None:
        settings = self.plan.settings
        client = self._client(f"{account.transactional_id}/{life}")
        producer = TransactionalProducer(
            client,
            self._watch,
            account,
            partitions=self.partitions,
            version=settings.transaction_version,
            pace_ms=settings.pace_ms,
            until_ms=START_MS + FAULTS_END_MS,
            start_successor=lambda: self._start_transacting(account, life + 1),
        )
        self._work.append(producer)

    # The end

    def _await_idle(self) -> None:
        limit_ms = self._agenda.now_ms + IDLE_LIMIT_MS
        while (not_idle := self._not_idle()) is not None:
            if self._agenda.now_ms >= limit_ms:
                raise InvariantViolationError(
                    f"not idle {IDLE_LIMIT_MS} ms after all faults were repaired: {not_idle}"
                )
            self._agenda.run_until(self._agenda.now_ms + LOOK_EVERY_MS)
            self._faults.restart_failed()

    def _not_idle(self) -> str | None:
        """Describe what is not idle yet; None if everything is."""
        controller = self.cluster.controller
        if controller is None or self.cluster.failures:
            return f"nodes do not run: {self.cluster.failures}"
        for topic in controller.side.metadata.topics.values():
            for partition in topic.partitions.values():
                if set(partition.isr) != set(partition.replicas):
                    return f"{topic.name}-{partition.partition} has ISR {partition.isr}"
        for work in self._work:
            if not work.is_done:
                return f"{type(work).__name__} is not done"
        return self._difference()

    def _difference(self) -> str | None:
        """Describe how replicas differ; None if they are equal and completely committed."""
        for partition, committed in self._watch.committed.items():
            for broker_id in BROKERS:
                node = self.cluster.broker(broker_id)
                if node is None or node.broker is None:
                    return f"broker {broker_id} is not open"
                replica = node.broker.replicas.partition(partition.topic, partition.partition)
                ends = (replica.log.log_end_offset, replica.high_watermark)
                if ends != (committed.end_offset, committed.end_offset):
                    return (
                        f"{partition} on {host_of(broker_id)}: log end offset and high watermark "
                        f"are {ends} instead of {committed.end_offset}"
                    )
                if replica.last_stable_offset != committed.end_offset:
                    return (
                        f"{partition} on {host_of(broker_id)}: an open transaction at offset "
                        f"{replica.last_stable_offset}"
                    )
        return None

    def _check_the_end(self) -> None:
        """Check all replicas and transactions again from the beginning."""
        self._watch.transactions.check_end(self._watch.committed)
        for broker_id in BROKERS:
            node = self.cluster.broker(broker_id)
            assert node is not None
            self._watch.check_again(host_of(broker_id), node)

    def _note(self, line: str) -> None:
        self.trace.append(f"{self._agenda.elapsed_ms:6d} ms  {line}")


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Suppress the logs of nodes, which fail on purpose."""
    logger = logging.getLogger("broker_ref")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
