"""The code that a job would run, where --code names its folder: a digest, a commit, versions of what is installed."""

import json
from typing import Any

from ncclprobe.errors import ParseError
from ncclprobe.host import SAMPLE, Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field


class Code(Struct, frozen=True):
    """A folder of code. `digest` is over the names and contents of its `files`; `unread`: how many are not in it.

    `cut`: why not all files are in the digest; empty: they are. `commit` of the repository around it, empty where there
    is none. `packages`: installed distributions of the interpreter that runs this, and ``python`` itself.
    """

    digest: str
    files: int
    commit: str = ""
    unread: int = 0
    cut: str = ""
    packages: dict[str, str] = field(default_factory=dict)


@collector
def code(host: Host) -> Code:
    """Read the folder that --code names, and names and versions of distributions: nothing of the files but a digest."""
    folder = _object(host.ask(SAMPLE, "code")).get("folder")
    found = _object(host.ask("tree", str(folder)))
    installed = _object(host.ask("interpreter"))
    try:
        packages = {str(name): str(version) for name, version in installed["distributions"].items()}
        return Code(
            digest=str(found["digest"]),
            files=int(found["files"]),
            commit=str(found["commit"]),
            unread=int(found["unread"]),
            cut=str(found["cut"]),
            packages={"python": str(installed["python"]), **packages},
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ParseError(f"the answer about a folder of code: {error!r}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ParseError(f"the answer about a folder of code: {text[:80]!r}")
    return found
