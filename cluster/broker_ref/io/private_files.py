"""Creates files and directories for secrets. Only the owner has access."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Atomically write a file with mode 0600. Raises: OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108 (symmetric with mkstemp)
        raise


def private_directory(path: Path) -> Path:
    """Create a directory with mode 0700 if it does not exist. Raises: OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
