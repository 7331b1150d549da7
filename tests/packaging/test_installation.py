"""A wheel built from the sdist and installed in a new environment reads a topic.

If there is a C compiler, the wheel contains the kernel. Otherwise it contains only the pure Python
implementation.
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
    """Return the variables of an activated environment, without references to this checkout."""
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


@pytest.mark.skipif(shutil.which("cc") is None, reason="the compiled kernel needs a C compiler")
def test_installed_wheels_read_a_topic(
    unpacked: Path, bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
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
    (tmp_path / "program.py").write_text(PROGRAM)
    golden = PROJECT / "tests" / "golden" / "none.bin"
    site_packages = next((tmp_path / "fresh").glob("lib/*/site-packages"))

    for implementation, variables, requirements in (
        ("cython", {VARIABLE: "cython"}, ("--build-constraint", constraints)),
        # The first wheel installed the dependencies.
        ("pure", {"CC": "/not/there"}, ("--no-deps", "--force-reinstall")),
    ):
        wheel, _ = build(tmp_path / implementation, source=unpacked, **variables)
        tag = "-cp311-abi3-" if implementation == "cython" else "-py3-none-any."
        assert tag in wheel.name
        run(*pip, *requirements, f"{wheel}[spark]", cwd=tmp_path, timeout_s=600)
        run(python, "program.py", bootstrap, name, golden, cwd=tmp_path, timeout_s=400)
        run(python.with_name("pyspark-kafka"), "offsets", "--help", cwd=tmp_path, timeout_s=60)
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["rows"] == values
        assert (found["implementation"], found["decoded"] > 0) == (implementation, True)
        assert Path(found["file"]).is_relative_to(site_packages)
        assert (site_packages / KERNEL).exists() == (implementation == "cython")
