"""ElectLeaders (43), versions 0 to 2: preferred and unclean leader elections (KIP-183, KIP-460).

With election type 0, the controller elects the preferred leader if it is active and in the ISR.
Otherwise, the error is PREFERRED_LEADER_NOT_AVAILABLE. Version 0 supports only this type. With
election type 1, the controller elects any active replica if the partition has no leader, even if
the topic's config does not allow unclean elections. The error is ELIGIBLE_LEADERS_NOT_AVAILABLE if
there is no active replica. The error for a partition that needs no election is ELECTION_NOT_NEEDED.
If all partitions are requested, the response omits such partitions instead. Other election types
are rejected with INVALID_REQUEST. Source: `kafka.server.ControllerApis.handleElectLeaders`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation

PREFERRED: Final = 0
UNCLEAN: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """The requested partitions of a topic."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """An ElectLeaders request. If `topic_partitions` is None, all partitions are requested."""

    topic_partitions: tuple[TopicPartitions, ...] | None
    election_type: int = PREFERRED


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The error code for a partition."""

    partition_id: int
    error_code: ErrorCode
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The partition results for a topic."""

    topic: str
    partition_result: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse:
    """An ElectLeaders response."""

    error_code: ErrorCode = ErrorCode.none
    replica_election_results: tuple[TopicResult, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Run the requested elections."""
    del call
    if request.election_type not in {PREFERRED, UNCLEAN}:
        return ElectLeadersResponse(error_code=ErrorCode.invalid_request)
    named_partitions = request.topic_partitions
    requested = {
        (named.topic, partition): None
        for named in (_all_partitions(context) if named_partitions is None else named_partitions)
        for partition in named.partitions
    }
    try:
        outcomes = context.controller.elect_leaders(
            tuple(requested), unclean=request.election_type == UNCLEAN
        )
    except ApiError as error:
        return ElectLeadersResponse(error_code=error.error_code)
    results: dict[str, list[PartitionResult]] = {topic: [] for topic, _ in requested}
    for (topic, partition), outcome in zip(requested, outcomes, strict=True):
        code = ErrorCode.none if outcome is None else outcome.error_code
        if named_partitions is None and code is ErrorCode.election_not_needed:
            continue
        results[topic].append(
            PartitionResult(
                partition_id=partition,
                error_code=code,
                error_message=None if outcome is None else outcome.message,
            )
        )
    return ElectLeadersResponse(
        replica_election_results=tuple(
            TopicResult(topic=topic, partition_result=tuple(partitions))
            for topic, partitions in results.items()
        )
    )


def _all_partitions(context: ControllerContext) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic=topic.name, partitions=tuple(topic.partitions))
        for topic in context.metadata.topics.values()
    ]


API: Final = Api(
    key=43,
    versions=range(3),
    request=ElectLeadersRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.ALTER),),
)
