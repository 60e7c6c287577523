"""What is released: the same bytes twice, nothing but what belongs in it, and a command that works from it alone."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import distribution
import environment
import offline
from packaging.requirements import Requirement

from ncclprobe import DOCS, __version__
from tests.each_row import each_row, some

EPOCH_S = 1_700_000_000
pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="the files of a checkout are asked of git"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> distribution.Built:
    for name in ("build", "hatchling", "twine"):
        pytest.importorskip(name, reason=f"{name} is not installed (extra `test`)")
    folder = tmp_path_factory.mktemp("release")
    tree = distribution.copy(distribution.sources(), folder / "tree")
    return distribution.build(tree, folder / "dist", EPOCH_S)


@pytest.mark.slow
def test_another_copy_of_the_sources_gives_the_same_bytes_and_an_index_takes_them(
    built: distribution.Built, tmp_path: Path
) -> None:
    """Copied in another order, with other dates and for its owner alone."""
    tree = distribution.copy(reversed(distribution.sources()), tmp_path / "elsewhere")
    for path in tree.rglob("*"):
        os.utime(path, (EPOCH_S - 86400, EPOCH_S - 86400))
        path.chmod(path.stat().st_mode & 0o700)
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S)}
    build = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run(build, cwd=tree, env=env, capture_output=True, timeout=120, check=True)
    for path in some(built):
        assert (tree / "dist" / path.name).read_bytes() == path.read_bytes(), path.name
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_they_hold_what_they_must_and_nothing_else_and_that_would_be_told(built: distribution.Built) -> None:
    names = distribution.sources()
    assert distribution.surplus_and_lack(built, names) == []
    wrong = [name for name in [*names, "ncclprobe/new.py"] if name != "ncclprobe/model/ops.py"]
    assert distribution.surplus_and_lack(built, wrong) == [
        f"{sign} {kind}: ncclprobe/{name}.py"
        for kind in ("sdist", "wheel")
        for sign, name in (("+", "model/ops"), ("-", "new"))
    ]


def required(lines: Iterable[str]) -> set[str]:
    """Return the names of the distributions in `lines` that hold here, and of those that they require in turn."""
    found: set[str] = set()
    left = [*lines]
    while left:
        needed = Requirement(left.pop())
        if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(needed.name)
            left += metadata.requires(needed.name) or ()
    return found


def files(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of the distribution `name`: its modules and what it says of itself, and where they are."""
    for file in metadata.files(name) or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            yield str(file), Path(str(file.locate()))


def lend(wheel: Path, site: Path) -> None:
    """Put the distributions that `wheel` requires, and nothing else of where they are installed, on a venv's path."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(file.read(name).decode()).get_all("Requires-Dist", [])
    for name in required(lines):
        for inner, path in files(name):
            (site / inner).parent.mkdir(parents=True, exist_ok=True)
            (site / inner).symlink_to(path)


@pytest.mark.slow
def test_in_a_bare_environment_every_format_works_and_torch_is_not_missed(
    built: distribution.Built, tmp_path: Path
) -> None:
    """With exactly the distributions that the wheel requires, and those that they require."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], timeout=60, check=True)
    (site,) = venv.glob("lib/python3*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*install, "--target", str(site), str(built.wheel)], capture_output=True, timeout=60, check=True)
    lend(built.wheel, site)
    names = ("json", "junit", "markdown", "html", "prometheus", "nodes-out")
    argv = [word for name in names for word in (f"--{name}", str(tmp_path / f"r.{name}"))]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    run = [str(venv / "bin" / "python"), "-I", str(site / "bin" / "ncclprobe"), "doctor", "--local", "--backend=gloo"]
    done = subprocess.run([*run, *argv], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 3, 4), done.stderr
    assert [name for name in names if not (tmp_path / f"r.{name}").exists()] == []
    assert f'"version": "{__version__}"' in (tmp_path / "r.json").read_text()
    assert not {path.name for path in site.iterdir()} & {"torch", "numpy", "yaml"}


def test_the_metadata_says_where_the_documentation_is_and_a_container_is_built_of_what_it_names() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'Documentation = "{DOCS}"' in text
    let_in = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    sdist = re.findall(r'"([^"]+)"', text.partition("only-include = ")[2].partition("\n")[0])
    assert {*sdist, "pyproject.toml", "README.md", "LICENSE"} == let_in


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
    packed = {
        f"any/{path.relative_to(ROOT)}": path.read_bytes()
        for path in (ROOT / "ncclprobe").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in required(environment.requirements([])):
        packed |= {f"{HERE}/{inner}": path.read_bytes() for inner, path in files(name)}
    archive = offline.pack(packed, tmp_path / "x.pyz")
    done = start(archive, tmp_path / "cache", "doctor", "--local", "--backend=gloo", "--junit=-")
    assert (done.stderr, done.returncode in (0, 3, 4)) == ("", True)


def test_each_pin_of_what_is_required_has_hashes_and_nothing_else_has() -> None:
    locked = (offline.ROOT / "scripts/deploy/hashes.txt").read_text().replace("\\\n", "").splitlines()[1:]
    assert [line.partition("     --hash=")[0] for line in locked] == offline.required_pins()
    assert all(re.fullmatch(r"[^#]+?(     --hash=sha256:[0-9a-f]{64})+", line) for line in locked)
