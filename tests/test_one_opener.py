"""Only one module opens what another user can name; every other one that opens a file says here what it opens."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ncclprobe"
OPENS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir"}
OWN, KERNEL, NAMED = (
    "the package's own files", "files of the kernel", "a path that is measured or looked at, not quoted",
)  # fmt: skip
ALLOWED = {
    "host/opener.py": "the opener", "commands/__init__.py": "/dev/null", "session/ssh/there.py": "/dev/null",
    "api.py": "a file in a folder of this call", "commands/deploy.py": OWN, "commands/demo.py": OWN,
    "commands/mcp.py": "a file in a folder of this call", "expect/evidence.py": OWN, "expect/tables/machines.py": OWN,
    "logs/messages.py": OWN, "logs/job/reasons.py": OWN, "report/html/page.py": OWN, "redact/public.py": OWN,
    "model/additions.py": "metadata of installed packages",
    "host/elf.py": "libraries of the loader, whose text is never quoted", "host/live.py": KERNEL,
    "host/user_limits.py": "/etc/security/limits.conf and limits.d, which root owns", "host/rank_servers.py": KERNEL,
    "host/tcp_sockets.py": KERNEL, "host/waits.py": KERNEL, "probes/verbs/port.py": KERNEL,
    "session/watchdog/ending.py": KERNEL,
    "cluster/rendezvous/token.py": "a new file in the caller's own folder, and /proc/self/mountinfo",
    "cluster/rendezvous/coordinator.py": "a new file in a folder of this run",
    "session/ranks/rank_files.py": "files in a folder of this run",
    "session/measure/nccl_debug.py": "files in a folder of this run", "host/scratch.py": "a folder of this run",
    "fleet/place.py": "a store whose folders only its owner writes: fleet/place.py checks them first",
    "fleet/store.py": "the same store, for a lock",
    "host/polls.py": "the source of a program of the job, of which only known words are kept",
    "host/path_child.py": NAMED, "host/path_rate.py": NAMED,
    "report/delivery.py": "/dev/null, and the summary that GitHub's runner names",
}  # fmt: skip


def _opening(tree: ast.AST) -> list[int]:
    """Return the lines of calls that open a file by its path."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = (
        (call, call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")) for call in calls
    )
    return [call.lineno for call, name in names if name in OPENS]


PLACES = ("end.open(", "partial.open(", "recorder.open(", "self.open(", "os.mkdir(end.name,")


def test_every_module_that_opens_a_file_by_its_path_says_why() -> None:
    found: dict[str, list[int]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        lines = text.splitlines()
        opening = [
            number for number in _opening(ast.parse(text)) if not any(each in lines[number - 1] for each in PLACES)
        ]
        if opening:
            found[str(path.relative_to(PACKAGE))] = opening
    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) - set(found) == set()
