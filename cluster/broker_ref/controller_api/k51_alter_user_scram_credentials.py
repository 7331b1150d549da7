"""AlterUserScramCredentials (51), version 0: set or remove SCRAM credentials (KIP-554).

The request contains salted passwords. Only the keys derived from them are stored. The errors for a
user are:

- DUPLICATE_RESOURCE: the request contains the user more than once.
- RESOURCE_NOT_FOUND: the credential to remove does not exist.
- UNSUPPORTED_SASL_MECHANISM: the mechanism is unknown.
- UNACCEPTABLE_CREDENTIAL: the name is empty, or the number of iterations is invalid.

Source: `org.apache.kafka.controller.ScramControlManager`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.scram import ScramDeletion, ScramUpsertion
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequest:
    """An AlterUserScramCredentials request."""

    deletions: tuple[ScramDeletion, ...]
    upsertions: tuple[ScramUpsertion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserResult:
    """The result for a user."""

    user: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsResponse:
    """An AlterUserScramCredentials response."""

    results: tuple[UserResult, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Apply the valid changes in one commit, and return the result for each user."""
    del call
    outcomes = context.controller.alter_scram_credentials([*request.deletions, *request.upsertions])
    return AlterUserScramCredentialsResponse(
        results=tuple(
            UserResult(user=user)
            if error is None
            else UserResult(user=user, error_code=error.error_code, error_message=error.message)
            for user, error in outcomes.items()
        )
    )


API: Final = Api(
    key=51,
    versions=range(1),
    request=AlterUserScramCredentialsRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.ALTER),),
)
