"""Tests that importing the package is fast and never fails.

Spark imports it at every look-up of the data source.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pyspark_kafka
from pyspark_kafka.datasource import KafkaDataSource
from pyspark_kafka.records import IMPLEMENTATION
from pyspark_kafka.version import VERSION


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy() -> None:
    heavy = "{'pyarrow', 'confluent_kafka', 'kio', 'pyspark'}"
    assert run(f"import sys, pyspark_kafka; print({heavy} & sys.modules.keys())") == "set()"


def test_every_public_name_is_listed_and_exists() -> None:
    assert set(pyspark_kafka.__all__) <= set(dir(pyspark_kafka))
    assert all(hasattr(pyspark_kafka, name) for name in pyspark_kafka.__all__)


def test_look_up_loads_no_client() -> None:
    code = (
        "import sys, pyspark_kafka; pyspark_kafka.DefaultSource; print({mods} & sys.modules.keys())"
    )
    mods = "{'confluent_kafka', 'kio', 'pyspark_kafka.options', 'pyspark_kafka.source'}"
    assert run(code.format(mods=mods)) == "set()"


def test_version_is_that_of_pyproject() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["version"] == VERSION


@pytest.mark.skipif(IMPLEMENTATION == "pure", reason="the pure implementation loads more")
def test_transaction_requests_load_no_other_modules() -> None:
    """Every micro-batch sends these requests in new processes, which wait for the imports."""
    # kio imports Hypothesis if it is installed, and Hypothesis imports many modules.
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import pyspark_kafka.client.native.transactional_client\n"
        "import pyspark_kafka.client.native.log_reader\n"
        "print({mods} & sys.modules.keys())"
    )
    mods = (
        "{'asyncio', 'confluent_kafka', 'importlib.metadata', 'kio.serial', 'pandas', "
        "'pyarrow.compute', 'pyspark_kafka.client.native.producer', 'ssl'}"
    )
    assert run(code.format(mods=mods)) == "set()"


def test_without_pyspark_there_is_no_default_source() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
import pyspark_kafka
print(hasattr(pyspark_kafka, "DefaultSource"))
try:
    pyspark_kafka.DefaultSource
except AttributeError as error:
    print(error)
"""
    found, message = run(code).splitlines()
    assert found == "False"
    assert "4.0" in message
    assert "pip install 'pyspark-kafka[spark]'" in message


def test_default_source_is_the_data_source() -> None:
    assert pyspark_kafka.DefaultSource is KafkaDataSource
    assert KafkaDataSource.name() == "pyspark_kafka"
    assert not hasattr(pyspark_kafka, "nothing_of_the_kind")
