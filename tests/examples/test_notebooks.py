"""The notebooks run from the first to the last cell, print the expected results and draw plots."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from broker_ref import Cluster, Security
from integration.clusters.maven import SPARK_KAFKA_CONNECTOR, resolve
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ADMISSION_CONTROL, reason="the plots require Spark 4.2"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a notebook shows: its text, and the number of its plots."""

    text: str
    plots: int


def execute(name: str, *, replaced: Mapping[str, str] | None = None, first_cell: str = "") -> Shown:
    """Run a notebook after `first_cell`, with some of its texts replaced."""
    source = (NOTEBOOKS / f"{name}.ipynb").read_text()
    notebook = nbformat.reads(source, as_version=4)  # type: ignore[no-untyped-call]
    for text, replacement in (replaced or {}).items():
        assert any(text in cell.source for cell in notebook.cells), f"{name} has no {text}"
        for cell in notebook.cells:
            cell.source = cell.source.replace(text, replacement)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first_cell))  # type: ignore[no-untyped-call]
    where = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    data = [output.get("data", {}) for output in outputs]
    printed = [output.get("text", "") for output in outputs]
    return Shown(
        text="\n".join([*printed, *(shown.get("text/plain", "") for shown in data)]),
        plots=sum("image/png" in shown for shown in data),
    )


@pytest.fixture(autouse=True)
def _kernel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.full
@pytest.mark.sampled
def test_quickstart() -> None:
    shown = execute("quickstart")
    assert shown.plots == 1
    assert re.search(r"183\.62\.140\.253\|\s*286\|", shown.text)


@pytest.mark.full
@pytest.mark.sampled
def test_exactly_once() -> None:
    shown = execute("exactly_once")
    assert shown.plots == 2
    counts = re.findall(r"\{'at-least-once': (\d+), 'exactly-once': (\d+)\}", shown.text)
    before, after = [(int(repeated), int(exact)) for repeated, exact in counts]
    assert before == (595, 595)
    assert after[0] > 595
    assert after[1] == 595
    assert "state=finished" in shown.text


@pytest.mark.full
@pytest.mark.sampled
def test_migration() -> None:
    jars = ",".join(map(str, resolve(SPARK_KAFKA_CONNECTOR)))
    shown = execute(
        "migration", replaced={'"spark.jars.packages", jars': f'"spark.jars", "{jars}"'}
    )
    assert shown.plots == 1
    assert "2000 rows, 2000 distinct" in shown.text
    assert "same lines as in the log: True" in shown.text


DATABRICKS = """
from types import SimpleNamespace

from pyspark.sql import SparkSession

get_ipython().register_magic_function(lambda packages: None, magic_name="pip")
dbutils = SimpleNamespace(
    library=SimpleNamespace(restartPython=lambda: None),
    secrets=SimpleNamespace(get=lambda scope, key: {secrets!r}[key]),
)
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", {warehouse!r})
    .getOrCreate()
)
"""


@pytest.mark.full
@pytest.mark.sampled
def test_databricks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SPARK_TESTING makes the Connect server use a free port instead of port 15002.
    monkeypatch.setenv("SPARK_TESTING", "true")
    with Cluster(security=Security()) as cluster:
        settings = cluster.client_settings().librdkafka()
        secrets = {
            "bootstrap-servers": settings["bootstrap.servers"],
            "username": settings["sasl.username"],
            "password": settings["sasl.password"],
            "ca": Path(settings["ssl.ca.location"]).read_text(),
        }
        shown = execute(
            "databricks",
            replaced={"/Volumes/main/kafka/files": str(tmp_path), "main.kafka.": "default."},
            first_cell=DATABRICKS.format(secrets=secrets, warehouse=str(tmp_path / "warehouse")),
        )
    assert shown.plots == 1
    assert "1000 rows in the table" in shown.text
    assert "50 alerts" in shown.text
