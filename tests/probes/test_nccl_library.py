"""Which NCCL is named: the one that is called, as another library in this process reaches it, never the wheel's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.probes.nccl_library import LoadedNccl
from tests.each_row import each_row

NCCL = "int ncclGetVersion(int *version) { *version = %d; return 0; }"
CALLER = "int ncclGetVersion(int *); int call(int *version) { return ncclGetVersion(version); }"
ASK = """
import ctypes, json, sys
from ncclprobe.probes.nccl_library import called_by
loaded = [ctypes.CDLL(path) for path in sys.argv[1:]]
found = called_by("libcaller.so", (2, 29, 7))
print(json.dumps(found and [str(found), found.path, found.note]))
"""


def build(folder: Path, name: str, source: str, *needs: Path) -> Path:
    """Compile a library whose soname is `name`, linked to `needs`, which it finds where they lie."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed: the libraries that stand for torch and NCCL cannot be built")
    folder.mkdir(exist_ok=True)
    (folder / "source.c").write_text(source)
    links = [word for need in needs for word in (str(need), f"-Wl,-rpath,{need.parent}")]
    flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-soname,{name}", "-o", str(folder / name)]
    subprocess.run(["gcc", str(folder / "source.c"), *flags, *links], check=True, timeout=60)
    return folder / name


def ask(*libraries: Path, preload: Path | None = None) -> list[str] | None:
    """What a process says that has loaded these libraries."""
    command = [sys.executable, "-c", ASK, *map(str, libraries)]
    variables = {"LD_PRELOAD": str(preload)} if preload else {}
    where = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(command, env={**where, **variables}, capture_output=True, check=True, timeout=60)
    found: list[str] | None = json.loads(said.stdout)
    return found


def test_the_library_that_is_mapped_is_named_with_its_path_beside_what_torch_was_compiled_with(tmp_path: Path) -> None:
    nccl = build(tmp_path / "site", "libnccl.so.2", NCCL % 23007)
    caller = build(tmp_path / "torch", "libcaller.so", CALLER, nccl)
    said = f"NCCL 2.30.7 is loaded, from {nccl}; torch was compiled with 2.29.7"
    assert ask(caller) == ["2.30.7", str(nccl), said]


def test_a_preloaded_library_is_the_one_that_is_called(tmp_path: Path) -> None:
    wheel = build(tmp_path / "wheel", "libnccl.so.2", NCCL % 22907)
    other = build(tmp_path / "other", "libnccl.so.2", NCCL % 22809)
    caller = build(tmp_path / "torch", "libcaller.so", CALLER, wheel)
    assert (ask(caller, preload=other) or [])[:2] == ["2.28.9", str(other)]
    assert ask(caller) == ["2.29.7", str(wheel), ""]


def test_another_copy_in_the_process_is_not_mistaken_for_torchs(tmp_path: Path) -> None:
    wheel = build(tmp_path / "wheel", "libnccl.so.2", NCCL % 22907)
    others = build(tmp_path / "others", "libnccl-of-others.so", NCCL % 21903)
    caller = build(tmp_path / "torch", "libcaller.so", CALLER, wheel)
    assert ask(others, caller) == ["2.29.7", str(wheel), ""]


def test_nccl_inside_torchs_own_library_is_named_by_it(tmp_path: Path) -> None:
    caller = build(tmp_path / "torch", "libcaller.so", f"{NCCL % 22705}\n{CALLER}")
    assert (ask(caller) or [])[:2] == ["2.27.5", str(caller)]


@each_row("source", ["int other;", "int ncclGetVersion(int *version) { return 3; }"])
def test_a_library_that_does_not_tell_is_no_answer(source: str, tmp_path: Path) -> None:
    assert ask(build(tmp_path / "torch", "libcaller.so", source)) is None
    assert ask() is None


def test_nothing_is_said_where_they_agree() -> None:
    assert LoadedNccl((2, 29, 7), "", (2, 29, 7)).note == ""
