"""How fast the paths of --path are (--path-rates): a node against the others, all at once against one, all against a
baseline. Nothing is judged by a guess of what a file system should do.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ncclprobe.checks import FABRIC, NODE
from ncclprobe.checks.sync import named
from ncclprobe.facts.data_paths import DataPaths, DataRates, Look
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Certainty, Finding, fail, note, seen, warn
from ncclprobe.model.measurement import PathExpectation, PathRate, RateKind, shown, words_of
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.model.stats import median
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import replace

_SLOW, _DOUBTFUL = 0.4, 0.6
"""Shares of what the others reach: a node at a third of them is found whatever a fifth of noise adds; and who is
measured a second time before.
"""
_SHORT_S = 0.02
"""What took less is decided by a moment of the scheduler's, and names no node."""
_CROWDED = 0.6
"""All at once reach less than this share of what each reaches apart: the server, or the way to it, is shared out."""
_KEEP = "keep them: ncclprobe baseline REPORT.json -o site.json; later runs are judged by --baseline site.json"

_TIMES = {1: "once", 2: "twice"}
Key = tuple[str, RateKind]
N = TypeVar("N", bound=Hashable)


def _rates(*per_s: float, **changes: Any) -> Every[DataRates | Absent]:
    """Return nodes n0, n1 … that read so many MB/s, apart and with all others."""
    every = {}
    for number, each in enumerate(per_s):
        row = PathRate("/data", "read", nbytes=64 << 20, count=64, seconds=(64 << 20) / (1e6 * each), resident=0.0)
        row = replace(row, file_system="nfs4 fs1:/data", **changes)
        every[f"n{number}"] = DataRates((row, replace(row, together=True, at_once=len(per_s))))
    return Every(every)


_ASKED = Every({f"n{i}": DataPaths((), rate_bytes=64 << 20) for i in range(4)})


def _expecting(per_s: float, **changes: Any) -> Job:
    expected = PathExpectation("/data", "read", 1, False, "nfs4 fs1:/data", 1e6 * per_s, 0.2, 3, "site.json")
    return Job(path_rates=(replace(expected, **changes),))


@applies
def rated(paths: Every[DataPaths | Absent]) -> bool:
    """if --path-rates asks for rates."""
    return any(isinstance(each, DataPaths) and each.rate_bytes for _, each in paths.items())


@applies
def expecting(paths: Every[DataPaths | Absent], job: Job) -> bool:
    """if --path-rates asks for rates, and --baseline names some of earlier runs."""
    return bool(job.path_rates) and any(isinstance(each, DataPaths) and each.rate_bytes for _, each in paths.items())


@check(
    slows=True,
    bad=lambda: [(_rates(900, 300, 900, 900), _ASKED)],
    good=lambda: [(_rates(900, 700, 900, 900), _ASKED)],
    required=True,
    applies=rated,
)
def rate(rates: Every[DataRates | Absent], paths: Every[DataPaths]) -> Iterator[Finding]:
    """A node reads or writes far slower than the others at one path.

    Right: No node reads or writes far slower than the others.
    Why: every rank waits in each step for the slowest one, so that one node's slow mount is the pace of all; it looks
    like a slow network, and counters of the network show nothing.
    Fix: compare the mount's options (findmnt -T PATH: nconnect, rsize, wsize) and the route to the server with
    another node's; look at its link to the storage network (ethtool, ip -s link) and for other readers on that node.
    """
    known = {node: each.rows for node, each in rates.items() if isinstance(each, DataRates)}
    found = [*_failed(known), *_slow(known), *_numbers(known), *_said_of_memory(known), *_short(known)]
    yield from found
    _refuse_gaps(known, paths, judged=any(each.severity.value != "note" for each in found))


def _refuse_gaps(known: Mapping[str, Sequence[PathRate]], paths: Every[DataPaths], *, judged: bool) -> None:
    """Raise Unlearned where rates were asked for and not measured, and nothing was found either."""
    unable = {row.why for rows in known.values() for row in rows if row.why and not row.failed}
    measured = {(row.path, row.kind) for rows in known.values() for row in rows if not row.why}
    asked = {node: each.rows for node, each in paths.items() if each.rate_bytes}
    able = [node for node, rows in asked.items() if any(isinstance(row.look, Look) for row in rows)]
    if judged:
        return
    for together, words in {False: "apart from the others", True: "at once with all others"}.items():
        wanted = {_key(row) for rows in known.values() for row in rows if row.together == together}
        silent = [node for node in able if wanted - {_key(row) for row in known.get(node, ())}]
        if silent:
            raise Unlearned(f"not every rate was measured from {named(silent)} {words}")
    if len(able) > 1 and not any(row.together for rows in known.values() for row in rows):
        raise Unlearned("no time was left to measure from all nodes at once; give a longer --timeout")
    if not measured:
        raise Unlearned(f"no rate could be measured: {'; '.join(sorted(unable)[:3])}")


