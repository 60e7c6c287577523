"""ncclprobe.pyz unpacks what this Python needs once, into a folder that is the user's alone, and starts from there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

pytest.importorskip("packaging", reason="packaging is not installed (extra `test`)")
import environment
import offline

from . import installed

LOCKED = "scripts/deploy/hashes.txt"
HERE = f"cp{sys.version_info[0]}{sys.version_info[1]}-{os.uname().machine}"
FILES = {
    "any/ncclprobe/__init__.py": b"",
    "any/ncclprobe/start.py": b"import os, sys\n"
    b"program = lambda: print(__file__, os.environ['PYTHONPATH'], *sys.argv[1:])",
    f"{HERE}/msgspec.py": b"",
    "cp36-mips/msgspec.py": b"raise ImportError('of another Python')",
}
"""A program that says where it was started from."""


def start(archive: Path, cache: Path | str, *argv: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NCCLPROBE_CACHE": str(cache)}
    command = [sys.executable, "-S", str(archive), *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return offline.pack(FILES, tmp_path / offline.NAME)


def test_it_unpacks_once_what_this_python_needs_and_starts_from_there(archive: Path, tmp_path: Path) -> None:
    first = start(archive, tmp_path / "cache", "doctor", "-q")
    (folder,) = (tmp_path / "cache").iterdir()
    assert first.stdout == f"{folder}/ncclprobe/start.py {folder} doctor -q\n", first.stderr
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["msgspec.py", "ncclprobe"]
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "ncclprobe" / "here").touch()
    assert start(archive, tmp_path / "cache", "doctor", "-q").stdout == first.stdout
    assert (folder / "ncclprobe" / "here").exists()


def test_the_same_files_give_the_same_bytes_and_others_another_folder(archive: Path, tmp_path: Path) -> None:
    again = offline.pack(dict(reversed(FILES.items())) | FILES, tmp_path / "again.pyz")
    assert start(again, tmp_path / "cache").returncode == 0
    other = offline.pack({**FILES, "any/ncclprobe/model/ops.py": b""}, tmp_path / "other.pyz")
    assert start(other, tmp_path / "cache").returncode == 0
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert offline.pack(FILES, tmp_path / "same.pyz").read_bytes() == archive.read_bytes()


def everyone_may_write(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def a_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def a_file(folder: Path) -> None:
    folder.touch()


def of_another_user(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 1234, 1234)


@pytest.mark.parametrize("spoil", [everyone_may_write, a_link, a_file, of_another_user])
def test_a_folder_that_is_not_the_users_alone_is_refused(archive: Path, tmp_path: Path, spoil: object) -> None:
    spoil(tmp_path / "cache")  # type: ignore[operator]
    done = start(archive, tmp_path / "cache")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a folder of this user alone" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unpacked_folder_that_others_may_write_to_is_refused_too(archive: Path, tmp_path: Path) -> None:
    assert start(archive, tmp_path / "cache").returncode == 0
    (folder,) = (tmp_path / "cache").iterdir()
    folder.chmod(0o775)
    assert "is not a folder of this user alone" in start(archive, tmp_path / "cache").stderr


@pytest.mark.parametrize("cache", ["/proc/ncclprobe", "/dev/null/cache"])
def test_where_nothing_can_be_written_one_line_says_what_to_set(archive: Path, cache: str) -> None:
    done = start(archive, cache)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ncclprobe: {cache} cannot be written (")
    assert "set NCCLPROBE_CACHE to a folder of yours; nothing was judged\n" in done.stderr


def test_a_library_that_cannot_be_loaded_is_told_in_a_line(tmp_path: Path) -> None:
    archive = offline.pack({**FILES, f"{HERE}/msgspec.py": b"raise ImportError('failed to map')"}, tmp_path / "x.pyz")
    done = start(archive, tmp_path / "cache")
    assert done.returncode == 2
    assert "failed to map (where " in done.stderr


def test_pythons_that_are_too_old_can_parse_what_runs_first() -> None:
    import ast

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
    done = start(
        offline.pack(files, tmp_path / "x.pyz"), tmp_path / "cache", "doctor", "--local", "--backend=gloo", "--junit=-"
    )
    assert done.returncode in (0, 3, 4), done.stderr
    assert done.stderr == ""


def test_each_pin_of_what_is_required_has_hashes_and_nothing_else_has() -> None:
    locked = (offline.ROOT / LOCKED).read_text().replace("\\\n", "").splitlines()[1:]
    assert [line.partition("     --hash=")[0] for line in locked] == offline.required_pins()
    assert all(re.fullmatch(r"[^#]+?(     --hash=sha256:[0-9a-f]{64})+", line) for line in locked)
