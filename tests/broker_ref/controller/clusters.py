"""A controller under test, with brokers that the test registers and whose heartbeats it sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker_ref.config import BrokerConfig
from broker_ref.controller.alter_partition import IsrProposal
from broker_ref.controller.broker_heartbeats import Heartbeat, HeartbeatReply, Registration
from broker_ref.controller.controller import Controller
from broker_ref.controller.journal import Journal
from broker_ref.controller.metadata import RECOVERED, ClusterMetadata, PartitionMetadata
from broker_ref.controller.topics import CreatedTopic, NewTopic
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from integration.simulation.cluster import seeded_bytes
from tests.broker_ref.memory_storage import MemoryStorage

CLUSTER_ID = "cluster"
JOURNAL = "journal"


class ControllerDriver:
    def __init__(
        self,
        *brokers: int,
        racks: dict[int, str] | None = None,
        features: dict[str, int] | None = None,
        **configs: str,
    ) -> None:
        self.storage = MemoryStorage()
        self.features = features
        self.config = BrokerConfig.from_mapping(
            {"num.partitions": "2", "default.replication.factor": "2"}
            | {name.replace("_", "."): value for name, value in configs.items()}
        )
        self.now_ms = 1_000
        self.racks = racks or {}
        self._incarnations = 0
        self.controller = self._open()
        for broker in brokers:
            self.start(broker)

    @property
    def metadata(self) -> ClusterMetadata:
        return self.controller.metadata

    def create_topic(self, new: NewTopic) -> CreatedTopic:
        (outcome,) = self.controller.create_topics([new])
        if isinstance(outcome, ApiError):
            raise outcome
        return outcome

    def restart(self) -> None:
        self.controller.close()
        self.controller = self._open()

    def register(
        self, broker_id: int, *, incarnation: int | None = None, is_clean: bool = False
    ) -> int:
        """Register a broker and return its broker epoch; the default is a new incarnation.

        `is_clean` means that the previous incarnation has shut down cleanly.
        """
        existing = self.metadata.brokers.get(broker_id)
        if incarnation is None:
            self._incarnations += 1
            incarnation = self._incarnations
        return self.controller.register_broker(
            Registration(
                broker_id=broker_id,
                cluster_id=CLUSTER_ID,
                incarnation_id=Uuid(int=incarnation),
                host=f"h{broker_id}",
                port=9092,
                rack=self.racks.get(broker_id),
                previous_broker_epoch=existing.broker_epoch if is_clean and existing else -1,
            ),
            self.now_ms,
        )

    def start(self, broker_id: int, *, is_clean: bool = False) -> None:
        self.register(broker_id, is_clean=is_clean)
        reply = self.heartbeat(broker_id)
        assert not reply.is_fenced
        assert reply.is_caught_up

    def heartbeat(
        self,
        broker_id: int,
        *,
        broker_epoch: int | None = None,
        metadata_offset: int | None = None,
        want_fence: bool = False,
        want_shut_down: bool = False,
    ) -> HeartbeatReply:
        """Send a heartbeat, by default of a broker that has applied all metadata."""
        if broker_epoch is None:
            broker_epoch = self.metadata.brokers[broker_id].broker_epoch
        if metadata_offset is None:
            metadata_offset = self.metadata.end_offset - 1
        return self.controller.heartbeat(
            Heartbeat(
                broker_id=broker_id,
                broker_epoch=broker_epoch,
                current_metadata_offset=metadata_offset,
                want_fence=want_fence,
                want_shut_down=want_shut_down,
            ),
            self.now_ms,
        )

    def advance(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.controller.tick(self.now_ms)

    def expire(self, *brokers: int) -> None:
        """Let the sessions of these brokers expire; the other brokers send heartbeats."""
        timeout_ms = self.config.broker_session_timeout_ms
        self.now_ms += timeout_ms - 1
        for broker in self.metadata.brokers.values():
            if broker.broker_id not in brokers and not broker.is_fenced:
                self.heartbeat(broker.broker_id)
        self.advance(1)

    def propose(
        self,
        partition: PartitionMetadata,
        isr: Sequence[int],
        /,
        *,
        broker_epochs: Mapping[int, int] | None = None,
        **fields: int,
    ) -> PartitionMetadata | ApiError:
        """Propose an ISR as the leader and return the outcome; `fields` override the request."""
        known = {b.broker_id: b.broker_epoch for b in self.metadata.brokers.values()}
        values = {
            "leader_id": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "leader_recovery_state": RECOVERED,
            "partition": partition.partition,
        }
        (outcome,) = self.controller.alter_partitions(
            [
                IsrProposal(
                    topic_id=partition.topic_id,
                    isr=tuple((b, {**known, **(broker_epochs or {})}.get(b, -1)) for b in isr),
                    **values | fields,
                )
            ]
        )
        return outcome

    def is_fenced(self, broker_id: int) -> bool:
        return self.metadata.brokers[broker_id].is_fenced

    def partition(self, topic: str = "t", partition: int = 0) -> PartitionMetadata:
        found = self.controller.metadata.partition(topic, partition)
        assert found is not None
        return found

    def _open(self) -> Controller:
        return Controller(
            journal=Journal(self.storage, JOURNAL),
            config=self.config,
            cluster_id=CLUSTER_ID,
            random_bytes=seeded_bytes(),
            now_ms=self.now_ms,
            features=self.features,
        )
