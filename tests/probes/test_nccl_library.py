"""Which NCCL is named: the one that is called, as another library in this process reaches it, never the wheel's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.probes import nccl_library
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


def test_the_library_that_is_called_is_named_with_its_path_beside_what_torch_was_compiled_with(tmp_path: Path) -> None:
    wheel = build(tmp_path / "wheel", "libnccl.so.2", NCCL % 22907)
    newer = build(tmp_path / "newer", "libnccl.so.2", NCCL % 23007)
    others = build(tmp_path / "others", "libnccl-of-others.so", NCCL % 21903)
    caller = build(tmp_path / "torch", "libcaller.so", CALLER, wheel)
    inside = build(tmp_path / "inside", "libcaller.so", f"{NCCL % 22705}\n{CALLER}")
    assert ask(others, caller) == ["2.29.7", str(wheel), ""], "another copy is not mistaken for it"
    said = f"NCCL 2.30.7 is loaded, from {newer}; torch was compiled with 2.29.7"
    assert ask(caller, preload=newer) == ["2.30.7", str(newer), said]
    assert (ask(inside) or [])[:2] == ["2.27.5", str(inside)]


@each_row("source", ["int other;", "int ncclGetVersion(int *version) { return 3; }"])
def test_a_library_that_does_not_tell_is_no_answer(source: str, tmp_path: Path) -> None:
    assert ask(build(tmp_path / "torch", "libcaller.so", source)) is None
    assert ask() is None


@each_row(("available", "found"), [(False, None), (True, LoadedNccl((2, 29, 7), "", (2, 29, 7)))])
def test_a_torch_without_nccl_has_none_and_one_whose_loader_does_not_tell_has_its_own(
    available: bool, found: LoadedNccl | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: available)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(nccl_library, "called_by", lambda library, compiled: None)
    assert nccl_library.loaded.__wrapped__() == found
    assert found is None or found.note == ""
