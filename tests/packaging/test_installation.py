"""Wheels of both distributions, built from the sdists, work in new environments.

If there is a C compiler, the wheel of `pyspark-kafka` contains the kernel. Otherwise it contains
only the pure Python implementation.
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

from tests.packaging.test_distribution import CLUSTER, KERNEL, PROJECT, VARIABLE, build, locked

PROGRAMS = Path(__file__).parent
START_A_CLUSTER = """
from broker_ref import Cluster
with Cluster(brokers=3) as cluster:
    cluster.create_topic("orders", partitions=3, replication_factor=3)
"""

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]


def unpacked_sdist(project: Path, directory: Path) -> Path:
    """Build an sdist and return the directory with its files."""
    path, _ = build(directory, source=project, target="sdist")
    with tarfile.open(path) as packed:
        packed.extractall(directory / "unpacked", filter="data")
    (root,) = (directory / "unpacked").iterdir()
    return root


def activated(environment: Path) -> dict[str, str]:
    """Return the variables of an activated environment, without references to this checkout."""
    own = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in own}
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"VIRTUAL_ENV": str(environment), "PATH": path}


class FreshEnvironment:
    """A new virtual environment. Packages have the versions in `locks/dev.txt`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "environment"
        self.bin = self._path / "bin"
        (directory / "constraints.txt").write_text("\n".join(locked("dev")))
        subprocess.run([sys.executable, "-m", "venv", str(self._path)], check=True, timeout=300)

    @property
    def site_packages(self) -> Path:
        return next(self._path.glob("lib/*/site-packages"))

    def run(self, *arguments: object) -> str:
        """Run Python and return its output."""
        done = subprocess.run(
            [str(self.bin / "python"), *(str(one) for one in arguments)],
            cwd=self._directory,
            env=activated(self._path),
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return done.stdout

    def install(self, *arguments: object) -> None:
        self.run("-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", *arguments)

    def installed(self) -> set[str]:
        listed = json.loads(self.run("-m", "pip", "list", "--format", "json"))
        return {one["name"].lower() for one in listed}


@pytest.fixture(scope="module")
def broker_ref(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of `broker-ref`."""
    directory = tmp_path_factory.mktemp("broker-ref")
    wheel, _ = build(directory / "wheel", source=unpacked_sdist(CLUSTER, directory))
    return wheel


def test_broker_ref_alone_starts_a_cluster(broker_ref: Path, tmp_path: Path) -> None:
    environment = FreshEnvironment(tmp_path)
    environment.install(broker_ref)
    assert environment.installed().isdisjoint(
        {"pyspark-kafka", "pyspark", "pyarrow", "confluent-kafka", "numpy", "pandas"}
    )
    environment.run("-c", START_A_CLUSTER)


def repaired(wheel: Path, directory: Path) -> Path:
    """Return the wheel as it is published: auditwheel checks its libraries and changes its tag."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(directory), str(wheel)],
        env={**os.environ, "PATH": tools},
        check=True,
        timeout=100,
    )
    (path,) = directory.glob("*.whl")
    return path


@pytest.mark.skipif(shutil.which("cc") is None, reason="the compiled kernel needs a C compiler")
def test_installed_wheels_run_the_quickstart(broker_ref: Path, tmp_path: Path) -> None:
    source = unpacked_sdist(PROJECT, tmp_path)
    compiled, _ = build(tmp_path / "cython", source=source, **{VARIABLE: "cython"})
    if sys.platform == "linux":
        compiled = repaired(compiled, tmp_path / "repaired")
        assert "-cp311-abi3-manylinux" in compiled.name
    pure, _ = build(tmp_path / "pure", source=source, CC="/not/there")
    environment = FreshEnvironment(tmp_path)
    for implementation, wheel, options in (
        ("cython", f"{compiled}[spark,test]", ("--find-links", broker_ref.parent)),
        # The first wheel installed the dependencies.
        ("pure", pure, ("--no-deps", "--force-reinstall")),
    ):
        environment.install(*options, wheel)
        assert environment.run(PROGRAMS / "decode_golden.py").split() == [implementation]
        environment.run(PROGRAMS / "quickstart.py")
        environment.run(environment.bin / "pyspark-kafka", "offsets", "--help")
        assert (environment.site_packages / KERNEL).exists() == (implementation == "cython")
