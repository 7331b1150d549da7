"""Changes to SCRAM credentials (Kafka's `ScramControlManager` and `ScramParser`).

As in Kafka, the error codes are UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM,
RESOURCE_NOT_FOUND and DUPLICATE_RESOURCE. An invalid change for one user does not affect other
users.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.records import (
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    NONCE_BYTES,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

DEFAULT_ITERATIONS: Final = 4096

_DUPLICATE: Final = "A user credential cannot be altered twice in the same request"


class InvalidScramArgumentError(ValueError):
    """An argument of `--add-scram` is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramDeletion:
    """The removal of a user's credential for one mechanism."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """A new or changed credential of a user."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


def scram_changes(
    credentials: Mapping[tuple[int, str], ScramCredential],
    changes: Sequence[ScramDeletion | ScramUpsertion],
) -> tuple[list[MetadataRecord], dict[str, ApiError | None]]:
    """Return the records for the valid changes, and the error or None for each user."""
    outcomes: dict[str, ApiError | None] = {}
    records: dict[str, MetadataRecord] = {}
    for change in changes:
        if change.name in outcomes:
            if outcomes[change.name] is None:
                outcomes[change.name] = ApiError(ErrorCode.duplicate_resource, _DUPLICATE)
                del records[change.name]
            continue
        try:
            records[change.name] = _record(credentials, change)
            outcomes[change.name] = None
        except ApiError as error:
            outcomes[change.name] = error
    return list(records.values()), outcomes


def _record(
    credentials: Mapping[tuple[int, str], ScramCredential], change: ScramDeletion | ScramUpsertion
) -> MetadataRecord:
    if not change.name:
        raise ApiError(ErrorCode.unacceptable_credential, "Username must not be empty")
    if change.mechanism not in list(ScramMechanism):
        raise ApiError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(change, ScramDeletion):
        if (change.mechanism, change.name) not in credentials:
            raise ApiError(
                ErrorCode.resource_not_found,
                "Attempt to delete a user credential that does not exist",
            )
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    if change.iterations < ITERATIONS_MIN:
        raise ApiError(ErrorCode.unacceptable_credential, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise ApiError(ErrorCode.unacceptable_credential, "Too many iterations")
    return credential_record(
        change.name,
        ScramMechanism(change.mechanism),
        salt=change.salt,
        salted=change.salted_password,
        iterations=change.iterations,
    )


def credential_record(
    name: str, mechanism: ScramMechanism, *, salt: bytes, salted: bytes, iterations: int
) -> UserScramCredentialRecord:
    """Return the credential record for a salted password."""
    credential = credential_of(mechanism, salt=salt, salted_password=salted, iterations=iterations)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=iterations,
    )


def parse_scram_argument(
    text: str, *, random_bytes: Callable[[int], bytes]
) -> UserScramCredentialRecord:
    """Parse an argument such as `SCRAM-SHA-256=[name=alice,password=alice-secret]`.

    The argument has the format used by Kafka's storage tool. Raises: InvalidScramArgumentError,
    whose message contains no secrets.
    """
    mechanism_name, separator, configs = text.strip().partition("=")
    if not separator:
        raise InvalidScramArgumentError("Failed to find equals sign in SCRAM argument")
    mechanism = ScramMechanism.named(mechanism_name)
    if mechanism is None:
        raise InvalidScramArgumentError(
            f"The add-scram mechanism {mechanism_name} is not supported"
        )
    if not configs.startswith("["):
        raise InvalidScramArgumentError("Expected configuration string to start with [")
    if not configs.endswith("]"):
        raise InvalidScramArgumentError("Expected configuration string to end with ]")
    values = dict(_component(part) for part in configs[1:-1].split(","))
    name = values.pop("name", None)
    if name is None:
        raise InvalidScramArgumentError("You must supply 'name' to add-scram")
    salt = _bytes(values.pop("salt", None), "salt")
    iterations = _iterations(values.pop("iterations", str(DEFAULT_ITERATIONS)), mechanism_name)
    password = values.pop("password", None)
    salted = _bytes(values.pop("saltedpassword", None), "saltedpassword")
    if values:
        raise InvalidScramArgumentError(f"Unknown SCRAM configurations: {', '.join(values)}")
    if password is not None:
        salt = random_bytes(NONCE_BYTES) if salt is None else salt
        salted = salted_password(mechanism, password, salt=salt, iterations=iterations)
    if salted is None:
        raise InvalidScramArgumentError(
            "You must supply one of 'password' or 'saltedpassword' to add-scram"
        )
    if salt is None:
        raise InvalidScramArgumentError("You must supply 'salt' with 'saltedpassword' to add-scram")
    return credential_record(name, mechanism, salt=salt, salted=salted, iterations=iterations)


def _component(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise InvalidScramArgumentError("No equals sign found in a SCRAM component")
    if len(value) >= 2 and value.startswith('"') and value.endswith('"'):
        value = value[1:-1]
    return name, value


def _bytes(text: str | None, name: str) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error:
        raise InvalidScramArgumentError(f"Failed to decode given {name}") from None


def _iterations(text: str, mechanism_name: str) -> int:
    try:
        iterations = int(text)
    except ValueError:
        raise InvalidScramArgumentError(f"Failed to parse iterations count: {text}") from None
    for bound, is_valid in (
        (f">= {ITERATIONS_MIN}", iterations >= ITERATIONS_MIN),
        (f"<= {ITERATIONS_MAX}", iterations <= ITERATIONS_MAX),
    ):
        if not is_valid:
            raise InvalidScramArgumentError(
                f"The 'iterations' value must be {bound} for add-scram using {mechanism_name}"
            )
    return iterations
