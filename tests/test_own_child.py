"""Starting processes: what a child of ours may import and search, and that there is one way to start one."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ncclprobe.host import command, own_child
from ncclprobe.model.errors import Denied, Missing

ROOT = Path(__file__).resolve().parents[1]
STARTS = re.compile(
    r"subprocess\.(?!PIPE|DEVNULL|TimeoutExpired|SubprocessError|Popen\b(?!\())\w+|from subprocess"
    r"|create_subprocess_\w+|os\.(?:fork|posix_spawn|system|popen|exec|spawn)\w*\("
    r"|import (?:multiprocessing|pty)|ProcessPoolExecutor"
)
"""What starts a process, or names what does; elsewhere a type may be named, streams, and what waiting raises."""


def modules() -> list[Path]:
    return sorted((ROOT / "ncclprobe").rglob("*.py"))


def test_processes_are_started_in_one_place() -> None:
    found = {str(path.relative_to(ROOT)): {*STARTS.findall(path.read_text())} for path in modules()}
    assert {path: ways for path, ways in found.items() if ways} == {"ncclprobe/host/command.py": {"subprocess.Popen"}}
    assert all(map(STARTS.search, ("subprocess.run(['x'])", "os.execvp('x', [])", "from subprocess import run",
                                   "asyncio.create_subprocess_exec('x')", "import multiprocessing.pool")))  # fmt: skip


def test_a_python_is_named_to_be_started_in_one_place() -> None:
    assert {str(path.relative_to(ROOT)) for path in modules() if "sys.executable" in path.read_text()} == {
        "ncclprobe/host/own_child.py",
        "ncclprobe/host/limited_child.py",  # in what it says of one that did not start
        "ncclprobe/host/py_spy.py",  # py-spy may lie beside it
        "ncclprobe/commands/hosts.py",  # the default of --remote-python
    }


def path_of_child(monkeypatch: pytest.MonkeyPatch, pythonpath: str, *here: str) -> list[str]:
    monkeypatch.setenv("PYTHONPATH", pythonpath)
    monkeypatch.setattr(sys, "path", [*here, "/lib/python"])
    return own_child.import_path()


def test_what_is_meant_by_the_working_directory_is_not_in_the_path_of_a_child_and_what_was_named_as_a_whole_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    here = ["", ".", "relative", str(tmp_path), f"{tmp_path}/relative", f"{tmp_path}/."]
    named = [str(tmp_path), str(ROOT), "/opt/site"]
    assert path_of_child(monkeypatch, ":relative:.", *here) == ["/lib/python", str(ROOT)]
    assert path_of_child(monkeypatch, f"{tmp_path}/:", *named) == [*named, "/lib/python"]
    monkeypatch.chdir(ROOT)  # a checkout in the working directory stays where it is
    assert path_of_child(monkeypatch, "", "", "/opt/site") == [str(ROOT), "/opt/site", "/lib/python"]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert path_of_child(monkeypatch, "", "") == ["/lib/python", str(ROOT)]
    monkeypatch.chdir(ROOT)


SAYS = """\
import json, os, sys
def say(*words):
    names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONINSPECT", "PYTHONSAFEPATH", "OF_OURS")
    print(json.dumps([words, sys.argv, sys.path, {name: os.environ.get(name) for name in names}]))
