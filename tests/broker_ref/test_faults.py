"""Tests of `Faults` without a node: rules, links, clocks and recorded requests."""

from __future__ import annotations

import threading

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.faults import (
    PROCEED,
    Delay,
    Drop,
    DropResponse,
    Faults,
    Hold,
    Match,
    Refuse,
    RequestInfo,
    Sender,
)

PRODUCE, FETCH, ENVELOPE, HEARTBEAT = 0, 1, 58, 63


def info(
    api_key: int = PRODUCE,
    *,
    node_id: int = 1,
    client_id: str | None = "client",
    sender_id: int | None = None,
    partitions: frozenset[tuple[str, int]] = frozenset(),
) -> RequestInfo:
    return RequestInfo(
        node_id=node_id,
        api_key=api_key,
        version=9,
        client_id=client_id,
        sender_id=sender_id,
        is_between_nodes=sender_id is not None,
        topics=frozenset(topic for topic, _ in partitions),
        partitions=partitions,
    )


@pytest.fixture
def faults() -> Faults:
    return Faults()


def test_without_rules_faults_are_inactive(faults: Faults) -> None:
    was_active = [faults.is_active]
    with faults.drop(Match()):
        was_active.append(faults.is_active)
    was_active.append(faults.is_active)
    with faults.recording():
        was_active.append(faults.is_active)
    assert was_active == [False, True, False, True]
    assert not faults.is_active
    assert faults.on_request(info(), 0) is PROCEED


def test_each_rule_has_its_action(faults: Faults) -> None:
    with faults.delay(250, Match()):
        assert faults.on_request(info(), 1_000) == Delay(until_ms=1_250)
    with faults.drop(Match()):
        assert faults.on_request(info(), 0) == Drop()
    with faults.refuse(ErrorCode.not_leader_or_follower, Match()):
        expected = Refuse(error_code=ErrorCode.not_leader_or_follower)
        assert faults.on_request(info(), 0) == expected
    with faults.drop_response(Match()):
        assert faults.on_request(info(), 0) == DropResponse()
    with faults.hold(Match()) as rule:
        assert faults.on_request(info(), 0) == Hold(rule=rule)
        assert rule.is_holding
    assert not rule.is_holding


@pytest.mark.parametrize("times", [1, 3])
def test_a_rule_applies_a_limited_number_of_times(faults: Faults, times: int) -> None:
    rule = faults.drop(Match(), times=times)
    actions = [faults.on_request(info(), 0) for _ in range(times + 2)]
    assert actions == [Drop()] * times + [PROCEED] * 2
    assert rule.hits == times


@pytest.mark.parametrize(
    ("match", "others"),
    [
        (Match(api_keys=frozenset({PRODUCE})), [info(FETCH)]),
        (Match(node_id=1), [info(node_id=2)]),
        (Match(client_id="client"), [info(client_id="other"), info(client_id=None)]),
        (Match(sender=Sender.CLIENT), [info(sender_id=2)]),
    ],
)
def test_a_rule_does_not_affect_other_requests(
    faults: Faults, match: Match, others: list[RequestInfo]
) -> None:
    faults.drop(match)
    assert faults.on_request(info(), 0) == Drop()
    assert [faults.on_request(other, 0) for other in others] == [PROCEED] * len(others)


def test_a_rule_can_match_one_node(faults: Faults) -> None:
    of_broker_2 = faults.drop(Match(api_keys=frozenset({HEARTBEAT}), sender_id=2))
    assert faults.on_request(info(HEARTBEAT, sender_id=2), 0) == Drop()
    assert faults.on_request(info(HEARTBEAT, sender_id=3), 0) is PROCEED
    of_broker_2.remove()
    faults.drop(Match(sender=Sender.NODE))
    assert faults.on_request(info(HEARTBEAT, sender_id=3), 0) == Drop()
    assert faults.on_request(info(FETCH), 0) is PROCEED


def test_an_envelope_is_matched_by_its_api_key_only(faults: Faults) -> None:
    faults.drop(Match(), times=1)
    assert faults.on_request(info(ENVELOPE), 0) is PROCEED
    assert faults.on_request(info(), 0) == Drop()
    faults.drop(Match(api_keys=frozenset({ENVELOPE})))
    assert faults.on_request(info(ENVELOPE), 0) == Drop()