def best_apart(known: Mapping[N, Sequence[PathRate]]) -> dict[Key, dict[N, PathRate]]:
    """Return the better of each node's turns, by path and kind."""
    found: dict[Key, dict[N, PathRate]] = {}
    for node, rows in known.items():
        for row in rows:
            if not row.together and not row.why and row.seconds > 0:
                best = found.setdefault((row.path, row.kind), {})
                best[node] = max(best.get(node, row), row, key=lambda each: each.per_s)
    return found


def doubtful(known: Mapping[N, Sequence[PathRate]]) -> list[N]:
    """Return the nodes that look slower than the others, the slowest first: they are measured again."""
    worst: dict[N, float] = {}
    for rows in best_apart(known).values():
        for node, share in _shares(rows).items():
            worst[node] = min(worst.get(node, 1.0), share)
    return sorted((node for node, share in worst.items() if share < _DOUBTFUL), key=lambda node: worst[node])


def _shares(rows: Mapping[N, PathRate]) -> dict[N, float]:
    """Return what share of the others' median each node reaches; of those whose own memory did not answer.

    Nodes are compared where they have one file system. Of reads and opens one by one, the typical one must be slow too:
    a pause of the processor makes a few of them slow.
    """
    own = {node: row for node, row in rows.items() if not row.from_memory}
    found: dict[N, float] = {}
    for file_system in dict.fromkeys(row.file_system for row in own.values()):
        found |= _of_one({node: row for node, row in own.items() if row.file_system == file_system})
    return found


def _of_one(own: Mapping[N, PathRate]) -> dict[N, float]:
    """Return the shares of nodes on one file system."""
    if len(own) < 2:
        return {}
    shares = _against({node: row.per_s for node, row in own.items()})
    if all(row.typical_s for row in own.values()):
        singly = _against({node: 1 / (row.typical_s or 1.0) for node, row in own.items()})
        shares = {node: max(share, singly[node]) for node, share in shares.items()}
    return {node: share for node, share in shares.items() if own[node].seconds >= _SHORT_S}


def _against(rates: Mapping[N, float]) -> dict[N, float]:
    return {node: rate / median(each for other, each in rates.items() if other != node) for node, rate in rates.items()}


def _is_apart(row: PathRate, path: str, kind: RateKind) -> bool:
    return (*_key(row), row.why) == (path, kind, False, "")


def _key(row: PathRate) -> tuple[str, RateKind, bool]:
    return row.path, row.kind, row.together


def _slow(known: Mapping[str, Sequence[PathRate]]) -> Iterator[Finding]:
    for (path, kind), rows in best_apart(known).items():
        shares = {node: share for node, share in _shares(rows).items() if share < _SLOW}
        if not shares:
            continue
        theirs = {rows[node].file_system for node in shares}
        usual = median(row.per_s for node, row in rows.items() if node not in shares and row.file_system in theirs)
        slowest = min(shares, key=lambda node: shares[node])
        told = ", ".join(shown(kind, rows[node].per_s) for node in list(shares)[:3])
        message = f"{words_of(kind)} reach {told} on {named(shares)}; the others reach {shown(kind, usual)}"
        evidence = [_evidence(node, rows[node]) for node in list(shares)[:3]]
        turns = min(sum(_is_apart(row, path, kind) for row in known[node]) for node in shares)
        sure = Certainty("medium" if turns > 1 else "low", f"measured {_TIMES.get(turns, f'{turns} times')} on each")
        details = {**NODE, "confidence": sure, "loss": round(1 - shares[slowest], 3)}
        yield warn(path, message, nodes=tuple(shares), evidence=evidence, **details)


def _evidence(node: str, row: PathRate) -> Any:
    amount = size(row.nbytes) if row.kind in ("read", "write") else plural(row.count, _noun(row.kind))
    return seen(f"{words_of(row.kind)} of {row.path} on {node}", f"{amount} in {row.seconds:.3g} s")


def _noun(kind: RateKind) -> str:
    return "file" if kind == "open" else "read"


def _failed(known: Mapping[str, Sequence[PathRate]]) -> Iterator[Finding]:
    """Yield which nodes got an error, or no answer, while rates were measured."""
    bad: dict[str, dict[str, str]] = {}
    tried: dict[str, set[str]] = {}
    for node, rows in known.items():
        for row in rows:
            tried.setdefault(row.path, set()).add(node)
            if row.failed:
                bad.setdefault(row.path, {}).setdefault(node, row.why)
    for path, nodes in bad.items():
        for why, some in vote(nodes).groups.items():
            everywhere = len(tried[path]) == len(some) > 1
            message = f"could not be measured {'on every node' if everywhere else f'on {named(some)}'}: {why}"
            yield fail(path, message, nodes=some, evidence=why, **(FABRIC if everywhere else NODE))


