"""Code and packages of a job: what changes the digest and what does not, and what a hostile folder can do."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from ncclprobe.commands import doctor
from ncclprobe.facts.software import Code
from ncclprobe.facts.software import code as collector
from ncclprobe.host import SAMPLE, code
from ncclprobe.host.live import LiveHost
from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed, UsageError

COMMIT = "1234567890abcdef1234567890abcdef12345678"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of code."""
    for name, text in {"train.py": "print(1)\n", "model/net.py": "x = 1\n", "conf/run.yaml": "lr: 1\n"}.items():
        (tmp_path / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / name).write_text(text)
    return tmp_path / "job"


def digest(folder: Path) -> str:
    return str(code.tree(str(folder))["digest"])


def test_a_changed_a_new_and_a_renamed_file_each_change_the_digest(folder: Path) -> None:
    seen = [digest(folder)]
    (folder / "train.py").write_text("print(2)\n")
    seen.append(digest(folder))
    (folder / "extra.py").touch()
    seen.append(digest(folder))
    (folder / "extra.py").rename(folder / "more.py")
    seen.append(digest(folder))
    (folder / "link.py").symlink_to("/elsewhere/a.py")
    seen.append(digest(folder))
    assert len(set(seen)) == len(seen)


def test_what_a_run_leaves_behind_does_not_change_it(folder: Path) -> None:
    before = code.tree(str(folder))
    for name in ("__pycache__/net.cpython-311.pyc", "logs/run.txt", "step-100.ckpt", ".env", ".git/config", "out.log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("secret")
    (folder / "venv").mkdir()
    (folder / "venv/pyvenv.cfg").touch()
    (folder / "venv/site.py").touch()
    assert code.tree(str(folder)) == before
    assert before["files"] == 3


def test_the_same_folder_elsewhere_has_the_same_digest(folder: Path) -> None:
    before = digest(folder)
    folder.rename(folder.with_name("moved"))
    assert digest(folder.with_name("moved")) == before


def test_a_link_that_leads_in_a_circle_and_a_pipe_are_not_followed(folder: Path) -> None:
    (folder / "round").symlink_to(folder)
    os.mkfifo(folder / "pipe.py")
    assert code.tree(str(folder))["files"] == 4


def test_a_walk_that_ends_early_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CODE_FILES", 2)
    assert code.tree(str(folder))["cut"].startswith("the walk ended after 2 files")
    monkeypatch.setattr(bounds, "CODE_FOLDERS", 1)
    with pytest.raises(Failed, match="more than 1 folders"):
        code.tree(str(folder))


@pytest.mark.parametrize("how", ["loose", "packed", "detached", "worktree"])
def test_the_commit_is_read_without_running_git(folder: Path, how: str) -> None:
    git = folder / ".git"
    git.mkdir()
    (git / "config").write_text("[core]\n\tfsmonitor = touch /tmp/never\n")
    (git / "HEAD").write_text(COMMIT if how == "detached" else "ref: refs/heads/main\n")
    if how == "loose":
        (git / "refs/heads").mkdir(parents=True)
        (git / "refs/heads/main").write_text(f"{COMMIT}\n")
    elif how == "packed":
        (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{COMMIT} refs/heads/main\n")
    elif how == "worktree":
        git.rename(folder.parent / "real")
        git.write_text(f"gitdir: {folder.parent / 'real'}\n")
        (folder.parent / "real/HEAD").write_text(COMMIT)
    assert code.tree(str(folder / "model"))["commit"] == COMMIT


@pytest.mark.parametrize(
    "head", ["ref: refs/../../../etc/passwd", "ref: /etc/passwd", "x" * 10_000, "", "ref: refs/heads/no"]
)
def test_a_head_that_leads_nowhere_is_no_commit(folder: Path, head: str) -> None:
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text(head)
    assert code.tree(str(folder))["commit"] == ""


def test_a_real_repository_has_its_commit(folder: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=folder, check=True, timeout=60)
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, timeout=60, capture_output=True, text=True
    )
    assert code.tree(str(folder))["commit"] == said.stdout.strip()


def test_the_fact_holds_a_digest_and_packages_and_nothing_of_the_files(folder: Path) -> None:
    host = LiveHost((), bool, given={(SAMPLE, "code"): json.dumps({"folder": str(folder)})})
    found = collector.run(host)
    assert isinstance(found, Code)
    assert (found.files, len(found.digest), found.cut) == (3, 64, "")
    assert "msgspec" in found.packages
    assert "train" not in host.ask("tree", str(folder))


def test_code_is_of_live_nodes_and_of_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        doctor.main(["--code", str(tmp_path / "none")])
    with pytest.raises(UsageError, match="exclude each other"):
        doctor.main(["--code", str(tmp_path), str(tmp_path / "n0.jsonl")])