def test_a_rule_for_a_partition_does_not_match_others(faults: Faults) -> None:
    faults.drop(Match(topic="orders", partition=1))
    faults.refuse(ErrorCode.request_timed_out, Match(topic="orders"))
    assert faults.on_request(info(partitions=frozenset({("orders", 1), ("x", 0)})), 0) == Drop()
    other = faults.on_request(info(partitions=frozenset({("orders", 2)})), 0)
    assert other == Refuse(error_code=ErrorCode.request_timed_out)
    assert faults.on_request(info(partitions=frozenset({("other", 1)})), 0) is PROCEED
    with pytest.raises(ValueError, match="partition 1"):
        faults.drop(Match(partition=1))


def test_the_oldest_rule_decides_until_it_is_exhausted(faults: Faults) -> None:
    faults.drop(Match(), times=1)
    faults.drop_response(Match())
    assert faults.on_request(info(), 0) == Drop()
    assert faults.on_request(info(), 0) == DropResponse()


def test_a_removed_rule_releases_and_notifies(faults: Faults) -> None:
    notified: list[bool] = []
    rule = faults.hold(Match(), times=1)
    stop = faults.listen(lambda: notified.append(rule.is_holding))
    assert faults.on_request(info(), 0) == Hold(rule=rule)
    assert faults.on_request(info(), 0) is PROCEED
    assert rule.is_holding
    rule.remove()
    assert notified == [False]
    stop()
    faults.clear()
    assert notified == [False]


def test_another_thread_waits_for_a_request(faults: Faults) -> None:
    rule = faults.hold(Match())
    node = threading.Thread(target=lambda: [faults.on_request(info(), 0) for _ in range(3)])
    node.start()
    rule.wait_for_hits(3, timeout_s=10)
    node.join()
    assert len(rule.requests) == 3
    with pytest.raises(TimeoutError, match=r"\b3\b.*\b4\b"):
        rule.wait_for_hits(4, timeout_s=0.01)


def test_rules_can_change_concurrently_with_requests(faults: Faults) -> None:
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            faults.on_request(info(), 0)

    node = threading.Thread(target=serve)
    node.start()
    try:
        for _ in range(200):
            with faults.drop(Match(), times=1) as rule:
                rule.wait_for_hits(timeout_s=10)
            assert rule.hits == 1
    finally:
        done.set()
        node.join()
    assert not faults.is_active


def test_requests_are_recorded_within_the_block(faults: Faults) -> None:
    with faults.recording(), faults.drop(Match(api_keys=frozenset({FETCH}))):
        faults.on_request(info(PRODUCE), 5)
        faults.on_request(info(FETCH), 6)
    faults.on_request(info(PRODUCE), 7)
    assert [(seen.at_ms, seen.request.api_key) for seen in faults.seen] == [(5, 0), (6, 1)]
    assert len(faults.requests_seen(Match(api_keys=frozenset({FETCH})))) == 1


def test_links_are_cut_in_one_direction_or_both(faults: Faults) -> None:
    faults.cut(1, 2)
    faults.cut(1, 3000, both_ways=False)
    links = [(1, 2), (2, 1), (1, 3000), (3000, 1), (2, 3000)]
    assert [faults.link_is_cut(*link) for link in links] == [True, True, True, False, False]
    faults.heal(1, 2, both_ways=False)
    assert [faults.link_is_cut(*link) for link in links] == [False, True, True, False, False]
    faults.heal_all()
    assert not any(faults.link_is_cut(*link) for link in links)
    faults.isolate(2, [1, 2, 3, 3000])
    links = [(2, 1), (3, 2), (3000, 2), (1, 3), (2, 2)]
    assert [faults.link_is_cut(*link) for link in links] == [True, True, True, False, False]


def test_a_stopped_clock_jumps_when_released(faults: Faults) -> None:
    assert faults.now_ms(1, 1_000) == 1_000
    faults.hold_time(1)
    assert faults.time_is_held(1)
    assert [faults.now_ms(1, at) for at in (1_100, 1_200, 9_000)] == [1_100] * 3
    assert faults.now_ms(2, 9_000) == 9_000
    faults.release_time(1)
    assert faults.now_ms(1, 9_100) == 9_100
    assert not faults.time_is_held(1)


def test_resuming_a_node_notifies_listeners(faults: Faults) -> None:
    notified: list[bool] = []
    faults.listen(lambda: notified.append(faults.is_paused(1)))
    faults.pause(1)
    assert (faults.is_paused(1), faults.is_paused(2)) == (True, False)
    faults.resume(1)
    assert notified == [False]


def test_clear_reverts_all_faults(faults: Faults) -> None:
    rule = faults.hold(Match())
    faults.cut(1, 2)
    faults.hold_time(1)
    faults.pause(1)
    faults.clear()
    assert not faults.is_paused(1)
    assert not rule.is_holding
    assert not faults.is_active
    assert not faults.link_is_cut(1, 2)
    assert not faults.time_is_held(1)
