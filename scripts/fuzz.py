#!/usr/bin/env python3
"""Spoil what every reader of foreign text and bytes reads, and see that it returns a value or refuses as it should.

    .venv/bin/python scripts/fuzz.py [--inputs N] [--seed S] [--only NAME] [--at NUMBER]

N inputs of each reader, one after the other (default: 1600): by the same seed the same inputs. What is not an
NcclprobeError of ours, takes more than 2 s of processor time, or wants more than 2 GiB is a defect, and is shown with
the number that repeats it (`--seed S --only NAME --at NUMBER`). Exits with 1 if there is any.
"""

import argparse
import contextlib
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

_LONGEST_S, _MOST_BYTES, _SHOWN = 2.0, 2 << 30, 5


class Outcome(NamedTuple):
    """What became of a reader's inputs. `worst_ms` is of processor time, that of input `worst_at`."""

    name: str
    inputs: int
    values: int
    refusals: int
    worst_ms: float
    worst_at: int
    defects: list[str]


class TooSlow(BaseException):
    """An input took longer than any may. No Exception: nothing may take it for a refusal."""


def tried(reader: Reader, seed: int, numbers: Sequence[int]) -> Outcome:
    """Return what becomes of these inputs of a reader."""
    signal.signal(signal.SIGVTALRM, _give_up)
    values = refusals = 0
    worst, worst_at, defects = 0.0, 0, list[str]()
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
    return Outcome(reader.name, len(numbers), values, refusals, 1000 * worst, worst_at, defects)


def _give_up(*_: Any) -> None:
    raise TooSlow(f"more than {_LONGEST_S:g} s")


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "ncclprobe" in Path(frame.filename).parts] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"
    return f"{type(error).__name__} in {where}: {ascii(str(error))[:160]}"


def main(argv: Sequence[str]) -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--at", type=int)
    options = parser.parse_args(argv)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, resource.RLIM_INFINITY))
    broken = 0
    for reader in readers():
        if options.only in reader.name:
            numbers = range(options.inputs) if options.at is None else [options.at]
            found = tried(reader, options.seed, numbers)
            counts = f"{found.values:6} values {found.refusals:6} refusals {len(found.defects):3} defects"
            print(f"{found.name:24} {counts} {found.worst_ms:7.0f} ms (input {found.worst_at})", flush=True)
            print("".join(f"    {defect}\n" for defect in found.defects[:_SHOWN]), end="", flush=True)
            broken += len(found.defects)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
