"""What is released: the same bytes twice, nothing but what belongs in it, and a command that works from it alone."""

import os
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
NEEDED = ("build", "hatchling", "twine")

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="the files of a checkout are asked of git"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> distribution.Built:
    for name in NEEDED:
        pytest.importorskip(name, reason=f"{name} is not installed (extra `test`)")
    folder = tmp_path_factory.mktemp("release")
    tree = distribution.copy(distribution.sources(), folder / "tree")
    return distribution.build(tree, folder / "dist", EPOCH_S)


@pytest.mark.slow
def test_another_copy_of_the_sources_gives_the_same_bytes(built: distribution.Built, tmp_path: Path) -> None:
    """Copied in another order, with other dates and for its owner alone."""
    tree = distribution.copy(reversed(distribution.sources()), tmp_path / "elsewhere")
    for path in tree.rglob("*"):
        os.utime(path, (EPOCH_S - 86400, EPOCH_S - 86400))
        path.chmod(path.stat().st_mode & 0o700)
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S)}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build"], cwd=tree, env=env, capture_output=True, timeout=120, check=True
    )
    for path in some(built):
        assert (tree / "dist" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
def test_they_hold_what_they_must_and_nothing_else(built: distribution.Built) -> None:
    assert distribution.surplus_and_lack(built, distribution.sources()) == []


def test_a_file_too_many_and_one_that_is_missing_are_told(built: distribution.Built) -> None:
    names = [*distribution.sources(), "ncclprobe/new.py"]
    names.remove("ncclprobe/model/ops.py")
    assert distribution.surplus_and_lack(built, names) == [
        f"{sign} {kind}: ncclprobe/{name}.py"
        for kind in ("sdist", "wheel")
        for sign, name in (("+", "model/ops"), ("-", "new"))
    ]


@pytest.mark.slow
def test_an_index_would_take_them(built: distribution.Built) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
    install += ["--target", str(site), str(built.wheel)]
    subprocess.run(install, capture_output=True, timeout=60, check=True)
    lend(built.wheel, site)
    formats = {
        name: tmp_path / f"r.{name}" for name in ("json", "junit", "markdown", "html", "prometheus", "nodes-out")
    }
    argv = [word for name, path in formats.items() for word in (f"--{name}", str(path))]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    run = [str(venv / "bin" / "python"), "-I", str(site / "bin" / "ncclprobe")]
    done = subprocess.run([*run, "doctor", "--local", "--backend", "gloo", *argv], env=env, cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode in (0, 3, 4), done.stderr
    assert all(path.exists() for path in formats.values())
    assert f'"version": "{__version__}"' in formats["json"].read_text()
    assert not {path.name for path in site.iterdir()} & {"torch", "numpy", "yaml"}


def test_the_metadata_says_where_the_documentation_stands() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'Documentation = "{DOCS}"' in text
