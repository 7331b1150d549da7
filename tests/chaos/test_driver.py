"""Drivers are killed, stopped and replaced. The drivers of these tests do not use Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.chaos import driver_process
from integration.chaos.driver import Driver, DriverTimeoutError
from integration.chaos.job import Job

TIMEOUT_S = 60.0


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def driver(tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(driver_process, "_PROGRAM", "tests.chaos.fake_program")
    job = Job(
        bootstrap_servers="", source="", target="", directory=str(tmp_path), format="pyspark_kafka"
    )
    with Driver(job, lines.append) as driver:
        driver.await_running(TIMEOUT_S)
        yield driver


def replace(driver: Driver, *, end_timeout_s: float = TIMEOUT_S) -> None:
    driver.replace(start_timeout_s=TIMEOUT_S, end_timeout_s=end_timeout_s)


def test_a_replaced_driver_is_resumed_and_ends_with_an_error(
    driver: Driver, lines: list[str]
) -> None:
    replace(driver)
    driver.finish(TIMEOUT_S)
    assert (driver.starts, driver.replaced) == (2, 1)
    assert driver.failure_lines == ["failed: pyspark_kafka.errors.SinkFencedError: another run"]
    assert any(line.startswith("driver 1 ended with status 1") for line in lines)


def test_a_replaced_driver_that_succeeds_fails_the_run(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "succeeds").touch()
    with pytest.raises(AssertionError, match=r"\b1\b"):
        replace(driver)


def test_a_replaced_driver_that_does_not_end_fails_the_run(driver: Driver) -> None:
    with pytest.raises(DriverTimeoutError, match=r"\b1\b"):
        replace(driver, end_timeout_s=0.0)


def test_a_killed_driver_is_restarted(driver: Driver) -> None:
    driver.kill()
    driver.await_running(TIMEOUT_S)
    driver.finish(TIMEOUT_S)
    assert (driver.starts, driver.replaced) == (2, 0)
