"""Versions of packages that Python would import, found without importing any."""

import contextlib
import os
import re
import sys
from collections.abc import Collection

_METADATA = re.compile(r"([\w.-]+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def versions(wanted: Collection[str]) -> dict[str, str]:
    """Return the versions of the installed distributions among `wanted`, by name."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for match in (_METADATA.fullmatch(entry.name) for entry in entries):
                name = match[1].lower().replace("_", "-") if match else ""
                if match and name in wanted:
                    found.setdefault(name, match[2])  # the first on the path is the one that imports
    return dict(sorted(found.items()))
