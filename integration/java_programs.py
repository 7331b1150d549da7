"""Java programs that use Kafka's classes: Kafka Streams jobs, Connect workers and MirrorMaker.

The programs run against any cluster until they are stopped. Invariant: a program is stopped when
its context manager or this process exits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from integration.clusters.base import ClusterUnavailableError
from integration.clusters.java import java_command
from integration.clusters.maven import Artifacts, apache_kafka, resolve
from integration.clusters.node_process import NodeProcess

JVM_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xlog:disable",
)
"""Options for programs that run for a short time: the JVM compiles less.

Log messages about class archives are suppressed.
"""

_LOGGING: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def kafka_class_path(*artifacts: Artifacts) -> str:
    """Return the class path of Kafka and additional artifacts."""
    jars = [jar for each in (apache_kafka(), *artifacts) for jar in resolve(each)]
    return os.pathsep.join(map(str, jars))


def logging_option(directory: Path) -> str:
    """Write a log configuration to `directory`, and return the JVM option that selects it."""
    path = directory / "log4j2.properties"
    path.write_text(_LOGGING)
    return f"-Dlog4j2.configurationFile={path}"


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a properties file for a Java program, and return its path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def require_java_programs(*artifacts: Artifacts) -> None:
    """Download Kafka's JARs and the JARs of `artifacts`.

    Raises `ClusterUnavailableError` if a JDK or the JARs are missing. A JRE cannot run single-file
    programs.
    """
    java = java_command()
    if not (Path(java).resolve().parent / "javac").exists():
        raise ClusterUnavailableError(
            f"The tests run Java programs from their source code, which requires a JDK, but {java} "
            "belongs to a JRE. Install a JDK, or set JAVA_HOME to the directory of a JDK."
        )
    kafka_class_path(*artifacts)


@contextmanager
def java_program(
    name: str, main: str | Path, *arguments: str, artifacts: tuple[Artifacts, ...], directory: Path
) -> Iterator[NodeProcess]:
    """Start a Java program, and stop it on exit. The caller may kill and restart the program.

    `main` is a class or the path of a single-file program. The log of the program is written to
    `directory`. If the body of the `with` statement raises an exception, the end of the log is
    added to the exception as a note.

    Raises `ClusterUnavailableError` if Java or the required JARs are missing.
    """
    options = [*JVM_OPTIONS, logging_option(directory), "-cp", kafka_class_path(*artifacts)]
    command = [java_command(), *options, str(main), *arguments]
    program = NodeProcess(name, command, directory=directory)
    program.start()
    try:
        yield program
    except BaseException as error:
        error.add_note(f"End of the log of {name}:\n{program.log_tail()}")
        raise
    finally:
        program.close()
