#!/usr/bin/env python3
"""Plays the recorded failures through `ncclprobe explain`, and through torch's own analyser of flight records.

    scripts/confusion.py FOLDER [--write reports/explain.md]

FOLDER holds what scripts/record_failures.py wrote. Prints, for every case, the cause that is established and those that
are named, with the logs alone and with the flight records too; then the confusion table.
"""

import argparse
import gzip
import json
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from ncclprobe.model.values import Struct

HEALTHY = "(healthy)"
NOTHING = "(nothing)"
_PATIENCE_S = 60.0


class Played(Struct, frozen=True):
    """One case: the established cause and ranks, and what was named, the most likely first."""

    name: str
    code: str
    ranks: tuple[int, ...]
    causes: tuple[dict[str, Any], ...]
    from_logs: tuple[dict[str, Any], ...]
    torch: str = ""

    @property
    def named(self) -> str:
        """Return the first code."""
        return self.causes[0]["code"] if self.causes else NOTHING

    @property
    def is_right(self) -> bool:
        """Return whether the first is the established cause, or nothing is named of a healthy job."""
        return self.named == (self.code or NOTHING)

    @property
    def is_among_three(self) -> bool:
        """Return whether the established cause is among the first three, or among those that are left."""
        left = [code for cause in self.causes[:3] for code in (cause["code"], *cause["could_be"])]
        return self.is_right or self.code in left

    @property
    def is_wrong(self) -> bool:
        """Return whether another cause is named first, and not unknown."""
        return not self.is_among_three and self.named not in ("unknown", NOTHING)


def explained(files: list[Path]) -> tuple[dict[str, Any], ...]:
    """Return the causes of `ncclprobe explain --json`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        command = [sys.executable, "-m", "ncclprobe", "explain", *map(str, files), "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
        if done.returncode:
            raise SystemExit(f"{files[0].parent.name}: exit code {done.returncode}: {done.stderr}")
        return tuple(json.loads(path.read_text())["causes"])


def play(folder: Path, with_torch: bool) -> Played:
    """Play one case."""
    about = json.loads((folder / "case.json").read_text())
    logs, dumps = sorted(folder.glob("*.log.gz")), sorted(folder.glob("fr_trace_rank_*.gz"))
    from_logs = explained(logs)
    return Played(
        folder.name,
        about["code"],
        tuple(about["ranks"]),
        explained([*logs, *dumps]) if dumps else from_logs,
        from_logs,
        analysed(dumps, about["ranks"]) if with_torch and dumps else "",
    )


def analysed(dumps: list[Path], ranks: list[int]) -> str:
    """Return what torch's analyser makes of the dumps as gloo wrote them, and of the same as NCCL writes them."""
    read = {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes()) for path in dumps}
    return f"{_analyse(read, ranks)}; as NCCL writes them: {_analyse(_as_nccl(read), ranks)}"


def _as_nccl(dumps: dict[str, bytes]) -> dict[str, bytes]:
    """Return the dumps with the groups' ranks and the states that ProcessGroupNCCL records: the best case for torch."""
    world = max(int(name.rpartition("_")[2]) for name in dumps) + 1
    found = {}
    for name, data in dumps.items():
        dump = pickle.loads(data)  # noqa: S301 - what scripts/record_failures.py recorded itself
        last = max((each["collective_seq_id"] for each in dump["entries"]), default=0)
        groups = {each["process_group"] for each in dump["entries"]}
        ranks = {"0": list(range(world))}
        dump["pg_config"] = {n: {"name": n, "desc": d, "ranks": str(ranks.get(n, [0, 1]))} for n, d in groups}
        for each in dump["entries"]:
            each["profiling_name"] = each["profiling_name"].replace("gloo:", "nccl:")
            each["state"] = "completed" if each["collective_seq_id"] < last else "scheduled"
        found[name] = pickle.dumps(dump, 2)
    return found


def _analyse(dumps: dict[str, bytes], ranks: list[int]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in dumps.items():
            Path(folder, name).write_bytes(data)
        command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "-p", "fr_trace_rank_", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    text = done.stdout + done.stderr
    if done.returncode:
        return f"crashed ({text.strip().splitlines()[-1][:60]})"
    said = [line for line in text.splitlines() if "Culprit rank" in line or "missing ranks" in line]
    if not said:
        return "nothing"
    named = {int(word) for line in said for word in _numbers(line)}
    word = "right" if named == {*ranks} else "too many" if named > {*ranks} else "wrong"
    return f"{word} (ranks {', '.join(map(str, sorted(named)))})"


def _numbers(line: str) -> Iterator[str]:
    _, _, rest = line.partition("missing ranks: ")
    if rest:
        yield from (word.strip("{} ") for word in rest.split(","))
    for part in line.split("Culprit rank ")[1:]:
        yield part.partition(";")[0]


def table(played: list[Played]) -> Iterator[str]:
    """Yield the rows of all cases, as Markdown."""
    yield "| case | established | with everything | with logs alone | torch's analyser |"
    yield "|---|---|---|---|---|"
    for each in played:
        words = [each.name, f"{each.code or HEALTHY}{_of(each.ranks)}", _shown(each.causes), _shown(each.from_logs)]
        yield f"| {' | '.join([*words, each.torch or '–'])} |"


def _of(ranks: tuple[int, ...]) -> str:
    return f", rank {', '.join(map(str, ranks))}" if ranks else ""


def _shown(causes: tuple[dict[str, Any], ...]) -> str:
    parts = [f"{' or '.join(c['could_be']) or c['code']} ({c['confidence']}{_of(tuple(c['ranks']))})" for c in causes]
    return "; ".join(parts[:3]) or NOTHING


def confusion(played: list[Played]) -> Iterator[str]:
    """Yield the confusion table: established by rows, named first by columns."""
    pairs = Counter((each.code or HEALTHY, each.named) for each in played)
    columns = sorted({named for _, named in pairs})
    yield f"| established | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for code in sorted({code for code, _ in pairs}):
        yield f"| {code} | {' | '.join(str(pairs[code, named] or '') for named in columns)} |"


def summary(played: list[Played]) -> str:
    """Return the counts in one sentence."""
    failed = [each for each in played if each.code]
    healthy = [each for each in played if not each.code]
    return (
        f"{len(failed)} failures: {sum(e.is_right for e in failed)} have the established cause first, "
        f"{sum(e.is_among_three for e in failed)} among the first three, {sum(e.is_wrong for e in failed)} another; "
        f"{len(healthy)} healthy jobs: {sum(bool(e.causes) for e in healthy)} with a cause."
    )


def main() -> int:
    """Play all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, metavar="PATH", help="replace the tables of this page")
    parser.add_argument("--without-torch", action="store_true", help="leave torch's analyser out")
    options = parser.parse_args()
    folders = sorted(path.parent for path in options.folder.glob("*/case.json"))
    played = [play(folder, not options.without_torch) for folder in folders]
    text = "\n".join([summary(played), "", *confusion(played), "", *table(played), ""])
    print(text)
    if options.write:
        before, mark, _ = options.write.read_text().partition("<!-- scripts/confusion.py -->\n")
        options.write.write_text(f"{before}{mark}\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
