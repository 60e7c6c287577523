#!/usr/bin/env python3
"""How many functions of ncclprobe does a command call? A measure of its work that no other program moves.

    .venv/bin/python scripts/calls.py [--write] [SITUATION ...]

Prints each situation with its number of calls and the number that is kept in tests/data/calls.json, and the functions
that grew; --write keeps what was counted. Frames of comprehensions are left out, so that Pythons agree. What is done
in C is not seen.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "data" / "calls.json"
CAPTURE = ROOT / "tests" / "captures" / "hgx-h200.jsonl"
FORMATS = ("json", "junit", "markdown", "html", "prometheus")
SITUATIONS = ("doctor small", "doctor large", "doctor 64", "explain 1 MB", *(f"render {name}" for name in FORMATS))
ALLOWED = 1.02
_FEW = 0.005
"""Of all calls of a situation: a function with fewer is not kept by name."""
_CHILD_S = 300.0
_LINE = "n{0}: n{0}:{1}:{1} [{0}] NCCL INFO Channel {2:02}/0 : {0}[{0}] -> {3}[{3}] via P2P/CUMEM/read\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("?")[0])
    parser.add_argument("situations", nargs="*", metavar="SITUATION", help=f"one or more of: {', '.join(SITUATIONS)}")
    parser.add_argument("--write", action="store_true", help="keep what was counted")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        return _count_here(options.situations[0])
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for situation in options.situations or SITUATIONS:
        now, before = counted(situation), kept.get(situation, {})
        print(f"{situation}: {now['']:,} calls, kept {before.get('', 0):,}{''.join(grown(now, before))}", flush=True)
        kept[situation] = now
    if options.write:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


def counted(situation: str) -> dict[str, int]:
    """Return the calls of each function that has many, and under "" those of all, in a fresh process."""
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPYCACHEPREFIX") if name in os.environ}
    done = subprocess.run(
        [sys.executable, __file__, situation, "--child"],
        env={**plain, "PYTHONHASHSEED": "0", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        timeout=_CHILD_S,
        check=True,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def grown(now: dict[str, int], before: dict[str, int]) -> list[str]:
    """Return a line for each function that is called more often than before, most first; nothing within 2 %."""
    if now[""] <= ALLOWED * before.get("", 0):
        return []
    more = {name: count - before.get(name, 0) for name, count in now.items() if name}
    return [f"\n  {name}: {more[name]:+,}" for name in sorted(more, key=lambda each: -more[each])[:5] if more[name] > 0]


def _count_here(situation: str) -> int:
    """Play one situation in this process, and print what was called."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    with tempfile.TemporaryDirectory() as folder:
        argv = _command(situation, Path(folder))
        calls: Counter[Any] = Counter()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                calls[frame.f_code] += 1

        out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.setprofile(note)
        try:
            from ncclprobe.commands import main as command

            command(argv)
        finally:
            sys.setprofile(None)
        sys.stdout.flush()
        os.dup2(out, 1)
    named: Counter[str] = Counter()
    for code, count in calls.items():
        path = Path(code.co_filename)
        if ROOT / "ncclprobe" in path.parents and (code.co_name == "<lambda>" or not code.co_name.startswith("<")):
            named[f"{path.relative_to(ROOT).with_suffix('')}:{code.co_name}"] += count
    total = named.total()
    print(json.dumps({"": total} | {name: count for name, count in sorted(named.items()) if count >= _FEW * total}))
    return 0


def _command(situation: str, folder: Path) -> list[str]:
    """Return the command line of a situation, whose files are written to `folder`."""
    kind, _, rest = situation.partition(" ")
    if kind == "explain":
        log = folder / "rank0.log"
        log.write_text("".join(_LINE.format(n % 8, 100 + n % 8, n % 24, (n + 1) % 8) for n in range(13_000)))
        return ["explain", str(log)]
    if kind == "render":
        report = folder / "report.json"
        subprocess.run(
            [sys.executable, "-m", "ncclprobe", "doctor", str(CAPTURE), "--json", str(report)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            timeout=_CHILD_S,
        )
        return ["report", str(report), f"--{rest}", str(folder / "rendered")]
    if rest == "64":
        from fleets import captures

        return ["doctor", *map(str, captures.write(CAPTURE, 64, folder))]
    return ["doctor", str(CAPTURE if rest == "large" else CAPTURE.with_name("laptop.jsonl"))]


if __name__ == "__main__":
    sys.exit(main())
