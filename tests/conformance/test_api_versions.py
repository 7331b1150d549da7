"""Tests of ApiVersions for old and new clients (KIP-35, KIP-511)."""

from __future__ import annotations

import struct

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection, api_key
from tests.conformance.wire import served

ISSUED = [
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "fetch",
    "find_coordinator",
    "init_producer_id",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_fetch",
    "produce",
]
NEW_CLIENT = {"client_software_name": "conformance", "client_software_version": "1.0"}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_client_gets_the_versions(raw: RawConnection, version: int) -> None:
    response = raw.call("api_versions", version)
    assert response.error_code == ErrorCode.none
    _check_ranges(response)


@pytest.mark.parametrize("version", [3, 4])
def test_new_client_gets_the_versions(raw: RawConnection, version: int) -> None:
    response = raw.call("api_versions", version, **NEW_CLIENT)
    assert response.error_code == ErrorCode.none
    _check_ranges(response)


def _check_ranges(response: object) -> None:
    entries = response.api_keys  # type: ignore[attr-defined]
    keys = [entry.api_key for entry in entries]
    assert len(keys) == len(set(keys))
    assert {api_key(api) for api in ISSUED} <= set(keys)
    assert all(0 <= entry.min_version <= entry.max_version for entry in entries)


def test_every_request_version_returns_the_same_ranges(raw: RawConnection) -> None:
    responses = [
        {(e.api_key, e.min_version, e.max_version) for e in raw.call("api_versions", v).api_keys}
        if v < 3
        else {
            (e.api_key, e.min_version, e.max_version)
            for e in raw.call("api_versions", v, **NEW_CLIENT).api_keys
        }
        for v in served(raw, "api_versions")
    ]
    assert all(response == responses[0] for response in responses)


def test_unknown_version_gets_a_response_in_version_0(raw: RawConnection) -> None:
    # A client whose version the broker does not support can only be sure to decode version 0.
    raw.send_frame(struct.pack(">hhih", 18, 99, 7, -1) + b"\0" + b"\x05who?")
    frame = raw.receive_frame()
    correlation_id, error_code, count = struct.unpack_from(">ihi", frame)
    assert (correlation_id, error_code) == (7, ErrorCode.unsupported_version)
    entries = [struct.unpack_from(">hhh", frame, 10 + 6 * i) for i in range(count)]
    assert len(frame) == 10 + 6 * count
    assert [entry for entry in entries if entry[0] == 18] == [(18, 0, 4)]
    assert raw.call("api_versions", 0).error_code == ErrorCode.none


@pytest.mark.parametrize("name", ["", "a b", "-leading", "trailing.", "no/slash"])
def test_software_name_with_odd_characters_is_refused(raw: RawConnection, name: str) -> None:
    response = raw.call("api_versions", 3, client_software_name=name, client_software_version="1.0")
    assert response.error_code == ErrorCode.invalid_request


def test_request_may_be_repeated_at_any_time(raw: RawConnection) -> None:
    before = raw.call("api_versions", 0).api_keys
    raw.call("metadata", 1, topics=[])
    assert raw.call("api_versions", 0).api_keys == before
