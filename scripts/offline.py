#!/usr/bin/env python3
"""Make what a machine without a network needs: one file to run, or a folder of wheels to install from.

scripts/offline.py file OUT        OUT/ncclprobe.pyz: doctor, capture, explain, report; torch is not in it, but used
                                   where the Python that starts it has one
scripts/offline.py wheels OUT      OUT/*.whl, for `pip install --no-index --find-links OUT ncclprobe`
scripts/offline.py hashes OUT      OUT/hashes.txt, the digests of the wheels of what ncclprobe requires at our pins, for
                                   `pip install --require-hashes -r hashes.txt`; torch, whose wheel depends on the
                                   machine and may be of another index, is not in it
--python 3.12 --machine aarch64    (several times) for these alone, else for all; pip fetches their wheels
--torch                            wheels: those of torch too, gigabytes; never where a job's environment has its own
"""

import argparse
import hashlib
import json
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.parser import Parser
from pathlib import Path

import distribution
from child import ROOT, fail, run, run_script
from packaging.requirements import Requirement

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = ("2_17", "2_28")
"""Oldest glibc of a wheel: of RHEL 7 and of RHEL 8. Alpine's musl is not served."""
FETCH_S = 600.0
FETCH_TORCH_S = 3600.0
NAME = "ncclprobe.pyz"
_DATE = (2020, 2, 2, 0, 0, 0)
"""Of every file in the archive, as hatchling dates them, so that the same wheels give the same bytes."""
_LEFT_OUT = ("markupsafe/_speedups", ".pyi", "/tests/", ".dist-info/RECORD", ".dist-info/WHEEL")
"""Left out of the single file: jinja2 does without markupsafe's compiled part; the last two differ by processor."""


