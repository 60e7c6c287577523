"""What is released: build the sdist and the wheel, the same bytes from the same sources, and say what is in them."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from child import ROOT

BUILD_S = 300.0
PACKAGE = "ncclprobe/"
BESIDE = {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
    ".gitignore",
}
"""What the sdist has besides the package and scripts/deploy/; hatchling adds .gitignore, by which it packs."""
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


class Built(NamedTuple):
    """The two files of a release."""

    sdist: Path
    wheel: Path


def sources(root: Path = ROOT) -> list[str]:
    """Return the files of a checkout, relative to it: what git tracks, and what it would."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    names = done.stdout.decode().rstrip("\0").split("\0")
    return sorted(name for name in names if (root / name).is_file())


def copy(names: Iterable[str], to: Path, root: Path = ROOT) -> Path:
    """Copy the files `names` of a checkout to a folder of their own, so that nothing else can get into a package."""
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, to / name)
    return to


def build(tree: Path, out: Path, epoch_s: int) -> Built:
    """Build the sdist of `tree` and from it the wheel, dated `epoch_s`, with the tools of this environment.

    Raises subprocess.CalledProcessError where a build fails; what it says stands on standard error.
    """
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, timeout=BUILD_S, check=True)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


def surplus_and_lack(built: Built, names: Iterable[str]) -> list[str]:
    """Return what the files of a release hold too much (+) or too little (-), by the checkout's files `names`."""
    package = {name for name in names if name.startswith(PACKAGE)}
    deploy = {name for name in names if name.startswith("scripts/deploy/")}
    return [
        *_differences("sdist", inside(built.sdist), package | deploy | BESIDE | {"PKG-INFO"}),
        *_differences("wheel", inside(built.wheel), package | {f"dist-info/{name}" for name in METADATA}),
    ]


def inside(path: Path) -> set[str]:
    """Return the names of the files in a wheel or an sdist, without the folder that carries the version."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if not name.endswith("/")]
        return {f"dist-info/{name.partition('/')[2]}" if ".dist-info/" in name else name for name in names}
    with tarfile.open(path) as sdist:
        return {each.name.partition("/")[2] for each in sdist.getmembers() if each.isfile()}


def _differences(kind: str, found: set[str], wanted: set[str]) -> list[str]:
    return [
        *(f"+ {kind}: {name}" for name in sorted(found - wanted)),
        *(f"- {kind}: {name}" for name in sorted(wanted - found)),
    ]
