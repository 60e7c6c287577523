#!/usr/bin/env python3
"""Do everything for a release but publish it, and say what to press.

    scripts/release.py [--rehearse]        into dist/; --rehearse: also with changes that are not committed

From the commit that stands here: builds sdist and wheel twice and compares their bytes, compares what they hold with
what git tracks, lets twine check them, installs the wheel into a bare environment of every Python from 3.10 on that is
found (the network, or PIP_INDEX_URL, gives what it requires) and runs it there, and builds the one-file program.
Nothing is uploaded, tagged or pushed.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import distribution
import offline
from child import ROOT, ask, fail, run_script

DIST = ROOT / "dist"
INSTALL_S = 600.0
LOOK_S = 120.0
VERDICTS = (0, 3, 4)
"""Exit codes of a doctor that judged."""


def main() -> int:
    """Make a release in dist/ and print what is left to do by hand."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="Also with changes that are not committed.")
    rehearse = parser.parse_args().rehearse
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "ncclprobe/__init__.py").read_text(), re.MULTILINE)
    version = found[1] if found else fail("ncclprobe/__init__.py has no __version__")
    _refuse_unready(version, rehearse=rehearse)
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        built = _built_twice(Path(folder), int(_git("log", "-1", "--format=%ct")))
        untried = _tried(built.wheel, Path(folder))
        single = offline.single_file(built.wheel, DIST, offline.PYTHONS, offline.MACHINES)
    paths = [*built, single]
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    print(*_left_to_do(version, untried), sep="\n")
    return 0


def _refuse_unready(version: str, *, rehearse: bool) -> None:
    """Leave with one line where this commit is not what would be released."""
    if not rehearse:
        if _git("status", "--porcelain"):
            fail("there are changes that are not committed; commit them, or --rehearse")
        if _git("tag", "--list", f"v{version}"):
            fail(f"v{version} is released; set __version__ in ncclprobe/__init__.py")
        if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", _changes(), re.MULTILINE):
            fail(f"CHANGELOG.md has no line `## {version} (YYYY-MM-DD)`: give the version its date")


def _changes() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _built_twice(folder: Path, epoch_s: int) -> distribution.Built:
    """Build from two copies; leave with one line where their bytes or their contents are not what they should be."""
    names = distribution.sources()
    builds = [
        distribution.build(distribution.copy(names, folder / copy), folder / f"{copy}-dist", epoch_s)
        for copy in ("one", "another")
    ]
    for one, other in zip(*builds, strict=True):
        if one.read_bytes() != other.read_bytes():
            fail(f"{one.name}: two builds of the same sources differ")
    if differences := distribution.surplus_and_lack(builds[0], names):
        fail(f"not what it should hold: {', '.join(differences)}")
    _must([sys.executable, "-m", "twine", "check", "--strict", *map(str, builds[0])], LOOK_S)
    DIST.mkdir()
    kept = distribution.Built(*(Path(shutil.copy(path, DIST)) for path in builds[0]))
    print(f"built twice with the same bytes, and twine agrees: {', '.join(path.name for path in kept)}")
    return kept


def _tried(wheel: Path, folder: Path) -> list[str]:
    """Install `wheel` under every Python there is and let its doctor judge; return the versions that are not here."""
    untried = []
    for version in offline.PYTHONS:
        python = shutil.which(f"python{version}")
        code, _ = ask([python, "-c", "import ensurepip"], deadline_s=LOOK_S) if python else (1, "")
        if python is None or code:
            untried.append(version)
            continue
        venv = folder / version
        _must([python, "-m", "venv", str(venv)], LOOK_S)
        _must(
            [str(venv / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "-q", str(wheel)],
            INSTALL_S,
        )
        code, line = ask(
            [str(venv / "bin/ncclprobe"), "doctor", "--local", "--backend", "gloo", "-q"], deadline_s=LOOK_S
        )
        if code not in VERDICTS:
            fail(f"under Python {version} the doctor left with {code}: {line}")
        print(f"Python {version}: installed into a bare environment, and the doctor judged (exit {code})")
    return untried


def _left_to_do(version: str, untried: list[str]) -> Iterator[str]:
    tag = f"v{version}"
    if untried:
        yield f"\nNot tried, for want of an interpreter with ensurepip: Python {', '.join(untried)}"
    yield "\nLeft to do by hand, in this order (docs/maintainers/releasing.md):"
    urls = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.urls]")[2].partition("\n[")[0]
    wanted = ("Homepage", "Repository", "Issues", "Changelog")
    if missing := [name for name in wanted if not re.search(rf'^{name} = "https://', urls, re.MULTILINE)]:
        yield f"  write into [project.urls] of pyproject.toml, then start again: {', '.join(missing)}"
    yield f"  git tag -s {tag} -m 'ncclprobe {version}' && git push origin {tag}"
    yield "  .venv/bin/python -m twine upload dist/*.tar.gz dist/*.whl"
    yield "  write PyPI and docs into `published` of pyproject.toml, and the new install line into README.md"
    yield "  attach dist/ncclprobe.pyz and dist/SHA256SUMS to the release of that tag"
    yield "  for both platforms: podman build --platform linux/amd64,linux/arm64 \\"
    yield f"    -f scripts/deploy/Containerfile --manifest ncclprobe:{version} ."


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=LOOK_S, check=True)
    return done.stdout.strip()


def _must(command: list[str], deadline_s: float) -> None:
    code, line = ask(command, deadline_s=deadline_s)
    if code:
        fail(f"{' '.join(command[:4])} …: exit {code}: {line}")


if __name__ == "__main__":
    run_script(main)
