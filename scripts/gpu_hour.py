#!/usr/bin/env python3
"""What only a machine with a GPU can show, in stages of under ten minutes.

    scripts/gpu_hour.py OUT [--stage N[,N]] [--wheels DIR]
    scripts/gpu_hour.py OUT --rehearse

Needs torch with its NCCL, msgspec and what else ncclprobe imports; no network. Put beside the checkout what that
machine lacks, as wheels: `pip download --no-deps -d carry/wheels --only-binary :all: --python-version 3.12 msgspec`.

A stage that is finished is not repeated, and neither is a step of one that was cut short; delete OUT/stageN to repeat
it. Every stage has a deadline of its own and runs in a process group that is killed then; a stage that fails does not
stop the next. Results come as they are found: OUT/stageN/steps.jsonl, then summary.json and summary.md, of each
stage and of all. Redact what is to stay: `ncclprobe capture --redact` is a step of stage 2.

--rehearse plays every stage without a GPU: gloo in place of NCCL, a libnvidia-ml and a nvidia-smi of our own in place
of the driver's. Every summary says what was replaced, and what was not run. Exit status: 0 every asked stage finished,
whatever it found; 1 one did not; 2 wrong usage.
"""

import argparse
import ctypes
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from gpu_stages import machine, processes, standins, summary
from gpu_stages.steps import BEGUN, STANDINS, Context, StepLog, read

DONE, MODE = "done", "mode"
MODES = {
    "real": "on a machine with a GPU",
    "rehearsed": "rehearsed without a GPU",
}
_PR_SET_PDEATHSIG = 1
_MARGIN_S = 10.0
"""The stage's own steps end so long before it is killed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: what it asks, the module of gpu_stages that plays it, and how long it may take."""

    title: str
    module: str
    deadline_s: float


STAGES: Mapping[int, Stage] = {
    1: Stage("Does it run at all", "running", 240.0),
    2: Stage("The machine", "hardware", 150.0),
    3: Stage("Deadlines on a spinning kernel", "deadlines", 270.0),
}


def main() -> int:
    """Run the stages that were asked for, each in a process of its own; sum up after each."""
    args = _arguments()
    out: Path = args.out.resolve()
    if args.inside:
        return inside(args.inside, out, args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a machine that ends a command asks so first
    prepare(out, args)
    finished = []
    for number in args.stage:
        finished.append(run_stage(number, out, args))
        sum_up(out, args)
    print(out / f"{summary.NAME}.md")
    return int(not all(finished))


def prepare(out: Path, args: argparse.Namespace) -> None:
    """Unpack what was carried, and make the stand-ins."""
    if args.wheels:
        print(f"unpacked {', '.join(machine.unpack(args.wheels, out)) or 'no wheel'}")
    try:
        standins.build(ROOT, out / STANDINS)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"there are no stand-ins, and the steps that need one say so: {error}")


def sum_up(out: Path, args: argparse.Namespace) -> None:
    """Write the summary of all stages that were ever run in `out`."""
    stages = [row for number in STAGES if (row := stage_summary(number, out))]
    about = _about(stages)
    mode = _mode(args)
    text = summary.whole_text(stages, MODES[mode], about)
    summary.write(out, {"about": about, "rehearsed": mode != "real", "stages": stages}, text)