def _numbers(known: Mapping[str, Sequence[PathRate]]) -> Iterator[Finding]:
    """Say what was measured at each path, a limit of the server with it: that is no node's fault."""
    apart, together = best_apart(known), _together(known)
    by_path: dict[str, list[str]] = {}
    for (path, kind), rows in apart.items():
        one = median(row.per_s for row in rows.values())
        every = together.get((path, kind), {})
        known_names = ", of names that may be in memory" if kind == "open" else ""
        said = f"{words_of(kind)} {shown(kind, one)}{known_names}{_of_all(kind, one, every)}"
        by_path.setdefault(path, []).append(said)
    for path, told in by_path.items():
        nodes = max(len(rows) for (each, _), rows in apart.items() if each == path)
        whose = f"of {plural(nodes, 'node')}, each apart, at the median" if nodes > 1 else "of one node"
        yield note(path, f"{whose}: {'; '.join(told)}", evidence="--path-rates", remedy=_KEEP)


def _of_all(kind: RateKind, one: float, rows: Mapping[str, PathRate]) -> str:
    """Return what all nodes at once reached, against `one` apart; empty: it was over too soon to tell."""
    if len(rows) < 2 or min(row.seconds for row in rows.values()) < _SHORT_S:
        return ""
    each, total = median(row.per_s for row in rows.values()), sum(row.per_s for row in rows.values())
    limit = ": the server, or the way to it, gives no more" if each < _CROWDED * one else ""
    return f" (all {len(rows)} at once: {shown(kind, each)} each, {shown(kind, total)} in all{limit})"


def _together(known: Mapping[str, Sequence[PathRate]]) -> dict[Key, dict[str, PathRate]]:
    found: dict[Key, dict[str, PathRate]] = {}
    for node, rows in known.items():
        for row in rows:
            if row.together and not row.why and row.seconds > 0:
                found.setdefault((row.path, row.kind), {})[node] = row
    return found


def _said_of_memory(known: Mapping[str, Sequence[PathRate]]) -> Iterator[Finding]:
    for (path, kind), rows in best_apart(known).items():
        held = {node: row.resident or 0.0 for node, row in rows.items() if row.from_memory}
        if held:
            share = f"{max(held.values()):.0%}"
            message = f"{words_of(kind)} came by {share} from the memory of {named(held)}, and are not compared"
            yield note(path, message, nodes=tuple(held), evidence="mincore(2) after POSIX_FADV_DONTNEED")
        untold = [node for node, row in rows.items() if row.resident is None and kind in ("read", "random")]
        if untold:
            why = "the kernel tells no one but a file's owner, or who may write it"
            message = f"{words_of(kind)} on {named(untold)} may have come from memory; {why}"
            yield note(path, message, evidence="mincore(2) after POSIX_FADV_DONTNEED")


def _short(known: Mapping[str, Sequence[PathRate]]) -> Iterator[Finding]:
    for (path, kind), rows in best_apart(known).items():
        if len(rows) > 1 and kind in ("read", "write") and all(row.seconds < _SHORT_S for row in rows.values()):
            most = max(row.seconds for row in rows.values())
            message = f"{words_of(kind)} took {1e3 * most:.2g} ms, too short to compare nodes by"
            yield note(path, message, remedy="give a larger --path-bytes, such as --path-bytes 1G")


@check(
    slows=True,
    bad=lambda: [(_rates(900, 600), _ASKED, _expecting(900))],
    good=lambda: [(_rates(900, 800), _ASKED, _expecting(900))],
    required=True,
    applies=expecting,
)
def baseline(rates: Every[DataRates | Absent], paths: Every[DataPaths], job: Job) -> Iterator[Finding]:
    """A path is slower than earlier runs of this site found it.

    Right: Every path is as fast as earlier runs of this site found it.
    Why: where all nodes are equally slow, none stands out among the others; only what the same path did before shows
    that its server, or the network to it, does less than it did.
    Fix: on all nodes: see the server's load and its disks, and who else reads and writes there; on one node: see
    data.rate. After a change that is meant to stay, write the baseline anew.
    """
    known = {node: each.rows for node, each in rates.items() if isinstance(each, DataRates)}
    judged = False
    for expected in job.path_rates:
        rows = _fitting(known, expected)
        judged = judged or bool(rows)
        low = {node: row for node, row in rows.items() if row.per_s < expected.threshold}
        if low:
            everywhere = len(low) == len(rows) > 1
            worst = min(low.values(), key=lambda row: row.per_s)
            where = "on every node" if everywhere else f"on {named(low)}"
            message = (
                f"{words_of(expected.kind)}{' of all at once' if expected.together else ''} reach "
                f"{shown(worst.kind, worst.per_s)} {where}; {expected}"
            )
            details = {**(FABRIC if everywhere else NODE), "loss": round(1 - worst.per_s / expected.per_s, 3)}
            yield warn(expected.path, message, nodes=tuple(low), evidence=expected.source, **details)
    if not judged:
        raise Unlearned("no rate that was measured is in the baseline: other paths, file systems or numbers of nodes")


def _fitting(known: Mapping[str, Sequence[PathRate]], expected: PathExpectation) -> dict[str, PathRate]:
    """Return what was measured as the baseline's was, by node; what came from a node's memory is none of it."""
    measured = _together(known) if expected.together else best_apart(known)
    return {
        node: row
        for node, row in measured.get((expected.path, expected.kind), {}).items()
        if (row.at_once, row.file_system) == (expected.at_once, expected.file_system) and not row.from_memory
    }
