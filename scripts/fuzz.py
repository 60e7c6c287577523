#!/usr/bin/env python3
"""Spoil what every reader of foreign text and bytes reads, and see that it returns a value or refuses as it should.

    .venv/bin/python scripts/fuzz.py [--inputs N] [--seed S] [--only NAME]

Each reader runs in a process of its own, N inputs of it (default: 1600), one after the other: by the same seed the same
inputs. What is no NcclprobeError of ours, takes more than 2 s of processor time, or leaves more than 1 GiB in use is a
defect, and is shown with the number that repeats it (`--seed S --only NAME --at NUMBER`). Exits with 1 if there is any.
"""

import argparse
import contextlib
import multiprocessing
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from fuzz_readers import Reader, readers

from ncclprobe.model.errors import NcclprobeError

_LONGEST_S, _MOST_KIB, _SHOWN = 2.0, 1 << 20, 5


class Outcome(NamedTuple):
    """What became of a reader's inputs. `worst_ms` is of processor time, `peak_MiB` what the process had in use."""

    name: str
    inputs: int
    values: int
    refusals: int
    worst_ms: float
    worst_at: int
    peak_MiB: float
    defects: list[str]


class TooSlow(BaseException):
    """An input took longer than any may. No Exception: nothing may take it for a refusal."""


def tried(reader: Reader, seed: int, numbers: Sequence[int]) -> Outcome:
    """Return what becomes of these inputs of a reader."""
    signal.signal(signal.SIGVTALRM, _give_up)
    values = refusals = 0
    worst, worst_at, defects = 0.0, 0, list[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(Exception):  # the first one makes the texts, and what a reader keeps
        reader.attempt(random.Random(f"{seed} {reader.name}"))
    for number in numbers:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_S)
        try:
            reader.attempt(random.Random(f"{seed} {reader.name} {number}"))
            values += 1
        except NcclprobeError:
            refusals += 1
        except (Exception, TooSlow) as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            defects.append(f"{number}: {_described(error)}")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        spent = time.process_time() - began
        if spent > worst:
            worst, worst_at = spent, number
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peak > max(before, _MOST_KIB):
        defects.append(f"{peak >> 10} MiB in use")
    return Outcome(reader.name, len(numbers), values, refusals, 1000 * worst, worst_at, peak / 1024, defects)


def _give_up(*_: Any) -> None:
    raise TooSlow(f"more than {_LONGEST_S:g} s")


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "ncclprobe" in Path(frame.filename).parts] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"
    return f"{type(error).__name__} in {where}: {ascii(str(error))[:160]}"


def _apart(name: str, seed: int, numbers: Sequence[int], answer: Any) -> None:
    """Be the process of one reader."""
    (reader,) = (each for each in readers() if each.name == name)
    answer.send(tried(reader, seed, numbers))


def run_apart(name: str, seed: int, numbers: Sequence[int]) -> Outcome:
    """Return what becomes of a reader's inputs in a process of its own: its memory is what it took."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_apart, args=(name, seed, numbers, theirs))
    process.start()
    theirs.close()
    try:
        found: Outcome = ours.recv()
    except EOFError:
        process.join(10)
        found = Outcome(name, 0, 0, 0, 0.0, 0, 0.0, [f"its process ended with {process.exitcode}"])
    process.join(10)
    return found


def main(argv: Sequence[str]) -> int:
    """Run; return the exit code."""
    options = _parser().parse_args(argv)
    wanted = [each for each in readers() if options.only in each.name]
    if options.at is not None:
        print(*(tried(each, options.seed, [options.at]) for each in wanted), sep="\n")
        return 0
    found = []
    for each in wanted:
        row = run_apart(each.name, options.seed, range(options.inputs))
        found.append(row)
        print(_line(row), *row.defects[:_SHOWN], sep="\n    ", flush=True)
    return int(any(row.defects for row in found))


def _line(row: Outcome) -> str:
    counts = f"{row.values:6} values {row.refusals:6} refusals {len(row.defects):3} defects"
    return f"{row.name:24} {counts} {row.worst_ms:7.0f} ms (input {row.worst_at}) {row.peak_MiB:5.0f} MiB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--at", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