def main() -> int:
    """Make what the command line asks for from this checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("file", "wheels", "hashes"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--torch", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    pythons, machines = asked.python or PYTHONS, asked.machine or MACHINES
    if asked.kind == "hashes":
        (asked.out / "hashes.txt").write_text(hashes(pythons, machines), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tree = distribution.copy(distribution.sources(), Path(folder, "tree"))
        wheel = distribution.build(tree, Path(folder, "dist"), 1_580_601_600).wheel
        if asked.kind == "file":
            made = single_file(wheel, asked.out, pythons, machines)
            print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
        else:
            for python in pythons:
                for machine in machines:
                    fetch(wheel, asked.out, python, machine, torch=asked.torch)
            (asked.out / wheel.name).write_bytes(wheel.read_bytes())
            size = sum(path.stat().st_size for path in asked.out.iterdir())
            print(f"{asked.out}: {size / 1e6:.1f} MB; pip install --no-index --find-links {asked.out} ncclprobe")
    return 0


def fetch(wheel: Path, to: Path, python: str, machine: str, *, torch: bool = False) -> None:
    """Let pip fetch what `wheel` requires there, at our pins. Leaves with one line where pip cannot.

    pip reads markers as of the Python that runs it, whatever --python-version says; so they are read here.
    """
    with zipfile.ZipFile(wheel) as file:
        text = next(file.read(name).decode() for name in file.namelist() if name.endswith(".dist-info/METADATA"))
    required = Parser().parsestr(text).get_all("Requires-Dist", [])
    platforms = [word for glibc in GLIBC for word in ("--platform", f"manylinux_{glibc}_{machine}")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write("\n".join(_those_of((ROOT / "constraints.txt").read_text().splitlines(), python, machine)))
        pins.flush()
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(to)),
            *("--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms),
            *("--constraint", pins.name, *_those_of(required, python, machine, "torch" if torch else "")),
        ]
        if run(command, deadline_s=FETCH_TORCH_S if torch else FETCH_S):
            fail(f"pip could not fetch what ncclprobe requires on Python {python}, {machine} (its reason is above)")


def required_pins() -> list[str]:
    """Return the pins of what ncclprobe requires, with and without a terminal: all above those of torch."""
    head = (ROOT / "constraints.txt").read_text(encoding="utf-8").partition("\n# torch")[0]
    return [line for line in head.splitlines() if line and not line.startswith("#")]


def hashes(pythons: Sequence[str], machines: Sequence[str]) -> str:
    """Return the pins with the digests of the wheels that pip takes for each Python and machine."""
    digests: dict[str, set[str]] = {Requirement(line).name: set() for line in required_pins()}
    for python in pythons:
        for machine in machines:
            platforms = [word for glibc in GLIBC for word in ("--platform", f"manylinux_{glibc}_{machine}")]
            with tempfile.NamedTemporaryFile("r") as report:
                command = [
                    *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"),
                    *("--ignore-installed", "--no-deps", "--report", report.name, "--target", "/nowhere"),
                    *("--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms),
                    *_those_of(required_pins(), python, machine),
                ]
                if run(command, deadline_s=FETCH_S):
                    fail(f"pip found no wheels for Python {python}, {machine} (its reason is above)")
                for each in json.load(report)["install"]:
                    name = each["metadata"]["name"].lower().replace("_", "-")
                    digests[name].add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    found = [
        " \\\n".join((line, *(f"    --hash=sha256:{each}" for each in sorted(digests[Requirement(line).name]))))
        for line in required_pins()
    ]
    return "\n".join(("# Made of constraints.txt by scripts/offline.py hashes.", *found, ""))


def _those_of(lines: Iterable[str], python: str, machine: str, extra: str = "") -> Iterator[str]:
    """Yield the requirements among `lines` whose markers hold for that Python, without their markers."""
    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "extra": extra,
    }
    for line in lines:
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(target):
                yield f"{requirement.name}{requirement.specifier}"


def single_file(wheel: Path, out: Path, pythons: Sequence[str], machines: Sequence[str]) -> Path:
    """Write the program as one file that runs under each of `pythons` on each of `machines`; return its path."""
    with tempfile.TemporaryDirectory() as folder:
        for python in pythons:
            for machine in machines:
                fetch(wheel, Path(folder), python, machine)
        return pack(contents([wheel, *sorted(Path(folder).glob("*.whl"))], machines), out / NAME)


def pack(files: Mapping[str, bytes], path: Path) -> Path:
    """Write `files` (PART/NAME) and what unpacks them as an executable archive; return its path."""
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    start = (ROOT / "scripts/single_file/__main__.py").read_text(encoding="utf-8")
    _write(path, {**files, "__main__.py": start.replace("@DIGEST@", digest.hexdigest()[:32]).encode()})
    return path


def contents(wheels: Iterable[Path], machines: Sequence[str]) -> dict[str, bytes]:
    """Return the files of all `wheels` by their name in the archive, sorted: PART/NAME."""
    found: dict[str, bytes] = {}
    for path in wheels:
        parts = _parts(path, machines)
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if name.endswith("/") or any(word in name for word in _LEFT_OUT):
                    continue
                for part in parts if name.endswith(".so") else ("any",):
                    _put(found, f"{part}/{name}", wheel.read(name), path)
    return dict(sorted(found.items()))


def _put(found: dict[str, bytes], name: str, data: bytes, origin: Path) -> None:
    if found.setdefault(name, data) != data:
        fail(f"{origin.name}: another {name} than the wheel for another Python or processor has")


def _parts(path: Path, machines: Sequence[str]) -> list[str]:
    """Return which parts of the archive the compiled files of a wheel belong to, by the tags in its name."""
    python, abi, platforms = path.stem.split("-")[-3:]
    machine = next((each for each in machines if platforms.endswith(each)), "")
    if abi == "none":
        return ["any"]
    return [f"abi3-{machine}"] if abi == "abi3" else [f"{python}-{machine}"]


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    with path.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in files.items():
                entry = zipfile.ZipInfo(name, _DATE)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, data)
    path.chmod(0o755)


if __name__ == "__main__":
    run_script(main)
