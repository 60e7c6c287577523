"""What is released: the same bytes twice, nothing but what belongs in it, and a command that works from it alone."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import distribution

from ncclprobe import DOCS, __version__
from tests.each_row import some

from . import installed

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


def lend(wheel: Path, site: Path) -> None:
    """Put the distributions that `wheel` requires, and nothing else of where they are installed, on a venv's path."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(file.read(name).decode()).get_all("Requires-Dist", [])
    for name in installed.required(lines):
        for inner, path in installed.files(name):
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
