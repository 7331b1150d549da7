"""DescribeUserScramCredentials (50), version 0: the SCRAM mechanisms of users (KIP-554).

If `users` is null or empty, the broker describes all users. The error for a user is
RESOURCE_NOT_FOUND if the user has no credential, and DUPLICATE_RESOURCE if the request contains the
user more than once. Source: `org.apache.kafka.image.ScramImage.describe`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_cluster
from broker_ref.frozen import dataclass
from broker_ref.security.acls import AclOperation
from broker_ref.security.scram import ScramMechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class UserName:
    """A user to describe."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest:
    """A DescribeUserScramCredentials request."""

    users: tuple[UserName, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialInfo:
    """A mechanism and the number of iterations of its credential."""

    mechanism: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserResult:
    """The credentials of a user, or an error."""

    user: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    credential_infos: tuple[CredentialInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse:
    """A DescribeUserScramCredentials response."""

    results: tuple[UserResult, ...]
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe each requested user once."""
    del call
    requested = Counter(user.name for user in request.users or ())
    if not requested:
        requested = Counter({name: 1 for _, name in broker.metadata.scram_credentials})
    return DescribeUserScramCredentialsResponse(
        results=tuple(_result(broker, user, count) for user, count in requested.items())
    )


def _result(broker: Broker, user: str, count: int) -> UserResult:
    if count > 1:
        return UserResult(
            user=user,
            error_code=ErrorCode.duplicate_resource,
            error_message="Cannot describe SCRAM credentials for the same user twice in a single "
            f"request: {user}",
        )
    infos = tuple(
        CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        for mechanism in ScramMechanism
        if (credential := broker.metadata.scram_credential(mechanism, user)) is not None
    )
    if not infos:
        return UserResult(
            user=user,
            error_code=ErrorCode.resource_not_found,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
        )
    return UserResult(user=user, credential_infos=infos)


API: Final = Api(
    key=50,
    versions=range(1),
    request=DescribeUserScramCredentialsRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.DESCRIBE),),
)
