"""Tests of SCRAM credentials: their records, and the arguments of `--add-scram`."""

from __future__ import annotations

import pytest

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
    decode_record,
    encode_record,
)
from broker_ref.controller.scram import InvalidScramArgumentError, parse_scram_argument
from broker_ref.security.scram import ScramMechanism

ALICE = "name=alice,password=alice-secret"


def parsed(text: str) -> UserScramCredentialRecord:
    return parse_scram_argument(text, random_bytes=lambda length: b"r" * length)


def test_a_password() -> None:
    record = parsed(f"SCRAM-SHA-512=[{ALICE}]")
    assert (record.name, record.mechanism, record.iterations) == ("alice", 2, 4096)
    assert (record.salt, len(record.stored_key)) == (b"r" * 24, 64)


def test_a_salted_password() -> None:
    """The values are those of Kafka's `ScramParserTest`."""
    salt = "MWx2NHBkbnc0ZndxN25vdGN4bTB5eTFrN3E="
    salted = "mT0yyUUxnlJaC99HXgRTSYlbuqa4FSGtJCJfTMvjYCE="
    record = parsed(
        f'SCRAM-SHA-256=[name=alice,iterations=8192,salt="{salt}",saltedpassword="{salted}"]'
    )
    assert (record.salt, record.iterations) == (b"1lv4pdnw4fwq7notcxm0yy1k7q", 8192)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SCRAM-SHA-512", "Failed to find equals sign in SCRAM argument"),
        (f"SCRAM-SHA-1=[{ALICE}]", "The add-scram mechanism SCRAM-SHA-1 is not supported"),
        (f"SCRAM-SHA-256={ALICE}", "Expected configuration string to start with"),
        (f"SCRAM-SHA-256=[{ALICE}", "Expected configuration string to end with"),
        ("SCRAM-SHA-256=[name]", "No equals sign found"),
        ("SCRAM-SHA-256=[password=x]", "You must supply 'name' to add-scram"),
        ("SCRAM-SHA-256=[name=bar]", "one of 'password' or 'saltedpassword'"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YCE=]", "You must supply 'salt'"),
        (f"SCRAM-SHA-256=[{ALICE},x=1,y=2]", "Unknown SCRAM configurations: x, y"),
        (f"SCRAM-SHA-256=[{ALICE},iterations=x]", "Failed to parse iterations count: x"),
        (f"SCRAM-SHA-256=[{ALICE},iterations=1]", "must be >= 4096"),
        (f"SCRAM-SHA-256=[{ALICE},iterations=99999]", "must be <= 16384"),
        (f"SCRAM-SHA-256=[{ALICE},salt=!]", "Failed to decode given salt"),
    ],
)
def test_invalid_arguments_are_rejected(text: str, message: str) -> None:
    with pytest.raises(InvalidScramArgumentError, match=message) as raised:
        parsed(text)
    assert "alice-secret" not in str(raised.value)


def test_credentials_survive_a_snapshot() -> None:
    record = parsed(f"SCRAM-SHA-256=[{ALICE}]")
    assert decode_record(encode_record(record)) == record
    assert "salt" not in repr(record)
    metadata = ClusterMetadata()
    metadata.replace([record], 1)
    copy = ClusterMetadata()
    copy.replace(metadata.records(), 1)
    found = copy.scram_credential(ScramMechanism.SCRAM_SHA_256, "alice")
    assert found is not None
    assert found.stored_key == record.stored_key
    copy.replace([record, RemoveUserScramCredentialRecord(name="alice", mechanism=1)], 2)
    assert copy.scram_credential(ScramMechanism.SCRAM_SHA_256, "alice") is None
