"""The wheels and sdists of both distributions, their builds, and the locked packages."""

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
CLUSTER = PROJECT / "cluster"


def metadata_of(project: Path) -> dict[str, Any]:
    return tomllib.loads((project / "pyproject.toml").read_text())


def locked(group: str) -> list[str]:
    """Return the requirements in `locks/`, without their hashes."""
    lines = (PROJECT / "locks" / f"{group}.txt").read_text().splitlines()
    return [line.removesuffix(" \\") for line in lines if not line.startswith(" ")]


def requirements(group: str) -> Iterator[str]:
    """Yield the direct requirements of an environment."""
    root = metadata_of(PROJECT)
    yield from root["dependency-groups"][group]
    if group in ("dev", "bench"):
        yield from root["project"]["dependencies"]
        yield from root["project"]["optional-dependencies"]["spark"]
        yield from metadata_of(CLUSTER)["project"]["dependencies"]
    if group == "build":
        for project in (PROJECT, CLUSTER):
            yield from metadata_of(project)["build-system"]["requires"]


@pytest.mark.parametrize("group", ["bench", "build", "dev", "docs", "release"])
def test_locked_versions_match_the_requirements(group: str) -> None:
    pins = [Requirement(text) for text in locked(group)]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    outdated = [
        text
        for text in requirements(group)
        if not Requirement(text).specifier.contains(
            versions.get(canonicalize_name(Requirement(text).name), "0")
        )
    ]
    assert outdated == [], "run `make lock`"


KERNEL = "pyspark_kafka/records/_kernel.abi3.so"
VARIABLE = "PYSPARK_KAFKA_RECORDS"
PRINT_IMPLEMENTATION = "import pyspark_kafka.records as r; print(r.IMPLEMENTATION)"


def build(
    directory: Path, *, source: Path = PROJECT, target: str = "wheel", **environment: str
) -> tuple[Path, str]:
    """Build a wheel or an sdist. Return its path and the output of the build."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)],
        cwd=source,
        env={k: v for k, v in os.environ.items() if k != VARIABLE} | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if done.returncode:
        raise BuildError(done.stdout + done.stderr)
    (path,) = directory.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return path, done.stdout + done.stderr


class BuildError(Exception):
    """A failed build. The message is the output of hatchling."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _ = build(tmp_path_factory.mktemp("wheel"), PYSPARK_KAFKA_RECORDS="pure")
    return path


@pytest.fixture(scope="module")
def cluster_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _ = build(tmp_path_factory.mktemp("wheel"), source=CLUSTER)
    return path


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as packed:
        return packed.namelist()


def metadata_in(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [one for one in packed.namelist() if one.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(packed.read(name))


def required(wheel: Path, *, extra: str = "") -> dict[str, Requirement]:
    """Return the packages that pip installs with the wheel, or in addition with an extra."""
    texts = metadata_in(wheel).get_all("Requires-Dist", [])
    found = {one.name: one for one in map(Requirement, texts)}
    marked = f'extra == "{extra}"' if extra else ""
    return {name: one for name, one in found.items() if marked in str(one.marker or "")}


@pytest.mark.parametrize(
    ("fixture", "package"), [("wheel", "pyspark_kafka"), ("cluster_wheel", "broker_ref")]
)
def test_a_wheel_contains_one_package_and_its_license(
    fixture: str, package: str, request: pytest.FixtureRequest
) -> None:
    names = contents(request.getfixturevalue(fixture))
    assert {re.sub(r"-.*", "", name.split("/")[0]) for name in names} == {package}
    assert f"{package}/__init__.py" in names
    assert f"{package}/py.typed" in names
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    assert not [name for name in names if name.endswith((".log", ".pyx", ".pxi", ".h", ".so"))]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_kernel_is_compiled_if_there_is_a_compiler(tmp_path: Path) -> None:
    path, _ = build(tmp_path, PYSPARK_KAFKA_RECORDS="cython")
    assert "-cp311-abi3-" in path.name
    with zipfile.ZipFile(path) as compiled:
        assert KERNEL in compiled.namelist()
        compiled.extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    environment.pop(VARIABLE, None)
    printed = subprocess.check_output(
        [sys.executable, "-c", PRINT_IMPLEMENTATION], env=environment, text=True
    )
    assert printed == "cython\n"


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure_with_a_warning(tmp_path: Path) -> None:
    path, output = build(tmp_path, CC="/does/not/exist")
    assert path.name.endswith("-py3-none-any.whl")
    assert f"{VARIABLE}=cython" in output
    with zipfile.ZipFile(path) as pure:
        assert KERNEL not in pure.namelist()


@pytest.mark.slow
def test_a_build_with_the_kernel_fails_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="does/not/exist"):
        build(tmp_path, CC="/does/not/exist", PYSPARK_KAFKA_RECORDS="cython")


def test_requirements_in_the_built_metadata(wheel: Path, cluster_wheel: Path) -> None:
    mandatory = {n for n, one in required(wheel).items() if "extra" not in str(one.marker or "")}
    assert mandatory == {"confluent-kafka", "crc32c", "kio", "pyarrow", "scramp"}
    spark = required(wheel, extra="spark")
    assert set(spark) == {"pandas", "pyspark"}
    assert spark["pandas"].specifier.contains("2.3.3")
    assert not spark["pandas"].specifier.contains("3.0.0")  # every PySpark job would warn
    assert set(required(wheel, extra="test")) == {"broker-ref"}
    assert {"pyspark", "pyarrow", "confluent-kafka"}.isdisjoint(required(cluster_wheel))


def test_both_distributions_have_the_same_version_urls_and_pythons(
    wheel: Path, cluster_wheel: Path
) -> None:
    ours, theirs = metadata_in(wheel), metadata_in(cluster_wheel)
    for field in ("Version", "Requires-Python", "License-Expression"):
        assert ours[field] == theirs[field]
    sources = {
        url for one in (ours, theirs) for url in one.get_all("Project-URL", []) if "Source" in url
    }
    assert len(sources) == 1


@pytest.mark.parametrize("fixture", ["wheel", "cluster_wheel"])
def test_links_on_pypi_are_absolute_and_lead_to_files(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    built = metadata_in(request.getfixturevalue(fixture))
    (source,) = [url.split()[1] for url in built.get_all("Project-URL", []) if "Source" in url]
    links = re.findall(r"\]\(([^)#]+)", str(built.get_payload()))
    assert links
    for link in links:
        assert link.startswith("https://")
        path = link.removeprefix(f"{source}/blob/main/")
        assert path == link or (PROJECT / path).exists(), link


def test_pytest_loads_the_plugin_of_broker_ref(cluster_wheel: Path) -> None:
    with zipfile.ZipFile(cluster_wheel) as packed:
        (name,) = [one for one in packed.namelist() if one.endswith("/entry_points.txt")]
        assert "broker_ref = broker_ref.pytest_plugin" in packed.read(name).decode()
