"""``ncclprobe expect``: what this machine, a captured or a named one should reach, why, and what a fault would cost."""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclprobe.commands import arguments
from ncclprobe.engine.outlook import machine_of
from ncclprobe.expect import composed, rendering, topology_text
from ncclprobe.expect.pinned import pinned
from ncclprobe.expect.predict import LATEST
from ncclprobe.expect.recognise import ExpectationContext
from ncclprobe.expect.system import NcclVersion, Shape
from ncclprobe.expect.table import MOST_SIZES, TableRequest, WhatIf, lines, shape_of
from ncclprobe.expect.tables import machines
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import merge
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.ops import OPS, sizes
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import parse_size, printable
from ncclprobe.model.values import replace
from ncclprobe.nccl.parameters import NEWEST, table

_ABOUT = """\
Show what collectives should reach on this machine, on the machine of a capture, or on a machine type: for each size the
time, the bus bandwidth, the threshold, what limits it, and the source of the number. SIZE is in bytes, or a number with
a binary K, M or G."""

_FIRST, _LAST = (2, 3), NEWEST[:2]
"""Releases of NCCL whose rules are known here."""
ALGORITHMS = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvlstree": "NVLSTree"}


def main(argv: Sequence[str]) -> int:
    """Print what is expected. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.list:
        print(rendering.listing([*machines.table().values()]))
        return ExitCode.OK
    if options.gpu and not options.topology:
        raise UsageError(
            f"--gpu {options.gpu[:40]!r} does not apply without --topology FILE; --machine '8 x H200' says more"
        )
    if options.file and not options.machine and not options.file.exists():
        raise UsageError(f"{options.file}: there is no such capture; a machine type is given by --machine NAME")
    here = _shown(options) if options.topology else machine_of(options.machine, options.file)
    if options.machine or options.topology:  # it has no settings of its own: those of this shell are meant
        here = replace(here, settings=merge(Environment({n: os.environ[n] for n in table() if n in os.environ}), ()))
    if options.judge:
        _refuse_unused(options)
        from ncclprobe.commands import judged_log

        return judged_log.judge(options, here, _change(options))
    if wrong := [flag for flag in ("ranks", "domains") if getattr(options, flag)]:
        raise UsageError(f"--{wrong[0]} does not apply without --judge FILE: --nodes and --gpus-per-node say the ranks")
    if unused := [flag for flag in ("require_judged", "quiet") if getattr(options, flag)]:
        raise UsageError(f"--{unused[0].replace('_', '-')} does not apply without --judge FILE")
    if isinstance(here.system, Absent):
        if options.json:
            nothing = {"machine": None, "system": None, "rows": list[Any]()}
            arguments.write_json(options, "expectation", {**nothing, "why": here.system.why})
        if options.json == "-":
            return ExitCode.INCONCLUSIVE
        print(f"nothing is expected of GPUs here: {printable(here.system.why)}")
        print("gloo between such nodes is judged by streams measured between them: `ncclprobe bandwidth` judges it")
        return ExitCode.INCONCLUSIVE
    asked = _asked(options, here)
    found = lines(asked)
    if options.json:
        arguments.write_json(options, "expectation", rendering.as_json(asked, here, found))
    if options.json != "-":
        print(printable_lines(rendering.as_text(asked, here, found)))
    return ExitCode.OK if found else ExitCode.INCONCLUSIVE


def _shown(options: argparse.Namespace) -> ExpectationContext:
    """The machine of --topology; a NIC's rate that the file lacks is a fact, no what-if. Raises UsageError."""
    path = options.topology
    for other, given in (("FILE", options.file), ("--machine", options.machine)):
        if given:
            raise UsageError(f"--topology {path} and {other} {str(given)[:40]!r}: give one")
    text = files.read(path, limit=bounds.TOPO_BYTES)
    several = options.nodes not in (None, 1)
    system = topology_text.system_in(text, str(path), options.gpu, options.nic_rate, network=several)
    if options.nic_rate == system.nic_gbps:
        options.nic_rate = None
    return ExpectationContext(system, None, f"the topology of {path}, unchanged")


