"""A lab seen from another process than its own: scripts/lab, mpirun's agent, and what a killed run left."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import psutil

from .hosts import PREFIX, enter
from .processes import LabError


def found() -> list[Path]:
    """The folders of all labs on this machine, newest last."""
    folders = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    return sorted((folder for folder in folders if folder.is_dir()), key=lambda folder: folder.stat().st_mtime)


def owner(folder: Path) -> int | None:
    """The living process that holds the lab of this folder."""
    pid = int(folder.name.removeprefix(PREFIX).split("-")[0])
    return pid if psutil.pid_exists(pid) else None


def clean() -> list[Path]:
    """Remove the folders of labs whose process was killed; their hosts have ended by themselves."""
    left = [folder for folder in found() if owner(folder) is None]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return left


def entry(folder: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """The start of a command line that runs its rest on a host, and the host's variables. LabError without one."""
    try:
        hosts = json.loads((folder / "lab.json").read_text())["hosts"]
    except FileNotFoundError as error:
        raise LabError(f"{folder} is no lab that is up") from error
    if name not in hosts:
        raise LabError(f"no host {name}: there are {', '.join(hosts)}")
    host = hosts[name]
    return [*enter(host["pid"]), "env", f"--chdir={Path.cwd()}", *host["prefix"]], host["env"]


def agent() -> None:
    """What mpirun takes for ssh: FOLDER HOST COMMAND…"""
    argv, env = entry(Path(sys.argv[1]), sys.argv[2])
    os.execvpe(argv[0], [*argv, "sh", "-c", " ".join(sys.argv[3:])], {**os.environ, **env})
