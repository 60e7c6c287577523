#!/usr/bin/env python3
"""Make `.venv`, in which everything of scripts/ runs.

    scripts/environment.py [EXTRA ...]        extras of pyproject.toml

The caller's Python makes it: $PYTHON, else the one that runs this. Where that Python imports torch, exactly that torch
is used, because another torch brings another NCCL than the job's: a path file lends `.venv` its packages, and pip
installs only what does not import there. Elsewhere pip installs torch as well. ncclprobe itself is a line of the path
file. A stamp says what was done, so that a second time needs neither pip nor a network.
"""

import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from typing import NamedTuple

from child import ROOT, ask, ask_json, fail, run, run_script

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "ncclprobe.json"
PINS = VENV / "constraints.txt"

ASK_S = 300.0  # `import torch` from a cold network file system takes minutes
MAKE_S = 120.0
INSTALL_S = 3600.0  # torch with its CUDA libraries is gigabytes

COMMANDS = {"ncclprobe": "ncclprobe", "torchrun": "torch.distributed.run"}
PROBES = {  # how to see that a requirement is there, where that is not `import` and its name
    "clustershell": "import ClusterShell",
    "mkdocs-material": "import material, mkdocs",
    "nvidia-ml-py": "import pynvml",
    "tomli": "import sys; sys.version_info >= (3, 11) or __import__('tomli')",
}
JUDGES = {"mypy", "ruff"}  # never lent: what they say depends on their version


class Caller(NamedTuple):
    """The Python that makes `.venv`: what scripts/interpreter.py says of it."""

    python: str
    base: str
    version: str
    prefix: str
    site: list[str]
    packages: dict[str, str]


class Stamp(NamedTuple):
    """What `.venv` was made of: by whom, with which path, from which pins and for which extras."""

    python: str
    version: str
    path: list[str]
    pins: str
    extras: list[str]

    def same_frame(self, other: "Stamp") -> bool:
        """Whether what one was made for can be added to the other."""
        return (self.python, self.version, self.path) == (other.python, other.version, other.path)

    def covers(self, other: "Stamp") -> bool:
        """Whether nothing is left to do for the other."""
        return self.same_frame(other) and self.pins == other.pins and set(self.extras) >= set(other.extras)


def make(*extras: str) -> str:
    """Make or complete `.venv`; its Python. Leaves with one line where that cannot be done."""
    caller = find_caller()
    lends = lends_torch(caller)
    files = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    wanted = Stamp(
        python=caller.python,
        version=caller.version,
        path=[str(ROOT), *(caller.site if lends else [])],
        pins=hashlib.sha256(
            b"\0".join([*files, json.dumps(caller.packages if lends else {}, sort_keys=True).encode()])
        ).hexdigest(),
        extras=sorted({*extras} | (set() if lends else {"torch"})),
    )
    had = _read_stamp()
    if had is None or not had.covers(wanted):
        if had and had.same_frame(wanted) and had.pins == wanted.pins:
            wanted = wanted._replace(extras=sorted({*had.extras, *wanted.extras}))
        # A torch of its own would come before the one that is lent.
        _build(caller, wanted, clear=not had.same_frame(wanted) if had else lends)
        _install(caller, requirements(wanted.extras), lends=lends)
        STAMP.write_text(json.dumps(wanted._asdict(), indent=1) + "\n")
    return str(PYTHON)


def find_caller() -> Caller:
    """The Python that was asked for; where that is `.venv` itself, the one it was made by."""
    asked = shutil.which(os.environ.get("PYTHON") or sys.executable)
    if asked is None:
        fail(f"PYTHON={os.environ.get('PYTHON')} is no program: set it to a Python from 3.10 on")
    caller = _who(asked)
    if caller.prefix == str(VENV):
        had = _read_stamp()
        caller = _who(had.python if had else caller.base)
    return caller


def lends_torch(caller: Caller) -> bool:
    """Whether the caller imports torch; where it is there but broken, says that another one takes its place."""
    code, why = ask([caller.python, "-c", "import torch"], deadline_s=ASK_S)
    if code and "No module named 'torch'" not in why:
        print(f"torch does not import in {caller.python} (exit {code}: {why}): using one of our own", file=sys.stderr)
    if code == 0 and caller.prefix.startswith(str(VENV)):
        # pip tells what it may uninstall by the first letters of the path.
        fail(f"{caller.prefix} would be taken for a part of {VENV}: give that environment another name or place")
    return code == 0