def _about(stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """When and where this was; torch, NCCL and GPUs as stage 1 found them."""
    kernel = platform.release().partition("-")[0]
    about = {"taken": time.strftime("%Y-%m-%d"), "Python": platform.python_version(), "Linux": kernel}
    steps = [step for stage in stages for step in stage["steps"] if step["name"] == "inventory"]
    found = steps[0]["found"] if steps else {}
    return about | {name: found[name] for name in ("torch", "nccl", "gpus", "cpus") if found.get(name)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of all results")
    parser.add_argument(
        "--stage", type=_stages, default=list(STAGES), metavar="N[,N]", help="only these (default: all)"
    )
    parser.add_argument("--rehearse", action="store_true", help="without a GPU: replace what only one has, and say so")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="unpack these wheels for the stages to import")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="of each stage, in place of its own")
    parser.add_argument("--inside", type=int, choices=STAGES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out.resolve().is_relative_to(ROOT):
        parser.error("OUT is inside the repository: name a folder outside")
    if other := _other_mode(args.out, _mode(args)):
        parser.error(f"{args.out} holds {other}: name another folder")
    return args


def _mode(args: argparse.Namespace) -> str:
    return "rehearsed" if args.rehearse else "real"


def _other_mode(out: Path, mode: str) -> str:
    """Say what `out` holds of another kind, whose finished stages would count; else note this kind there."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / MODE).exists():
        (out / MODE).write_text(mode)
    found = (out / MODE).read_text()
    return "" if found == mode else "a real run" if found == "real" else "a rehearsal"


def _stages(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not set(found) <= set(STAGES):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers from {min(STAGES)} to {max(STAGES)}, as 1 or 1,3")
    return list(dict.fromkeys(found))


def run_stage(number: int, out: Path, args: argparse.Namespace) -> bool:
    """Play a stage in a process of its own and end all that is left of it; whether it finished by itself, ever."""
    folder, stage = _folder(out, number), STAGES[number]
    if (folder / DONE).exists():
        print(f"stage {number}: finished earlier; delete {folder} to repeat it")
        return True
    mark, deadline_s = uuid.uuid4().hex, args.deadline or stage.deadline_s
    print(f"stage {number}: {stage.title}, at most {deadline_s:.0f} s", flush=True)
    command = [sys.executable, sys.argv[0], out, "--inside", number, "--deadline", deadline_s]
    command += ["--rehearse"] if args.rehearse else []
    output = folder / "stage.log"
    env = machine.variables(out, ROOT, mark)
    try:
        ended = processes.run(command, output, env, deadline_s)
    finally:
        left = processes.kill_marked(mark)
    print(ended.text, end="", flush=True)
    whole = ended.code == 0
    why = "" if whole else f"the stage did not finish: {ended}{_in_step(folder)}"
    conclude(number, folder, args, why, ended.seconds, left)
    if whole:
        (folder / DONE).touch()
    return whole


def _in_step(folder: Path) -> str:
    begun = folder / BEGUN
    return f", in step {begun.read_text()!r}" if begun.exists() else ""


def conclude(number: int, folder: Path, args: argparse.Namespace, why: str, seconds: float, left: int) -> None:
    """Write the summary of a stage, however it ended."""
    if left:
        why = f"{why}; {left} processes were left and killed".removeprefix("; ")
    stage = STAGES[number]
    more: dict[str, Any] = {"seconds": seconds, "deadline_s": args.deadline or stage.deadline_s, "ended": why}
    if args.rehearse:
        module = _module(number)
        more |= {"replaced": module.REPLACED, "not_run": module.NOT_RUN}
    content = summary.of_stage(number, stage.title, read(folder), **more)
    summary.write(folder, content, summary.stage_text(content))


def _module(number: int) -> ModuleType:
    """It imports nothing of ours, nor torch, before it is played."""
    return importlib.import_module(f"gpu_stages.{STAGES[number].module}")


def stage_summary(number: int, out: Path) -> dict[str, Any] | None:
    """The summary of a stage; none where it was never run."""
    path = _folder(out, number) / f"{summary.NAME}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def inside(number: int, out: Path, args: argparse.Namespace) -> int:
    """In the process of its own: play the stage, which ends with the process that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    variables = dict(os.environ)
    mark = variables.get(processes.MARK, "")
    context = Context(out, args.rehearse, ROOT, variables, mark)
    log = StepLog(context, _folder(out, number), args.deadline - _MARGIN_S)
    try:
        _module(number).run_steps(context, log)
    except KeyboardInterrupt:
        processes.kill_marked(context.mark)
        raise
    return int(any(step.status == "late" for step in log.recorded))


def _folder(out: Path, number: int) -> Path:
    return out / f"stage{number}"


if __name__ == "__main__":
    sys.exit(main())
