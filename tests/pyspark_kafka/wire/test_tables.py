"""Tests of the tables of versions, error codes and pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map

from pyspark_kafka.errors import (
    AuthorizationError,
    BrokerUnreachableError,
    KafkaError,
    LeaderNotAvailableError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction, error_class, format_code
from pyspark_kafka.wire.retry import Backoff, Clock
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api, BrokerVersions


def versions(first: int, last: int) -> BrokerVersions:
    return BrokerVersions(broker="broker 7", ranges={Api.FETCH: (first, last)})


@pytest.mark.parametrize(
    ("first", "last", "chosen"), [(0, 11, 11), (4, 4, 4), (0, 99, 17), (17, 18, 17)]
)
def test_the_highest_version_of_both_is_chosen(first: int, last: int, chosen: int) -> None:
    assert versions(first, last).choose(Api.FETCH) == chosen


def test_a_choice_can_be_bounded() -> None:
    assert versions(0, 17).choose(Api.FETCH, at_most=12) == 12
    with pytest.raises(UnsupportedVersionError, match="4 to 12"):
        versions(13, 17).choose(Api.FETCH, at_most=12)
    assert versions(0, 13).choose(Api.FETCH, at_least=13) == 13
    with pytest.raises(UnsupportedVersionError, match=r"\b13 to 17\b"):
        versions(0, 12).choose(Api.FETCH, at_least=13)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (18, 20)])
def test_the_error_of_no_common_version_has_both_ranges(first: int, last: int) -> None:
    expected = rf"(?i)broker 7\b.*Fetch\b.*{first} to {last}\b.*\b4 to 17\b"
    with pytest.raises(UnsupportedVersionError, match=expected):
        versions(first, last).choose(Api.FETCH)


def test_an_api_that_the_broker_does_not_support() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"(?i)broker 7\b.*FindCoordinator"):
        versions(4, 17).choose(Api.FIND_COORDINATOR)
    with pytest.raises(UnsupportedVersionError, match=r"3\.0"):
        versions(4, 17).choose(Api.LIST_TRANSACTIONS)


def test_kio_has_all_supported_versions() -> None:
    for api, supported in SUPPORTED_VERSIONS.items():
        name = api_key_map[api]
        assert name == api.name.lower()
        known = schema_name_map[name]
        assert set(range(supported.first, supported.last + 1)) <= known.keys()
        assert supported.first <= supported.throttled_from <= supported.last


def test_every_code_has_a_reaction_and_what_kafka_retries_is_retried() -> None:
    assert REACTIONS.keys() == set(ErrorCode)
    passing = {Reaction.RETRY, Reaction.REFRESH_METADATA, Reaction.FIND_COORDINATOR}
    assert {code for code, reaction in REACTIONS.items() if reaction in passing} == {
        code for code in ErrorCode if code.retriable
    }
    assert [c for c, reaction in REACTIONS.items() if reaction is Reaction.SUCCEED] == [
        ErrorCode.none
    ]


@pytest.mark.parametrize(
    ("code", "reaction", "kind"),
    [
        (ErrorCode.not_leader_or_follower, Reaction.REFRESH_METADATA, LeaderNotAvailableError),
        (ErrorCode.fenced_leader_epoch, Reaction.REFRESH_METADATA, LeaderNotAvailableError),
        (ErrorCode.kafka_storage_error, Reaction.REFRESH_METADATA, LeaderNotAvailableError),
        (ErrorCode.leader_not_available, Reaction.REFRESH_METADATA, LeaderNotAvailableError),
        (ErrorCode.listener_not_found, Reaction.REFRESH_METADATA, LeaderNotAvailableError),
        (ErrorCode.replica_not_available, Reaction.REFRESH_METADATA, LeaderNotAvailableError),
        (ErrorCode.offset_not_available, Reaction.RETRY, LeaderNotAvailableError),
        (ErrorCode.network_exception, Reaction.REFRESH_METADATA, BrokerUnreachableError),
        (ErrorCode.unknown_leader_epoch, Reaction.RETRY, LeaderNotAvailableError),
        (ErrorCode.unknown_topic_id, Reaction.REFRESH_METADATA, UnknownTopicOrPartitionError),
        (ErrorCode.not_coordinator, Reaction.FIND_COORDINATOR, KafkaError),
        (ErrorCode.coordinator_load_in_progress, Reaction.RETRY, KafkaError),
        (ErrorCode.topic_authorization_failed, Reaction.FAIL, AuthorizationError),
        (ErrorCode.transactional_id_authorization_failed, Reaction.FAIL, AuthorizationError),
        (ErrorCode.concurrent_transactions, Reaction.RETRY, KafkaError),
        (ErrorCode.producer_fenced, Reaction.FAIL, ProducerFencedError),
        (ErrorCode.invalid_producer_epoch, Reaction.FAIL, ProducerFencedError),
        (ErrorCode.unknown_server_error, Reaction.FAIL, KafkaError),
    ],
)
def test_codes(code: ErrorCode, reaction: Reaction, kind: type[KafkaError]) -> None:
    assert REACTIONS[code] is reaction
    assert error_class(code) is kind
    assert kind.remedy


def test_format_code() -> None:
    assert format_code(ErrorCode.not_coordinator) == "NOT_COORDINATOR (16)"


def test_pauses_grow_to_a_maximum() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.0, jitter=0.0)
    assert [backoff.backoff_s(attempts, 0.5) for attempts in (1, 2, 3, 4, 5)] == [
        0.1,
        0.2,
        0.4,
        0.8,
        1.0,
    ]


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_jitter_is_bounded(attempts: int, random_number: float) -> None:
    plain = Backoff(jitter=0.0).backoff_s(attempts, 0.5)
    assert 0.8 * plain <= Backoff().backoff_s(attempts, random_number) <= min(1.2 * plain, 1.0)


def test_a_pause_ends_at_the_deadline() -> None:
    now_s = 10.0
    slept_s: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept_s.append(seconds)
        now_s += seconds

    clock = Clock(now=lambda: now_s, sleep=sleep, random=lambda: 0.5)
    backoff = Backoff(first_s=0.25, longest_s=4.0)
    assert backoff.sleep(1, clock=clock, deadline=10.5)
    assert not backoff.sleep(2, clock=clock, deadline=10.5)
    assert not backoff.sleep(3, clock=clock, deadline=10.5)
    assert slept_s == [0.25, 0.25, 0.0]
