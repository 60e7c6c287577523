"""Run by the Python in question: say in one line of JSON who it is and which packages it has.

`site` are the folders it takes packages from, those of its virtual environment and of its user included; `packages` all
distributions installed there, by name and version.
"""

import json
import site
import sys
from importlib import metadata
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 - whoever calls us is not bound by requires-python
    sys.exit(f"Python {sys.version.split()[0]} is older than 3.10: set PYTHON to a newer one")


def folders() -> list[str]:
    """Every existing folder of packages, in the order of this interpreter's path."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [folder for folder in [*user, *site.getsitepackages()] if Path(folder).is_dir()]


if __name__ == "__main__":
    answer = {
        "python": sys.executable,
        "base": getattr(sys, "_base_executable", sys.executable),
        "version": sys.version,
        "prefix": sys.prefix,
        "site": folders(),
        "packages": {str(dist.metadata["Name"]): dist.version for dist in metadata.distributions()},
    }
    print(json.dumps(answer))