def requirements(extras: list[str]) -> list[str]:
    """The dependencies and these extras, from pyproject.toml, whose lists are Python's too (3.10 has no tomllib)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = dict(re.findall(r"^(\w+) = (\[\n.*?^\])", text, re.MULTILINE | re.DOTALL))
    unknown = set(extras) - lists.keys()
    if unknown:
        fail(f"pyproject.toml has no extra {', '.join(unknown)}")
    return [line for key in ["dependencies", *extras] for line in ast.literal_eval(lists[key])]


def _build(caller: Caller, wanted: Stamp, *, clear: bool) -> None:
    """The environment without pip (Debian's Python may have none to give), the path file, and the commands."""
    if VENV.is_symlink():  # `venv --clear` empties what it leads to
        fail(f"{VENV} is a link to {VENV.resolve()}, made for another source tree: remove the link, not what it names")
    STAMP.unlink(missing_ok=True)
    options = ["--without-pip", *(["--clear"] if clear else [])]
    code, why = ask([caller.python, "-m", "venv", *options, str(VENV)], deadline_s=MAKE_S)
    if code:
        fail(f"{caller.python} cannot make {VENV}: {why} (Debian, Ubuntu: apt-get install python3-venv)")
    # Not bare folders: addsitedir follows their path files in turn, which an editable torch needs.
    lines = [wanted.path[0], *(f"import site; site.addsitedir({folder!r})" for folder in wanted.path[1:])]
    folder = _who(str(PYTHON)).site[0]
    (ROOT / folder / "ncclprobe.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, module in COMMANDS.items():
        command = PYTHON.with_name(name)
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(str(PYTHON))} -m {module} "$@"\n')
        command.chmod(0o755)


def _install(caller: Caller, wanted: list[str], *, lends: bool) -> None:
    """Let pip install what the caller does not lend, at our pins; no pip at all where nothing is left."""
    missing = [line for line in wanted if not (lends and _is_lent(caller, line))]
    if not missing:
        return
    # pip may be lent too; otherwise it comes with the interpreter.
    if ask([str(PYTHON), "-m", "pip", "--version"], deadline_s=ASK_S)[0]:
        code, why = ask([str(PYTHON), "-m", "ensurepip", "--default-pip"], deadline_s=MAKE_S)
        if code:
            fail(f"{caller.python} has no pip to give: {why} (Debian, Ubuntu: apt-get install python3-venv)")
    lent = {_name(name) for name in caller.packages} - JUDGES if lends else set()
    pins = [
        line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if _name(line) not in lent
    ]
    PINS.write_text("\n".join(pins) + "\n", encoding="utf-8")
    install = [str(PYTHON), "-m", "pip", "install", "--no-user", "--disable-pip-version-check"]
    if run([*install, "--constraint", str(PINS), *missing], deadline_s=INSTALL_S):
        fail(
            f"pip could not install {', '.join(missing)} (its reason is above): offer it an index or wheels "
            "(PIP_INDEX_URL, PIP_FIND_LINKS), or set PYTHON to a Python that imports torch"
        )


def _is_lent(caller: Caller, requirement: str) -> bool:
    name = _name(requirement)
    probe = PROBES.get(name, f"import {name.replace('-', '_')}")
    return name not in JUDGES and ask([caller.python, "-c", probe], deadline_s=ASK_S)[0] == 0


def _who(python: str) -> Caller:
    return Caller(**ask_json([python, "scripts/interpreter.py"], deadline_s=ASK_S))


def _read_stamp() -> Stamp | None:
    """None where there is no environment, or a half-made one, or one whose interpreter is gone."""
    if not (STAMP.exists() and PYTHON.exists()):
        return None
    try:
        return Stamp(**json.loads(STAMP.read_text(encoding="utf-8")))
    except (ValueError, TypeError):  # cut short, or of an ncclprobe with other fields
        return None


def _name(requirement: str) -> str:
    """The distribution's name, as PEP 503 compares names; empty for a comment."""
    found = re.match(r"[\w.-]*", requirement)
    return re.sub(r"[-_.]+", "-", found.group() if found else "").lower()


def main() -> int:
    """Make `.venv` with the extras named on the command line."""
    make(*sys.argv[1:])
    return 0


if __name__ == "__main__":
    run_script(main)
