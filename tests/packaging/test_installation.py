"""An installation of the wheel from the sdist in a fresh environment, which reads a topic.

With a C compiler the wheel contains the kernel, without one only the implementation in Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conftest import TopicFactory
from tests.packaging.test_distribution import KERNEL, PROJECT, VARIABLE, build

ROWS = 2000
PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import pyspark_kafka
from pyspark_kafka.records import IMPLEMENTATION, DecodeRequest, decode

bootstrap_servers, topic, golden = sys.argv[1:]
request = DecodeRequest(
    topic="t", partition=0, start_offset=0, end_offset=1 << 40, columns=("value",), aborted=None
)
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
frame = (
    spark.read.format("pyspark_kafka")
    .option("kafka.bootstrap.servers", bootstrap_servers)
    .option("subscribe", topic)
    .load()
)
rows = [row.value.decode() for row in frame.sort("offset").collect()]
decoded = sum(b.num_rows for b in decode(Path(golden).read_bytes(), request).batches)
spark.stop()
found = {
    "file": pyspark_kafka.__file__,
    "implementation": IMPLEMENTATION,
    "rows": rows,
    "decoded": decoded,
}
Path("found.json").write_text(json.dumps(found))
"""

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the unpacked sdist."""
    directory = tmp_path_factory.mktemp("sdist")
    path, _ = build(directory, target="sdist")
    with tarfile.open(path) as packed:
        packed.extractall(directory / "unpacked", filter="data")
    (root,) = (directory / "unpacked").iterdir()
    return root


def activated(fresh: Path) -> dict[str, str]:
    """Return the variables of the active environment, without references to this checkout."""
    own = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in own}
    path = f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"VIRTUAL_ENV": str(fresh), "PATH": path}


def run(*command: object, cwd: Path, timeout_s: int) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=activated(cwd / "fresh"),
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.parametrize("implementation", ["cython", "pure"])
def test_an_installed_wheel_reads_a_topic(
    implementation: str, unpacked: Path, bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    compiler = (
        {"PYSPARK_KAFKA_RECORDS": "cython"} if implementation == "cython" else {"CC": "/not/there"}
    )
    if implementation == "cython" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    wheel, _ = build(tmp_path / "wheel", source=unpacked, **compiler)
    assert ("-cp311-abi3-" if implementation == "cython" else "-py3-none-any.") in wheel.name
    values = [f"value {index}" for index in range(ROWS)]
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "compression.type": "lz4"})
    for value in values:
        producer.produce(name, value)
    assert producer.flush(30) == 0

    run(sys.executable, "-m", "venv", "fresh", cwd=tmp_path, timeout_s=300)
    python = tmp_path / "fresh" / "bin" / "python"
    constraints = PROJECT / "constraints.txt"
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", constraints)
    run(*pip, "pip", cwd=tmp_path, timeout_s=300)
    run(
        *(*pip, "--build-constraint", constraints, f"{wheel}[spark]"),
        cwd=tmp_path,
        timeout_s=600,
    )
    golden = PROJECT / "tests" / "golden" / "none.bin"
    (tmp_path / "program.py").write_text(PROGRAM)
    run(python, "program.py", bootstrap, name, golden, cwd=tmp_path, timeout_s=400)

    found = json.loads((tmp_path / "found.json").read_text())
    site_packages = next((tmp_path / "fresh").glob("lib/*/site-packages"))
    assert found["rows"] == values
    assert (found["implementation"], found["decoded"] > 0) == (implementation, True)
    assert Path(found["file"]).is_relative_to(site_packages)
    assert (site_packages / KERNEL).exists() == (implementation == "cython")
