"""ncclprobe.pyz unpacks what this Python needs once, into a folder that is the user's alone, and starts from there."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.each_row import each_row

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

pytest.importorskip("packaging", reason="packaging is not installed (extra `test`)")
import environment
import offline

from . import installed

HERE = f"cp{sys.version_info[0]}{sys.version_info[1]}-{os.uname().machine}"
FILES = {
    "any/ncclprobe/__init__.py": b"",
    "any/ncclprobe/start.py": b"import os, sys\n"
    b"program = lambda: print(__file__, os.environ['PYTHONPATH'], *sys.argv[1:])",
    f"{HERE}/msgspec.py": b"",
    "cp36-mips/msgspec.py": b"raise ImportError('of another Python')",
}
"""A program that says where it was started from."""
NOT_ALONE = "is not a folder of this user alone"


def start(archive: Path, cache: Path | str, *argv: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NCCLPROBE_CACHE": str(cache)}
    command = [sys.executable, "-S", str(archive), *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_it_unpacks_once_what_this_python_needs_and_starts_from_there(tmp_path: Path) -> None:
    archive, cache = offline.pack(FILES, tmp_path / offline.NAME), tmp_path / "cache"
    first = start(archive, cache, "doctor", "-q")
    (folder,) = cache.iterdir()
    assert first.stdout == f"{folder}/ncclprobe/start.py {folder} doctor -q\n", first.stderr
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["msgspec.py", "ncclprobe"]
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "ncclprobe" / "here").touch()
    assert offline.pack(FILES, tmp_path / "same.pyz").read_bytes() == archive.read_bytes()
    assert start(archive, cache, "doctor", "-q").stdout == first.stdout
    assert (folder / "ncclprobe" / "here").exists()
    other = offline.pack({**FILES, "any/ncclprobe/model/ops.py": b""}, tmp_path / "other.pyz")
    assert start(other, cache).returncode == 0
    assert len(list(cache.iterdir())) == 2
    folder.chmod(0o775)
    assert NOT_ALONE in start(archive, cache).stderr


@each_row("kind", ["everyone may write", "a link", "a file", "of another user"])
def test_a_folder_that_is_not_the_users_alone_is_refused(kind: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if kind == "a file":
        cache.touch()
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "elsewhere")
    else:
        cache.mkdir(mode=0o700)
        if kind == "everyone may write":
            cache.chmod(0o777)
        elif os.geteuid():
            return  # only root can give a folder away
        else:
            os.chown(cache, 1234, 1234)
    done = start(offline.pack(FILES, tmp_path / offline.NAME), cache)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert NOT_ALONE in done.stderr


def test_what_cannot_be_written_or_loaded_is_told_in_a_line(tmp_path: Path) -> None:
    archive = offline.pack(FILES, tmp_path / offline.NAME)
    for cache in ("/proc/ncclprobe", "/dev/null/cache"):
        done = start(archive, cache)
        assert done.returncode == 2
        assert done.stderr.startswith(f"ncclprobe: {cache} cannot be written (")
        assert "set NCCLPROBE_CACHE to a folder of yours; nothing was judged\n" in done.stderr
    broken = offline.pack({**FILES, f"{HERE}/msgspec.py": b"raise ImportError('failed to map')"}, tmp_path / "x.pyz")
    done = start(broken, tmp_path / "cache")
    assert (done.returncode, "failed to map (where " in done.stderr) == (2, True)
    # pythons that are too old can parse what runs first
    ast.parse((ROOT / "scripts/single_file/__main__.py").read_text(), feature_version=(3, 6))


@pytest.mark.slow
def test_the_whole_program_judges_from_its_file(tmp_path: Path) -> None:
    files = {
        f"any/{path.relative_to(ROOT)}": path.read_bytes()
        for path in (ROOT / "ncclprobe").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in installed.required(environment.requirements([])):
        files |= {f"{HERE}/{inner}": path.read_bytes() for inner, path in installed.files(name)}
    archive = offline.pack(files, tmp_path / "x.pyz")
    done = start(archive, tmp_path / "cache", "doctor", "--local", "--backend=gloo", "--junit=-")
    assert done.returncode in (0, 3, 4), done.stderr
    assert done.stderr == ""


def test_each_pin_of_what_is_required_has_hashes_and_nothing_else_has() -> None:
    locked = (offline.ROOT / "scripts/deploy/hashes.txt").read_text().replace("\\\n", "").splitlines()[1:]
    assert [line.partition("     --hash=")[0] for line in locked] == offline.required_pins()
    assert all(re.fullmatch(r"[^#]+?(     --hash=sha256:[0-9a-f]{64})+", line) for line in locked)
