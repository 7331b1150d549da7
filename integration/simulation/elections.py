"""The leader elections of a run, which show whether a broker has been replaced as leader.

A broker acts as leader until it receives metadata with another leader, as in Kafka, where leaders
have no lease. Invariant: elections are recorded in the order of their leader epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_ref.controller.metadata import ClusterMetadata
from integration.simulation.client import TopicPartition

NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """A leader and its leader epoch, and the step of the run in which it was elected."""

    leader: int
    leader_epoch: int
    step: int


class Elections:
    """The elections of each partition."""

    def __init__(self) -> None:
        self._elections: dict[TopicPartition, list[Election]] = {}
        self._metadata_end_offset = -1

    def observe(self, metadata: ClusterMetadata, step: int) -> None:
        """Record the elections that the controller has performed since the last call."""
        if metadata.end_offset == self._metadata_end_offset:
            return
        self._metadata_end_offset = metadata.end_offset
        for topic in metadata.topics.values():
            for partition in topic.partitions.values():
                name = TopicPartition(partition.topic, partition.partition)
                known = self._elections.setdefault(name, [])
                if not known or partition.leader_epoch > known[-1].leader_epoch:
                    known.append(
                        Election(
                            leader=partition.leader, leader_epoch=partition.leader_epoch, step=step
                        )
                    )

    def replaced_in(
        self, partition: TopicPartition, broker_id: int, leader_epoch: int
    ) -> int | None:
        """Return the step in which a leader with this epoch was replaced, or None if it was not.

        A broker is not considered replaced while the partition has no leader.
        """
        for election in self._elections.get(partition, ()):
            if election.leader_epoch > leader_epoch and election.leader not in {
                broker_id,
                NO_LEADER,
            }:
                return election.step
        return None
