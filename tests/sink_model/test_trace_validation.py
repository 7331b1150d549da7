"""The model allows the sequences of steps and requests of the protocol, and no others."""

from __future__ import annotations

import pytest

from integration.sink_model.trace_validation import first_invalid

PLANNING = ("plan.fence.init_producer_id", "plan.read.read_log", "plan.sweep.list_transactions")
COMMIT = (
    "commit.verify.describe_transactions",
    "commit.decide.produce",
    "commit.decide.end_transactions",
    "commit.roll_forward.end_transactions",
    "commit.mark.produce",
    "commit.sweep.list_transactions",
)
REPLAY = ("commit.compare.read_log", "commit.compare.end_transactions", "commit.mark.produce")
ABORT = (
    "abort.look.describe_transactions",
    "abort.fence.init_producer_id",
    "abort.read.read_log",
    "abort.sweep.list_transactions",
)
TASK = (
    "task.init.init_producer_id",
    "task.look.describe_transactions",
    "task.produce.produce",
    "task.give_up.end_transactions",
)


def failpoints(*requests: str) -> list[str]:
    return [f"{each}.{when}" for each in requests for when in ("before", "after")]


@pytest.mark.slow
@pytest.mark.parametrize("requests", [PLANNING, COMMIT, COMMIT[1:], REPLAY, ABORT, TASK])
def test_each_process_may_end_at_any_request(requests: tuple[str, ...]) -> None:
    for count in range(len(requests) + 1):
        assert first_invalid(failpoints(*requests[:count])) is None
    assert first_invalid(failpoints(*requests), is_complete=True) is None


@pytest.mark.slow
@pytest.mark.parametrize("requests", [PLANNING, COMMIT, ABORT, TASK[:3]])
def test_no_request_may_be_omitted_and_no_two_may_change_places(requests: tuple[str, ...]) -> None:
    for index in range(1, len(requests) - 1):
        before, left = requests[:index], requests[index + 1 :]
        if requests[index].startswith("commit.roll_forward"):
            continue  # A batch without rows has no transactions to roll forward.
        assert first_invalid(failpoints(*before, *left)) is not None, requests[index]
        swapped = (*before, left[0], requests[index], *left[1:])
        assert first_invalid(failpoints(*swapped)) is not None, requests[index]


@pytest.mark.slow
@pytest.mark.parametrize("requests", [PLANNING[:-1], COMMIT[:-1]])
def test_a_process_that_succeeds_has_swept(requests: tuple[str, ...]) -> None:
    assert first_invalid(failpoints(*requests), is_complete=True) is not None


@pytest.mark.slow
def test_a_request_that_the_model_does_not_have() -> None:
    assert first_invalid(failpoints(COMMIT[0], "commit.decide.init_producer_id")) is not None
