"""Lists, sizes, plans, statistics and values of `model`: `texts-model.txt` keeps what is made of each."""

import importlib
import json
import os
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any
from unittest import mock

import ncclprobe
from ncclprobe.model import errors, findings, hostlist, layout, ops, outcomes, rails, stats, training, units
from ncclprobe.model import report as reports
from ncclprobe.model.bounds import HOST_NAMES
from ncclprobe.model.findings import Certainty, Evidence, Finding, NamedFinding, Severity, Status, Verdict
from ncclprobe.model.measurement import Band, Conditions, Expectation, TimeStats, operation
from ncclprobe.model.pair_results import Localisation
from ncclprobe.model.snapshot import Absent, unlearned, vote
from ncclprobe.model.traffic import LadderRow
from ncclprobe.model.training import Grid, Model
from ncclprobe.model.values import Same, Struct, replace
from tests.report import samples

_KIND = ("NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error (run with "
         "NCCL_DEBUG=INFO for details), NCCL version 2.30.7")  # fmt: skip
_WHY = "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity"
_SHORTAGE = (  # torch 2.12
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.19 GiB is free."
    " {}Of the allocated memory 36.00 GiB is allocated by PyTorch, and 1 GiB is reserved"
)
_OTHER, _OWN = "Process 4711 has 40.00 GiB memory in use. ", "this process has 37.90 GiB memory in use. "
_TEXT = " ".join(f"w{number:0{number % 7 + 1}}" for number in range(40))
_ALONE = LadderRow(rung="rank", ranks=1, groups=16, slowest=(3,), step_bytes=64 << 20, step_us=2000.0,
                   samples_us=(2000.0,) * 9, nbytes=1 << 30)  # fmt: skip
_NODE = replace(_ALONE, rung="node", ranks=8, groups=2, step_us=2200.0, samples_us=(2200.0,) * 9, busbw_GBps=472.0,
                best_GBps=475.0)  # fmt: skip
_JOB = replace(_NODE, rung="job", ranks=16, groups=1, step_us=2500.0, samples_us=(2500.0,) * 9, busbw_GBps=370.0)
_RISING = tuple(2000.0 * (1 + turn) for turn in range(9))  # the machine slows down while it is measured
_KNOWN = Expectation(480.0, 440.0, "GB/s", "published", "w", "s")
_AT = Conditions(8, 1, "float32", "sum", "in", "queued", "nccl")


def _width(said: str | None, terminal: int | None) -> int:
    size = {"return_value": os.terminal_size((terminal, 24))} if terminal is not None else {"side_effect": OSError}
    given = {"COLUMNS": said} if said is not None else {}
    with mock.patch.dict(os.environ, given, clear=True), mock.patch("os.get_terminal_size", **size):
        return layout.columns(66)


def _first_and_last(text: str) -> object:
    names = hostlist.expand(text)
    return names if len(names) < 12 else (len(names), names[0], names[-1])


def _statistics(values: Sequence[float]) -> object:
    ranks = [stats.percentile(values, percent) for percent in (0, 50, 95, 99, 100)]
    told = stats.median(values), stats.median_low(values), stats.median_interval(values), stats.precision(values)
    return stats.summary([value / 1e6 for value in values]), ranks, told


def _operation(name: str) -> object:
    op = ops.OPS.get(name) or ops.HYPERCUBE
    flags = [flag for flag in ("divided", "sends_all", "receives_all", "reduces", "rooted", "direct")
             if getattr(op, flag)]  # fmt: skip
    shapes = [op.shape(*row) for row in ((1003, 3, 4), (1000, 3, 8), (8, 8, 4), (1 << 20, 1, 2))]
    return op.places, flags, op.bus_factor(4), op.counted(4), shapes, op.bandwidth(shapes[0], 3, 1e-3)


def _climbed(*rows: LadderRow, bands: Sequence[Band] = ()) -> object:
    return [(each.rung, each.speedup, each.efficiency, each.interval, each.expectation and each.expectation.value,
             each.status) for each in training.climbed(rows, bands)]  # fmt: skip


def _judged(busbw: float | None, best: float | None, changes: Mapping[str, Any] = {}, **row: Any) -> object:
    of_the_job = Band("all_reduce", 1, 1 << 40, Expectation(900.0, 800.0, "GB/s", "user", "w", "s"))
    band = Band("all_reduce", 1 << 30, 1 << 30, replace(_KNOWN, **changes), _AT)
    return _climbed(_ALONE, replace(_NODE, busbw_GBps=busbw, best_GBps=best, **row), _JOB, bands=[of_the_job, band])


