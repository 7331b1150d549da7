"""Check that the software for `make demo` and `make test` is installed.

The Makefile runs this module with the selected interpreter before any package is installed.
Therefore it uses only the standard library, and only syntax that Python 3.6 can parse. If something
is missing, the module writes one line to standard error and exits with status 1.
"""

import re
import shutil
import subprocess
import sys

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
JAVA_VERSIONS = (17, 21)


def python_problem(version: "tuple[int, int]") -> "str | None":
    """Return a message if this Python version `(major, minor)` is not supported, otherwise None."""
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return None
    return (
        f"pyspark-kafka requires Python 3.11 to 3.14, but this is Python {version[0]}.{version[1]}."
        " Install a supported version and run 'make PYTHON=python3.11 ...'."
    )


def java_problem(version_output: "str | None") -> "str | None":
    """Return a message if this Java version is not supported, otherwise None.

    `version_output` is the output of `java -version`, or None if there is no `java` command.
    """
    remedy = (
        "Install a Java 17 JDK or JRE (such as openjdk-17-jre-headless) and put it on the PATH."
    )
    if version_output is None:
        return "Spark requires Java 17 or 21, but there is no 'java' on the PATH. " + remedy
    match = re.search(r'version "(\d+)', version_output)
    if match is None:
        return "Spark requires Java 17 or 21, but 'java -version' fails. " + remedy
    if int(match.group(1)) not in JAVA_VERSIONS:
        return f"Spark requires Java 17 or 21, but 'java' is version {match.group(1)}. {remedy}"
    return None


def installed_java_version() -> "str | None":
    """Return the output of `java -version`, or None if there is no `java`."""
    java = shutil.which("java")
    if java is None:
        return None
    # `java -version` writes to standard error.
    process = subprocess.run(
        [java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return process.stdout.decode("utf-8", "replace")


def main(wanted: "list[str]") -> int:
    problems = []
    if "python" in wanted:
        problems.append(python_problem(sys.version_info[:2]))
    if "java" in wanted:
        problems.append(java_problem(installed_java_version()))
    for problem in problems:
        if problem is not None:
            sys.stderr.write(problem + "\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
