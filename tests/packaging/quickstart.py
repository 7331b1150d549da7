"""Run the quickstart with the installed packages, on a cluster of `broker_ref`.

The release workflow and `test_installation.py` run this program in environments without the
development tools.
"""

import os
import subprocess
import sys
from pathlib import Path

from broker_ref import Cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.py"

with Cluster() as cluster:
    output = subprocess.check_output(
        [sys.executable, str(EXAMPLE), cluster.bootstrap_servers],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        text=True,
    )
print(output)
if not ("hello" in output and "bonjour" in output):
    sys.exit("The quickstart did not read the rows that it wrote.")
