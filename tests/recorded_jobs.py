"""Recorded jobs of tests/data: one file of compressed JSON lines for each release."""

import gzip
import json
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """Return what was recorded of a release, by the names of the cases."""
    return {row["name"]: row for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())}