def _weight(*given: Any) -> object:
    severity, blame, action, level = given
    return findings.weight(Finding(severity, "x", "y", blame, action, Certainty(level, "")))


def _placed(**changes: Any) -> float:
    return reports.placed(samples.report(**changes), "FILE")


def _digests(*texts: str) -> object:
    return [reports.digest(text)[:12] for text in texts]


_ROOMS = ("model", "facts", "fleet", "nccl", "nccl_tests", "expect", "localise", "logs")


def _unless_given(module: str) -> list[str]:
    """Return the fields of a module's values that may be left out, and what they are then."""
    found = []
    for name, of in vars(importlib.import_module(module)).items():
        if isinstance(of, type) and of.__module__ == module and issubclass(of, Struct):
            fields, values = of.__struct_fields__, of.__struct_defaults__
            found.append(f"{name} {dict(zip(fields[len(fields) - len(values) :], values, strict=True))}")
    return [re.sub(r" at 0x\w+", "", each) for each in found if not each.endswith("{}")]


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    large = {"b": "x" * 70_000, "a": [{"d": 1, "c": 2}, "y" * 70_000, 3]}
    return {
        "lists of hosts": (_first_and_last, ["", "gpu1", "n[3],n1", "n[8-11]", "gpu[007-010,20],cpu1",
            "rack[1-2]n[0-1]", "a-b[1-2]-ib,c", "n[0]", "n[5-5]", "gpu[", "gpu[1-2", "[]", "n[]", ",gpu1", "gpu1,",
            "n[2-1]", "n[a-b]", "a,,b", "a b", "n[1,x" + "y" * 90 + "]", f"n[0-{HOST_NAMES - 1}]", f"n[0-{HOST_NAMES}]",
            f"n[0-{HOST_NAMES - 1}],m", "n[0-999]r[0-999]", "n[1-2]m[07]", "n[" + ",".join(["0-60000"] * 50_000) + "]",
            "n[9" + "9" * 9 + "]", f"m,n[0-{HOST_NAMES - 2}]", "n[3-,1]"]),
        "folded hosts": (lambda *names: hostlist.fold(names), [(), ("n3", "n1", "n0", "n2", "n7"),
            ("n08", "n09", "n10"), ("n5", "n5"), ("login", "n1"), ("n0", "n00", "n1"), ("n0", "n1"), ("7", "8"),
            ("n01", "n1"), ("n1-2", "n1-3"), ("a[1]", "n1234567890")]),
        "numbers and ranks": (lambda *numbers: (hostlist.fold_numbers(numbers), hostlist.fold_ranks(numbers)), [
            (), (5,), (2, 0, 1, 1, 5), (1, 0), (3, 1)]),
        "sizes": (units.parse_size, [" 8 ", "1T", "1.5G", "0.5K", "7.1234567", "2gib", "4MB", "4mb", "4 M", "x", "",
            "1KK", "-1", "1" * 15, "1" * 16]),
        "sizes in words": (units.size, [*(0, 0.5, 1023, 1023.9, 1024, -1023, -2048), 1 << 20, 1 << 30, 1 << 40,
                                        1 << 52]),
        "numbers in words": (lambda number: (units.three_digits(number), units.microseconds(number),
            units.plural(int(number), "node"), units.certain(number)), [(number,) for number in (99.94, 99.95, -99.94,
            -99.96, 0.9994, 0.9995, 0.1349, 1.23456789e-3, 0.0, 1.0, 2048.0)]),
        "text that is printed": (units.printable, ["a\x1b[1m\n", "a b", "\u202e"]),
        "what ranks do": (units.agreeing, [(f"{verb} x", number) for verb in ("keeps a CPU busy but reads and writes",
            "no longer has", "has", "is", "was", "tries", "waits", "isx", "works") for number in (1, 2)] + [("is", 0)]),
        "whole words": (units.whole_words, [
            ("ab cd ef", 8), ("ab cd ef", 7), ("ab cd ef", 5), ("abcdef", 3), ("ab,cd", 4), ("ab(cd", 4), ("ab ", 2)]),
        "width of a terminal": (_width, [
            ("90", 70), ("0", 70), ("x", 70), ("", 70), (None, 70), (None, 0), ("", None), ("0", None)]),
        "wrapped": (lambda *given: layout.wrap(*given[:3], *given[3:4]), [("lead: ", "", 20),
            ("lead: ", "a  b\nc (exit 4)", 20), ("l ", "aa bb cc", 5, 1), ("", "a-b-c-d", 5), ("l ", "\a", 9)]),
        "wrapped at a width": (lambda width: (layout.wrap("lead: ", _TEXT, width), layout.wrap("lead: ", _TEXT, width,
            hang=2), layout.shorten(_TEXT, width), layout.wrap("", f"x{'1' * 50} y2", width, whole=True),
            layout.labelled("FAIL", _TEXT, width, "{1}:{0}".format)), [12, 20, 41, 80, len(_TEXT), len(_TEXT) - 1]),
        "tables": (lambda rows, right: layout.table(rows, right=right), [([], False), ([("a", "bbb"), ("ccc", "d")],
            False), ([("a", "bbb"), ("ccc", "d")], True), ([("a\nb", "1"), ("c", " ")], False)]),
        "the first of some": (layout.first_of, [(["a", "b", "c"], 2), (["a", "b", "c"], 3), (["a", "b", "c"], 2, "; "),
            (["a", "b", "c"], 2, ","), ([], 2)]),
        "statistics": (_statistics, [[4.0], [3.0, 1.0], [5.0, 1.0, 4.0, 2.0], [1.0, 2.0, 3.0, 4.0, 10.0],
            [14.0, 10.0, 50.0, 12.0, 18.0, 16.0], [98.0, 99.0, 100.0, 101.0, 102.0],
            [float(n) for n in range(9, 0, -1)], [0.0] * 5, [float(n) for n in range(40)]]),
        "operations": (_operation, [(name,) for name in (*ops.OPS, "hypercube")]),
        "types and reductions": (lambda: (list(ops.DTYPES.items()), ops.REDOPS, ops.DIRECT_OPS), [()]),
        "sizes of a sweep": (ops.sizes, [(8, 64, 2), (8, 100, 2), (5, 5, 2), (1, 100, 10), (0, 8, 2), (-8, 8, 2),
            (16, 8, 2), (8, 16, 1), (8, 16, 0)]),
        "usual sizes": (ops.default_sizes, [(8, 1 << 30), (9, 1 << 29), (64 << 10, 64 << 20)]),
        "groups of ranks": (lambda text: (str(grid := training.parse(text)), grid.ranks), ["tp=8, dp = 4", "dp=1",
            "pp=2", "tp=2,tp=4", "xp=2", "=2", "tp=0", "tp", "tp=-2", "", "tp=9999999,dp=9999999", "tp=12345678",
            "tp=\u0664", "tp=2=3", "tp=1,dp=1"]),
        "groups that fit": (training.fit, [(Grid(2, 2), 8), (Grid(3), 8), (Grid(2, 4), 8), (Grid(2, 2, 2), 12)]),
        "advice on groups": (lambda grid, hosts: training.advice(grid, hosts.split()), [(Grid(tp=4), "n0 n0 n1 n1"),
            (Grid(2, 2), "n0 n1 n0 n1"), (Grid(2, 2), "n0 n0 n1 n1"), (Grid(2, 2), "n0 n0 n1 n2"),
            (Grid(dp=4), "n0 n1 n0 n1"), (Grid(tp=3), "n0 n0 n1"), (Grid(2, 2), "n0 n0 n0 n1")]),
        "models": (lambda *given: ((model := Model(*given)).hidden, model.activation_bytes, model.layer_bytes), [
            (1000, 3), (1, 1, 4), (1_000_000, 2, 2, 100)]),
        "memory of a step": (lambda strategy: training.memory_bytes(strategy, Model(10**6, 3)), [(each,
            ) for each in training.STRATEGIES]),
        "rungs": (lambda hosts, pairs: [(rung.name, rung.groups, rung.of(2)) for rung in training.plan(hosts,
            pairs=pairs)], [*product(("aaaabbbb", "aaa", "aa", "abcd", "a", "abab", "aab"), (True, False))]),
        "what rungs reach": (_climbed, [(_ALONE, _NODE, _JOB), (_NODE, _JOB), (replace(_ALONE, samples_us=_RISING),
            replace(_NODE, samples_us=tuple(2 * each for each in _RISING))),
            *((_ALONE, replace(_NODE, samples_us=_RISING[:count])) for count in (0, 2, 4, 5, 6)),
            (_ALONE, replace(_NODE, samples_us=(0.0, -1.0, 4000.0)))]),
        "a node by its band": (lambda given: _judged(*given[:2], *given[2:3], **dict(given[3:])), [[472.0, 475.0],
            [440.0, 475.0], [439.9, 440.0], [439.9, 439.9], [300.0, 310.0], [300.0, 310.0, {"worst": "warn"}],
            [300.0, 310.0, {"worst": "unjudged"}], [300.0, 460.0], [None, None], [300.0, None], [None, 300.0],
            *([90.0, best, {"gross": 160.0, "worst": worst}] for best in (159.0, 160.0)
            for worst in ("warn", "fail", "unjudged")), *([300.0, 310.0, {}, change] for change in (("ranks", 4),
            ("rung", "pair"), ("nbytes", 1 << 29), ("nbytes", 1 << 31), ("groups", 3)))]),
        "unknown words": (lambda *given: str(errors.unknown(*given)), [("ib.stat", "check", ["ib.state", "ib.rate"]),
            ("aaaa", "check", ["aaab", "aaac", "aaad", "aaae"]), ("x", "check", ["a", "b"]), ("x", "check", ["a"],
            "`ls` lists all"), ("ib.stat", "check", ["ib.state"], "`ls` lists all"), ("--frob", "option", ["--from"]),
            ("--\x1b", "option", ["a"]), ("-\u00e9", "option", ["a"]), ("\u00e9", "x", ["a"]), ("q" * 90, "x", ["a"]),
            ("z", "x", ["a", "b"], "", ["b", "a", "c"]), ("ib.rates", "x", ["ib.rate", "ib.state"])]),
        "torch that is not there": (lambda error: str(errors.without_torch(error)), [
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            ModuleNotFoundError("No module", name="numpy"), ImportError("libcudart.so.12: cannot open", name="torch")]),
        "errors in one line": (lambda text: errors.reason(RuntimeError(text)), [
            f"{_KIND}\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{_WHY}",
            "a\nLast error:\n one \ntwo", f"{_KIND}\nncclSystemError: System call failed.\nLast error:\n\n",
            f"{_KIND}\nncclInternalError: x.\nLast error:",
            f"{_KIND}\nLast error:\nException raised from getNCCLComm at x.cpp:1 (most recent call first):",
            f"{_KIND}\nLast error:\nframe #0: x", "Connection closed by peer [10.0.0.1]:77\nmore", "  \n ", "x" * 5000,
            *(_SHORTAGE.format(each) for each in ("", _OTHER, _OWN, _OTHER + _OTHER + _OWN)), "Last error:\nall of it",
            f"{_KIND}\nncclUnhandledCudaError: x\nLast error:\nCuda failure 2 'out of memory'", " CUDA Out Of Memory ",
            "DefaultCPUAllocator: can't allocate memory", "a" + "\nb" * 60 + "\nLast error:\nfar", "x" * 4100 +
            "\nLast error:\ny", "GPU 1 has a total capacity of 9 GiB of which 1 GiB is free: out of memory",
            "rank 1: out of memory: 2 GiB", "out of memory. Tried to allocate 9 MiB."]),
        "how grave a loss is": (findings.severity_of, [0.5, 0.49, 0.1, 0.09, 0.0]),
        "what a finding implies": (_weight, [*product((Severity.FAIL, Severity.WARN),
            ("node", "link", "fabric", "image", "job", "unknown"), ("repair", "retest"), ("high", "medium", "low"))]),
        "evidence": (str, [Evidence("/a"), Evidence("/a", 3), Evidence("/a", 3, "b"), Evidence("/a", None, "b")]),
        "lines of findings": (lambda *given: ((found := findings.fail(*given[:2], **given[2])).line, found.seen,
            found.see_also), [("GPU3", "is lost", {}), ("GPU3", "GPU3 is lost",
            {"evidence": ["/a", "", Evidence("/b", 2)]}), ("GPU3", "GPU31 is lost", {"evidence": "/a",
            "related": (findings.Related("a.b", "x"), findings.Related("c", "y"))})]),
        "findings in short": (repr, [NamedFinding(Severity.FAIL, "GPU3", "m" * 90, check="a.b", node="n0"),
            NamedFinding(Severity.NOTE, "s", "m", check="c"), samples.SICK, samples.HEALTHY]),
        "nodes of findings": (lambda id, node, nodes: (findings.nodes_of(verdict := Verdict(id, node, Status.FAIL, ""),
            findings.warn("x", "y", nodes=nodes)), verdict.key),
            [*product(("a.b", "run.x"), ("n0", None), ((), ("n1",)))]),
        "the time of a report": (lambda more: _placed(**more), [
            {}, {"files": ("a",)}, {"started": "2026-11-21T00:00:00Z"}, {"started": "2026-11-21T00:00:00"},
            {"started": "2026-11-21T01:00:00+02:00"}, {"started": "noon\x1b" + "x" * 50},
            {"started": "0001-01-01T00:00:00+20:00"},
            {"taken": {"n0": "2026-11-22T00:00:00Z", "n1": "2026-11-20T00:00:00Z"}}]),
        "what was looked at": (lambda *verdicts: [*reports.looked_at(samples.report(*verdicts))], [tuple(Verdict(id,
            node, status, "") for id, node, status in product(("a.b", "run.x"), ("n0", "n1", None), Status))]),
        "times in words": (reports.when, [0.0, 1.8e9]),
        "digests": (_digests, [('{"a": 1, "b": [1]}', ' {"b":[1],"a":1}\n', '{"a": 1, "b": [2]}'), (json.dumps(large),
            json.dumps(dict(reversed(large.items())), indent=1)), (json.dumps("x" * 65534), json.dumps("x" * 65535)),
            ("[]", "7")]),
        "what remains": (lambda *given: ((rate := reports.AttainableRate(*given)).cost(), rate.cost("A"), rate.lost(),
            rate.lost("A"), rate.lost("B")), [(50.0, 370.0), (400.0, 370.0, 2, {"A": 185.0})]),
        "marks of an expectation": (lambda value, more: ((band := replace(_KNOWN, **more)).mark(value),
            band.below_gross(value), band.least(value)), [*product((159.9, 160.0, 500.0),
            ({}, {"gross": 160.0}, {"gross": 160.0, "worst": "warn"}))]),
        "what a band covers": (lambda more, changes: ((band := Band("all_reduce", 1 << 20, 1 << 30, _KNOWN,
            **more)).covers(replace(samples.ROW, **changes)), str(band)), [*(({}, each) for each in ({}, {
            "op": "reduce"}, *({"nbytes": size} for size in ((1 << 20) - 1, 1 << 20, 1 << 30, (1 << 30) + 1)))), *(({
            "like": _AT}, {"ranks": ranks}) for ranks in (8, 4))]),
        "bands": (lambda *given: str(Band("reduce", *given, _KNOWN)), [(8, 8), (8, (1 << 63) - 1), (8, 9)]),
        "reductions": (operation, [("reduce", None), ("reduce", "sum"), ("reduce", "max")]),
        "typical times": (lambda *given: TimeStats(*given).typical, [
            (1.0,), (1.0, 2.0), (1.0, 2.0, None, None, None, None, "mean")]),
        "usual rates": (lambda inside, both: ((found := Localisation(2, "x", level_GBps={"one way": 1.0,
            "both ways at once": 2.0, "inside a node, one way": 3.0})).usual_GBps(inside=inside, both=both),
            found.usual), [*product((True, False), (True, False))]),
        "completions": (lambda code: rails.COMPLETIONS[code], [(code,) for code in rails.COMPLETIONS]),
        "rates of a rail": (lambda *given: rails.RailStream(direction="out", nbytes=8, seconds=given[0],
            work_s=0.0).GBps, [(2.0,), (0.0,), (-1.0,), (1e-12,)]),
        "votes": (lambda said: ((found := vote({f"n{n}": each for n, each in enumerate(said)})).settled, found.outliers,
            found.agreed, found.groups), ["aaaa", "aaba", "aaabc", "aabc", "aabb", "ab", "ba", "a", ""]),
        "reasons together": (lambda *gaps: ((found := unlearned(Absent(*gap) for gap in gaps)).refused, str(found)), [
            (("a", "Denied"),), (("a", "Denied"), ("b", "Denied"), ("a", "Denied")), (("a", "Denied"),
                ("b", "Missing")), ()]),
        "one value": (lambda one, other: (Same(one) == Same(other), Same(one) == one), [(text := "ab", text), ([1],
            [1])]),
        "what values are unless given": (_unless_given, [(each.name,
            ) for room in _ROOMS for each in pkgutil.walk_packages(
            [f"{ncclprobe.__path__[0]}/{room}"], f"ncclprobe.{room}.") if _unless_given(each.name)]),
        "exit codes of commands": (lambda command: outcomes.epilog(command), [(command,
            ) for command in outcomes.OUTCOMES]),
    }  # fmt: skip
