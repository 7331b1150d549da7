"""The `--cluster` option: the header of a test run, and the tests that it deselects."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
_COLLECT = ["-m", "pytest", "tests/integration/test_kafka_backend.py", "--collect-only"]


def collected(backend: str, *options: str) -> str:
    command = [
        sys.executable,
        *_COLLECT,
        f"--cluster={backend}",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    ).stdout


def test_kafka_only_tests_are_deselected_and_counted() -> None:
    output = collected("reference")
    assert re.search(r"\breference\b.*\bbroker_ref\b.*\b1\b.*\b3\b.*tests/conformance", output)
    assert re.search(r"\b3\b.*\bkafka_only\b.*--cluster=kafka\b", output)
    assert "test_a_killed_broker_restarts" not in output


def test_on_kafka_tests_without_a_cluster_are_deselected() -> None:
    output = collected("kafka")
    assert "Apache Kafka 4.3.0" in output
    assert re.search(r"\b[1-9]\d* deselected\b", output)
    assert "test_a_killed_broker_restarts" in output
    assert "test_an_unknown_backend_is_rejected" not in output


def test_the_header_has_the_number_of_brokers() -> None:
    assert re.search(r"Apache Kafka 4\.3\.0\b.*\b2\b", collected("kafka", "--brokers=2"))


@pytest.mark.parametrize("count", ["0", "many"])
def test_an_invalid_number_of_brokers_is_rejected_before_any_test(count: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        collected("reference", f"--brokers={count}")
    assert "--brokers" in refused.value.stderr


def test_an_unknown_backend_is_rejected_before_any_test() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        collected("rabbit")
    assert "'rabbit'" in refused.value.stderr


def test_tests_of_an_unavailable_backend_are_skipped_with_the_remedy(
    tmp_path: Path,
) -> None:
    # There is no java and no mvn on this PATH.
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "tests/conformance/test_describe_cluster.py", "--cluster=kafka"),
            *("-p", "no:cacheprovider"),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
        env={"PATH": str(tmp_path)},
    )
    assert re.search(r"\bJDK\b.*\b17\b", done.stdout)
    assert "passed" not in done.stdout
