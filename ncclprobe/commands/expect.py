"""``ncclprobe expect``: what this machine, a captured or a named one should reach, and why."""

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.commands import arguments
from ncclprobe.engine.expect_target import machine_of, request
from ncclprobe.expect import composed, rendering, topology_text
from ncclprobe.expect.recognise import ExpectationContext
from ncclprobe.expect.system import NcclVersion
from ncclprobe.expect.table import Line, TableRequest, lines
from ncclprobe.expect.tables import machines
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import merge
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.layout import wrap
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.ops import OPS, sizes
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import parse_size, plural, printable
from ncclprobe.model.values import replace
from ncclprobe.nccl.parameters import NEWEST, table
from ncclprobe.nccl_tests import rows

_ABOUT = """\
Show what collectives should reach on this machine, on the machine of a capture, or on a machine type. For each size
it shows the time, the bus bandwidth, the threshold, the bottleneck, and the source of the number. SIZE is in
bytes, or a number with
a binary K, M or G."""

_FIRST, _LAST = (2, 3), NEWEST[:2]
"""NCCL releases whose rules are known here."""
ALGORITHMS = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvlstree": "NVLSTree"}


def main(argv: Sequence[str]) -> int:
    """Print the expectation. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.list:
        print(rendering.listing([*machines.table().values()]))
        return ExitCode.OK
    _refuse_alone(options)
    algorithm = ALGORITHMS.get(options.algo or "", "")
    here = _machine(options, algorithm)
    if options.judge:
        _refuse_unused(options)
        from ncclprobe.commands import judged_log

        return judged_log.judge(options, here, algorithm)
    if isinstance(here.system, Absent):
        if options.json:
            nothing = {"machine": None, "system": None, "rows": list[Any]()}
            arguments.write_json(options, "expectation", {**nothing, "why": here.system.why})
        if options.json == "-":
            return ExitCode.INCONCLUSIVE
        reason = f"no expectation is known for GPUs here: {printable(here.system.why)}."
        gloo = "`ncclprobe bandwidth` judges gloo between such nodes by the streams that it measures between them."
        print("\n".join((*wrap("", reason, 80), *wrap("", gloo, 80))))
        return ExitCode.INCONCLUSIVE
    steps = sizes(parse_size(options.begin), parse_size(options.end), options.factor)
    ops = arguments.operations(options.op or "all_reduce")
    asked = request(here, options.nodes, _gpus_per_node(options), ops, steps, options.nccl)
    found = lines(asked)
    if options.json:
        arguments.write_json(options, "expectation", rendering.as_json(asked, here, found))
    if options.html:
        _draw(asked, here, found, options.html)
    if "-" not in (options.json, options.html):
        print(printable_lines(rendering.as_text(asked, here, found)))
    return ExitCode.OK if found else ExitCode.INCONCLUSIVE


def _draw(asked: TableRequest, here: ExpectationContext, found: Sequence[Line], path: str) -> None:
    """Write the HTML page of the expectation."""
    from ncclprobe.report import delivery
    from ncclprobe.report.html import page  # imports that text does without

    title = f"Expected of {asked.machine.name if asked.machine else here.why}, {plural(asked.shape.ranks, 'rank')}"
    delivery.put(page.expected(printable(title), rendering.notes(asked), _curve(asked, found)), path)


def _curve(asked: TableRequest, found: Sequence[Line]) -> list[Measurement]:
    """Return rows that are exactly as fast as expected."""
    version, shape = ".".join(map(str, asked.version)), asked.shape
    made = []
    for line in found:
        setup = rows.Setup(line.op, shape.ranks, shape.nodes, "queued", 1, version)
        time_us = line.time_us(shape.ranks)
        row = rows.measurement(rows.Line(line.nbytes, line.nbytes, "int8", "", "out", time_us, 0, 0, None), setup)
        made += [replace(row, expectation=line.expectation)] if row else []
    return made


def _refuse_alone(options: argparse.Namespace) -> None:
    """Refuse an option whose file is not given. Raises UsageError."""
    for name in ("gpu", "nic_rate"):
        if getattr(options, name) and not options.topology:
            raise UsageError(
                f"--{name.replace('_', '-')} does not apply without --topology FILE; "
                f"describe the machine with --machine '8 x H200, 8 NICs x 400 Gb/s ib' instead"
            )
    for name in () if options.judge else ("ranks", "domains", "require_judged", "quiet"):
        if getattr(options, name):
            more = ": --nodes and --gpus-per-node set the ranks" if name in ("ranks", "domains") else ""
            raise UsageError(f"--{name.replace('_', '-')} does not apply without --judge FILE{more}")


def _machine(options: argparse.Namespace, algorithm: str) -> ExpectationContext:
    """Return the requested machine, with the settings of its job. Raises UsageError."""
    if options.file and not options.machine and not options.file.exists():
        raise UsageError(f"{options.file}: no such capture; give a machine type with --machine NAME")
    here = _machine_of_topology(options) if options.topology else machine_of(options.machine, options.file)
    if options.machine or options.topology:  # it has no settings of its own: those of this shell are meant
        here = replace(here, settings=merge(Environment({n: os.environ[n] for n in table() if n in os.environ}), ()))
    if algorithm:
        set_ = {name: entry.value for name, entry in here.settings.effective.items() if entry.value is not None}
        here = replace(here, settings=merge(Environment({**set_, "NCCL_ALGO": algorithm}), ()))
    return here


def _machine_of_topology(options: argparse.Namespace) -> ExpectationContext:
    """Return the machine of --topology. Raises UsageError."""
    path = options.topology
    for other, given in (("FILE", options.file), ("--machine", options.machine)):
        if given:
            raise UsageError(f"--topology {path} and {other} {str(given)[:40]!r}: give one")
    text = files.read(path, limit=bounds.TOPO_BYTES)
    several = options.nodes not in (None, 1)
    system = topology_text.system_in(text, str(path), options.gpu, options.nic_rate, network=several)
    return ExpectationContext(system, None, f"the topology of {path}, unchanged")


def printable_lines(text: str) -> str:
    """Escape, line by line, what a capture may have smuggled into `text`."""
    return "\n".join(map(printable, text.split("\n")))


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("expect", _ABOUT)
    add, count = parser.add_argument, arguments.count
    add("file", nargs="?", type=Path, metavar="FILE", help="Use the machine of this capture (default: this machine).")
    add("--machine", metavar="NAME",
        help=f"Use a machine of this type (--list shows all), or one described by its parts: "
        f"'{composed.EXAMPLE}'.")  # fmt: skip
    add("--topology", type=Path, metavar="FILE",
        help="Use the machine of this topology: XML of NCCL_TOPO_FILE or NCCL_TOPO_DUMP_FILE, or the output of "
        "`nvidia-smi topo -m`.")  # fmt: skip
    add("--gpu", metavar="NAME", help="Set the GPU model for --topology, if the file does not name it.")
    add("--nic-rate", type=_gbps, metavar="GBPS",
        help="Set the rate of each NIC of --topology in Gb/s, if the file does not give it.")  # fmt: skip
    add("--nodes", type=count, metavar="N", help="Use N identical nodes (default: 1).")
    add(
        "--gpus-per-node",
        metavar="N[,N]",
        help="Use N GPUs of each node; a list gives the number for each node (default: all).",
    )
    _add_result_options(add, count)
    add("-b", dest="begin", default="8", metavar="SIZE", help="Set the smallest message (default: %(default)s).")
    add("-e", dest="end", default="8G", metavar="SIZE", help="Set the largest message (default: %(default)s).")
    add("-f", dest="factor", type=count, default=4, metavar="N",
        help="Make each size N times the previous one (default: %(default)s).")  # fmt: skip
    add("--algo", choices=tuple(ALGORITHMS), help="Assume that the job sets NCCL_ALGO to this.")
    add("--nccl", type=_version, metavar="VERSION", help="Use this NCCL release, such as 2.28.9.")
    arguments.json_option(parser)
    add("--html", type=arguments.destination, metavar="PATH",
        help="Also write a page to PATH, with the expected curve and the rows of --judge.")  # fmt: skip
    add("-q", "--quiet", action="store_true", help="With --judge, print only one line.")
    add("--list", action="store_true", help="List the machine types.")
    return parser


def _add_result_options(add: Callable[..., object], count: Callable[[str], int]) -> None:
    """Add the options for results that were measured elsewhere."""
    add("--judge", type=Path, metavar="FILE",
        help="Judge the rows of this JSON report, or of JSON or text output of nccl-tests, by what the machine should "
        "reach; without --machine, by the usual machine with the GPUs that the file names.")  # fmt: skip
    add("--require-judged", action="store_true", help="Exit with 3 if --judge could judge no row.")
    add("--op", metavar="NAME[,NAME]",
        help=f"Show these operations: all, or some of {', '.join(OPS)} (default: all_reduce); with --judge, name "
        "the operation of the rows.")  # fmt: skip
    add("--ranks", type=count, metavar="N", help="Set the number of ranks in the rows of --judge.")
    add("--domains", type=count, metavar="N",
        help="Set the number of NVLink domains in the nodes of --judge (default: one, if they are racks).")  # fmt: skip


def _gbps(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text) or not float(text):
        raise arguments.invalid(text, "a rate in Gb/s above zero, such as 200")
    return float(text)


def _version(text: str) -> NcclVersion:
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+].{0,32})?", text)
    if not found:
        raise arguments.invalid(text, "an NCCL release, such as 2.28.9")
    version = int(found[1]), int(found[2]), int(found[3] or 0)
    if not _FIRST <= version[:2] <= _LAST:
        least, most = (".".join(map(str, each)) for each in (_FIRST, _LAST))
        raise argparse.ArgumentTypeError(f"{text[:40]}: unknown release; give one from {least} to {most}")
    return version


_NOT_FOR_RESULTS = {"begin": "-b", "end": "-e", "factor": "-f", "gpus_per_node": "--gpus-per-node"}


def _refuse_unused(options: argparse.Namespace) -> None:
    """Refuse an option that selects rows: the file has its own. Raises UsageError."""
    usual = _parser().parse_args([])
    given = [flag for name, flag in _NOT_FOR_RESULTS.items() if getattr(options, name) != getattr(usual, name)]
    if given:
        raise UsageError(f"--judge {options.judge}: {given[0]} does not apply: the file names what was measured")


def _gpus_per_node(options: argparse.Namespace) -> tuple[int, ...]:
    """Return how many GPUs of each node take part; empty for all. Raises UsageError."""
    text = options.gpus_per_node
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,3}(,\d{1,3}){0,4095}", text):
        raise UsageError(f"--gpus-per-node {text[:40]!r}: give a number, or one for each node such as 8,8,4")
    return tuple(map(int, text.split(",")))
