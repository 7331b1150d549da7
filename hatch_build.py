"""Build hook that compiles the kernel of `pyspark_kafka.records` if there is a C compiler.

A wheel build or an editable install compiles `_kernel.pyx` into an extension for Python's stable
ABI (Python 3.11 and later). Without a compiler, the hook prints a warning and installs the package
without the extension. With `PYSPARK_KAFKA_RECORDS=cython`, a missing compiler is an error. With
`pure`, the hook builds no extension.

Invariant: a wheel's tag matches its content.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("connector", "pyspark_kafka", "records")
TARGET = "pyspark_kafka/records"
MODULE = "pyspark_kafka.records._kernel"
STABLE_SINCE = ("0x030B0000", "cp311")
VARIABLE = "PYSPARK_KAFKA_RECORDS"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Hook that adds the extension to a wheel or, for an editable install, to the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        selected = os.environ.get(VARIABLE)
        source = Path(self.root, PACKAGE)
        for stale in source.glob("_kernel*.so") if version == "editable" else ():
            stale.unlink()
        if selected == "pure":
            return
        # Hatchling reads the files after this method returns, so `finalize` removes the directory.
        self._directory = tempfile.TemporaryDirectory(prefix="pyspark-kafka-")
        try:
            extension = build_kernel(Path(self.root), Path(self._directory.name))
        except BuildFailedError as failed:
            if selected == "cython":
                raise
            self.app.display_warning(
                f"The kernel of pyspark-kafka was not compiled ({failed}). Records will be decoded "
                "in pure Python, which is slower. Install a C compiler and the Python headers. To "
                f"make this an error, set {VARIABLE}=cython."
            )
            return
        if version == "editable":
            (source / extension.name).write_bytes(extension.read_bytes())
            return
        build_data["force_include"][str(extension)] = f"{TARGET}/{extension.name}"
        build_data["pure_python"] = False
        build_data["tag"] = wheel_tag(self.build_config.builder.get_best_matching_tag())

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if hasattr(self, "_directory"):
            self._directory.cleanup()


class BuildFailedError(Exception):
    """The C compiler or Cython is missing or failed."""


def is_stable() -> bool:
    """Return whether this Python has the stable ABI. Free-threaded builds do not."""
    return not sysconfig.get_config_var("Py_GIL_DISABLED")


def wheel_tag(best: str) -> str:
    """Return the tag for the stable ABI if this Python has it, otherwise `best`.

    `best` is the tag for this Python and this platform. It is not a manylinux or musllinux tag,
    because the extension is linked against the C library of this machine: auditwheel changes the
    tag after it has checked the libraries.
    """
    platform = best.rpartition("-")[2]
    return f"{STABLE_SINCE[1]}-abi3-{platform}" if is_stable() else best


def build_kernel(root: Path, directory: Path) -> Path:
    """Compile the extension into `directory` and return its path.

    Raises `BuildFailedError` and Cython's errors.
    """
    try:
        from Cython.Build import cythonize  # noqa: PLC0415
        from setuptools import Distribution, Extension  # noqa: PLC0415
        from setuptools.command.build_ext import build_ext  # noqa: PLC0415
        from setuptools.errors import BaseError, CCompilerError  # noqa: PLC0415
    except ImportError as error:  # the environment was not set up for building
        raise BuildFailedError(str(error)) from error

    extension = Extension(
        MODULE,
        [str(PACKAGE / "_kernel.pyx")],
        include_dirs=[str(root / PACKAGE)],
        depends=[str(path) for path in PACKAGE.glob("_kernel*.p*")],
        define_macros=[("Py_LIMITED_API", STABLE_SINCE[0])] if is_stable() else [],
        py_limited_api=is_stable(),
        extra_compile_args=["-O3", "-g0"],
    )
    before = Path.cwd()
    os.chdir(root)
    try:
        modules = cythonize([extension], build_dir=str(directory / "c"), force=True, quiet=True)
        command = build_ext(Distribution({"name": "pyspark-kafka", "ext_modules": modules}))
        command.build_temp = str(directory / "temporary")
        command.build_lib = str(directory / "built")
        command.finalize_options()
        command.run()
    except (BaseError, CCompilerError, OSError) as error:
        raise BuildFailedError(str(error)) from error
    finally:
        os.chdir(before)
    (built,) = (directory / "built").rglob("_kernel*.so")
    return built