"""


def said(*arguments: str, **variables: str) -> list[object]:
    process = own_child.start_own("says:say", *arguments, stdout=subprocess.PIPE, variables=variables)
    out, _ = process.communicate(timeout=60)
    command.abandon(process)
    found: list[object] = json.loads(out)
    return found


def test_a_child_is_called_with_its_arguments_and_searches_whole_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", ":/usr/bin:.:/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib;;$ORIGIN/../lib:relative")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}::.")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    words, argv, path, variables = said("a", "", "b c", OF_OURS="yes")
    assert (words, argv) == (["a", "", "b c"], ["-c"])
    assert path == own_child.import_path()
    assert variables == {
        "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/lib:$ORIGIN/../lib", "PYTHONPATH": str(tmp_path),
        "PYTHONINSPECT": None, "PYTHONSAFEPATH": "1", "OF_OURS": "yes",
    }  # fmt: skip
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib;/opt/more")  # what is whole is passed on as it is
    monkeypatch.delenv("PYTHONPATH")
    variables = said()[3]
    assert isinstance(variables, dict)
    assert (variables["LD_LIBRARY_PATH"], variables["PYTHONPATH"]) == ("/opt/lib;/opt/more", None)


def test_a_child_has_the_safety_flags_of_ours_and_the_safe_path_of_releases_that_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = {"isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}
    for on in (*flags, ""):
        monkeypatch.setattr(sys, "flags", SimpleNamespace(**{name: int(name == on) for name in flags}))
        for version, safe in (((3, 10, 14), []), ((3, 11, 0), ["-P"])):
            monkeypatch.setattr(sys, "version_info", version)
            path = own_child.import_path()
            begin, _, rest = " ".join(own_child.command("m:f", "a b")).partition(" -c ")
            assert begin.split()[1:] == [*safe, *([flags[on]] if on else [])]
            assert rest.endswith(" ".join(("m:f", str(len(path)), *path, "a b")))


def test_a_file_of_all_of_ncclprobe_starts_its_children_from_itself(tmp_path: Path) -> None:
    """Named by a relative path, as `python ncclprobe.pyz`."""
    with zipfile.ZipFile(tmp_path / "whole.pyz", "w") as whole:
        for path in sorted((ROOT / "ncclprobe").rglob("*.py")):
            whole.write(path, path.relative_to(ROOT))
        whole.writestr("__main__.py", "from ncclprobe.host.own_child import import_path\nprint(import_path()[0])\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "whole.pyz"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [str(tmp_path / "whole.pyz")]


_STARTS_TWO = """
import subprocess, sys, threading
from ncclprobe.model.errors import Denied, Missing
from ncclprobe.host import command, own_child
sleeps = "sleep 1000 & echo $!; wait"
found = []
thread = threading.Thread(target=lambda: found.append(command.start(["sh", "-c", sleeps], stdout=subprocess.PIPE)))
thread.start()
thread.join()
found.append(own_child.start_own("signal:pause"))
print(*(each.pid for each in found), int(found[0].stdout.readline()), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_what_was_started_is_killed_by_the_kernel_where_who_started_it_is() -> None:
    """With all of its group, though not when the thread ends that started it."""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS_TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 3
        assert not any(map(has_ended, children))
        parent.kill()
        parent.wait()
        psutil.wait_procs(children, timeout=2.0)
        assert all(map(has_ended, children))


def test_what_has_ended_keeps_no_file_open() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    command.run(["true"], 10.0)
    with pytest.raises(OSError, match="no-such-program"):
        command.start(["/no-such-program"])
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def tool(folder: Path, says: str, mode: int = 0o755) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tool").write_text(f"#!/bin/sh\necho {says}\n")
    (folder / "tool").chmod(mode)
    return folder / "tool"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone is careful with what others may write")
def test_root_starts_no_program_that_others_may_change_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(words: str) -> None:
        command.is_own.cache_clear()
        with pytest.raises(Denied, match=f"tool: not started as root, because other users may change {words}/tool"):
            command.run(["tool"], 10.0)

    wide, own, elsewhere = tmp_path / "open", tmp_path / "own", tmp_path / "elsewhere"
    tool(wide, "open")
    (tmp_path / "tool").mkdir()
    wide.chmod(0o777)
    mine = tool(own, "own")
    monkeypatch.setenv("PATH", f"{tmp_path}:{wide}/:relative:{own}")
    assert command.run(["tool"], 10.0) == "own\n"
    mine.chmod(0o644)  # it is no program then
    refuses(str(wide))
    mine.unlink()
    with pytest.raises(Missing, match="no-tool: not there"):
        command.run(["no-tool"], 10.0)
    monkeypatch.setenv("PATH", str(own))
    mine.symlink_to(tool(elsewhere, "linked"))
    command.is_own.cache_clear()
    assert command.run(["tool"], 10.0) == "linked\n"
    os.chown(elsewhere / "tool", 65534, 65534)
    monkeypatch.setenv("PATH", f"{own}:{wide}")
    refuses(str(own))
    mine.unlink()
    tool(own, "own", 0o757)
    refuses(str(own))


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
