"""ElectLeaders (43), versions 0 to 2: preferred and unclean leader elections (KIP-183, KIP-460).

Behaviour: election type 0 (the only one in version 0) elects the preferred leader if it is alive
and in sync, otherwise PREFERRED_LEADER_NOT_AVAILABLE. Type 1 elects any live replica if there is no
leader, regardless of the topic's config, otherwise ELIGIBLE_LEADERS_NOT_AVAILABLE.
ELECTION_NOT_NEEDED: nothing to do; omitted if all partitions were requested. INVALID_REQUEST: any
other type. Source: `kafka.server.ControllerApis.handleElectLeaders`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError

PREFERRED: Final = 0
UNCLEAN: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """The partitions of a topic."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """An ElectLeaders request; None requests all partitions."""

    topic_partitions: tuple[TopicPartitions, ...] | None
    election_type: int = PREFERRED


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result of a partition."""

    partition_id: int
    error_code: ErrorCode
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The results of a topic."""

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
    """Run the elections."""
    del call
    if request.election_type not in {PREFERRED, UNCLEAN}:
        return ElectLeadersResponse(error_code=ErrorCode.invalid_request)
    asked = request.topic_partitions
    wanted = {
        (named.topic, partition): None
        for named in (_all_partitions(context) if asked is None else asked)
        for partition in named.partitions
    }
    try:
        answers = context.controller.elect_leaders(
            tuple(wanted), unclean=request.election_type == UNCLEAN
        )
    except ApiError as error:
        return ElectLeadersResponse(error_code=error.error_code)
    results: dict[str, list[PartitionResult]] = {topic: [] for topic, _ in wanted}
    for (topic, partition), refusal in zip(wanted, answers, strict=True):
        code = ErrorCode.none if refusal is None else refusal.error_code
        if asked is None and code is ErrorCode.election_not_needed:
            continue
        results[topic].append(
            PartitionResult(
                partition_id=partition,
                error_code=code,
                error_message=None if refusal is None else refusal.message,
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


API: Final = Api(key=43, versions=range(3), request=ElectLeadersRequest, handle=handle)