def printable_lines(text: str) -> str:
    """`text` with what a capture may have smuggled into it escaped, line by line."""
    return "\n".join(map(printable, text.split("\n")))


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("expect", _ABOUT)
    add, count = parser.add_argument, arguments.count
    add("file", nargs="?", type=Path, metavar="FILE", help="Take the machine of this capture (default: this one).")
    add("--machine", metavar="NAME",
        help=f"Take a machine of this type (--list shows all), or one of parts: '{composed.EXAMPLE}'.")  # fmt: skip
    add("--topology", type=Path, metavar="FILE",
        help="Take the machine of this topology: XML of NCCL_TOPO_FILE or NCCL_TOPO_DUMP_FILE, or the output of "
        "`nvidia-smi topo -m`.")  # fmt: skip
    add("--gpu", metavar="NAME", help="Say which GPUs --topology shows, if the file does not.")
    add("--nodes", type=count, metavar="N", help="Take N equal nodes (default: 1).")
    add("--gpus-per-node", metavar="N[,N]", help="Use N GPUs of each node, or of each as listed (default: all).")
    add("--judge", type=Path, metavar="FILE",
        help="Judge the rows of this JSON report, or of JSON or text output of nccl-tests, by what the machine should "
        "reach; without --machine by what is usual of the GPUs that the file names.")  # fmt: skip
    add("--require-judged", action="store_true", help="Exit with 3 if --judge could judge no row.")
    add("--op", metavar="NAME[,NAME]",
        help=f"Show these operations: all, or some of {', '.join(OPS)} (default: all_reduce); with --judge, say which "
        "one the rows are of.")  # fmt: skip
    add("--ranks", type=count, metavar="N", help="Say how many ranks the rows of --judge are of.")
    add("--domains", type=count, metavar="N",
        help="Say in how many NVLink domains the nodes of --judge are (default: one, if they are racks).")  # fmt: skip
    add("-b", dest="begin", default="8", metavar="SIZE", help="Set the smallest message (default: %(default)s).")
    add("-e", dest="end", default="8G", metavar="SIZE", help="Set the largest message (default: %(default)s).")
    add("-f", dest="factor", type=count, default=4, metavar="N",
        help="Make each size N times the previous one (default: %(default)s).")  # fmt: skip
    _what_if(parser)
    arguments.json_option(parser)
    add("-q", "--quiet", action="store_true", help="Print one line only, with --judge.")
    add("--list", action="store_true", help="List the machine types.")
    return parser


def _what_if(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what if", "Show the same numbers with a change, and what it costs.")
    add = group.add_argument
    add("--nic-rate", type=_gbps, metavar="GBPS", help="Run each NIC at so many Gb/s.")
    add("--nics", type=arguments.count, metavar="N", help="Use N NICs per node.")
    add("--no-gdr", action="store_true", help="Use no GPUDirect RDMA.")
    add("--no-nvls", action="store_true", help="Use no NVLink SHARP (the reduction in NVSwitches).")
    add("--tcp", action="store_true", help="Use TCP sockets instead of RDMA.")
    add("--algo", choices=tuple(ALGORITHMS), help="Set NCCL_ALGO.")
    add("--nccl", type=_version, metavar="VERSION", help="Use another release of NCCL, such as 2.28.9.")


def _gbps(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of Gb/s above zero, such as 200")
    return float(text)


def _version(text: str) -> NcclVersion:
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+].{0,32})?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not a release of NCCL, such as 2.28.9")
    version = int(found[1]), int(found[2]), int(found[3] or 0)
    if not _FIRST <= version[:2] <= _LAST:
        least, most = (".".join(map(str, each)) for each in (_FIRST, _LAST))
        raise argparse.ArgumentTypeError(f"{text[:40]}: no such release is known; give one from {least} to {most}")
    return version


_NOT_FOR_RESULTS = {"begin": "-b", "end": "-e", "factor": "-f", "gpus_per_node": "--gpus-per-node"}


def _refuse_unused(options: argparse.Namespace) -> None:
    """Raise UsageError for an option that selects rows: the file has its own."""
    usual = _parser().parse_args([])
    given = [flag for name, flag in _NOT_FOR_RESULTS.items() if getattr(options, name) != getattr(usual, name)]
    if given:
        raise UsageError(f"--judge {options.judge}: {given[0]} does not apply: the file names what was measured")


def _change(options: argparse.Namespace) -> WhatIf:
    return WhatIf(
        nic_gbps=options.nic_rate,
        nics=options.nics,
        no_gdr=options.no_gdr,
        no_nvls=options.no_nvls,
        tcp=options.tcp,
        algorithm=ALGORITHMS.get(options.algo),
    )


def _asked(options: argparse.Namespace, here: ExpectationContext) -> TableRequest:
    assert not isinstance(here.system, Absent)
    steps = sizes(parse_size(options.begin), parse_size(options.end), options.factor)
    if len(steps) > MOST_SIZES:
        raise UsageError(f"-b {options.begin} -e {options.end} -f {options.factor}: more than {MOST_SIZES} sizes")
    asked = TableRequest(
        system=here.system,
        shape=_shape(options, here.system.gpus),
        ops=arguments.operations(options.op or "all_reduce"),
        sizes=steps,
        machine=here.machine,
        version=here.nccl or LATEST,
        change=_change(options),
        settings=pinned(here.settings, here.nccl or LATEST),
    )
    return replace(asked, changed_version=options.nccl) if options.nccl else asked


def _shape(options: argparse.Namespace, gpus: int) -> Shape:
    """The ranks. Raises UsageError for a list that does not fit the number of nodes, or for GPUs that are not there."""
    text = options.gpus_per_node or str(gpus)
    if not re.fullmatch(r"\d{1,3}(,\d{1,3}){0,4095}", text):
        raise UsageError(f"--gpus-per-node {text[:40]!r}: give a number, or one for each node such as 8,8,4")
    return shape_of(tuple(map(int, text.split(","))), options.nodes, gpus)
