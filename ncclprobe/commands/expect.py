"""``ncclprobe expect``: what this machine, a captured or a named one should reach, why, and what a fault would cost."""

import argparse
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

from ncclprobe.commands import arguments
from ncclprobe.errors import UsageError
from ncclprobe.expect import elsewhere, rendering
from ncclprobe.expect.context import Situation, situation
from ncclprobe.expect.pinned import pinned
from ncclprobe.expect.predict import LATEST
from ncclprobe.expect.system import NcclVersion, Shape
from ncclprobe.expect.table import TableRequest, lines
from ncclprobe.expect.tables import faq, links, machines
from ncclprobe.expect.tuner import dumps
from ncclprobe.expect.tuner.graphs import Graphs
from ncclprobe.expect.whatif import WhatIf, changed
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import merge
from ncclprobe.host import files
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import discover
from ncclprobe.model.rules import Collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.ops import OPS, sizes
from ncclprobe.units import parse_size, printable

_ABOUT = """\
What collectives should reach on this machine, on one that a capture describes, or on a type with a name: per size the
time, the bus bandwidth, the lowest that passes, what decides it, and where the number comes from."""

_MORE = """\
examples:
  ncclprobe expect --machine a3-megagpu-8g --nodes 16 --op all_reduce
  ncclprobe expect node7.jsonl --op all_gather,all_to_all -b 1M -e 8G
  ncclprobe expect --machine dgx-h100 --nodes 4 --nics 7         what a lost NIC costs; --nic-rate 200, --no-gdr, --tcp
  ncclprobe expect --machine dgx-h100 --algo ring                what NVLS gives, and what a ring shows of the links
  ncclprobe expect --machine dgx-a100 --gpus-per-node 8,8,4      nodes that differ

  ncclprobe expect --judge all_reduce.log --machine dgx-h100 --nodes 4        results from elsewhere, row by row

exit codes: 0 with numbers, 2 wrong usage, 3 where nothing can be expected of this machine (it says why)
with --judge: 4 where a row fails, 3 where one is too noisy to say, else 0, also where no row could be judged"""

ALGORITHMS = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvlstree": "NVLSTree"}
_MOST_NODES, _MOST_GPUS, _MOST_SIZES = 1 << 16, 128, 64
_LOOK_S = 30.0


def main(argv: Sequence[str]) -> int:
    """Print what is expected. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.list:
        print(rendering.listing(machines.table().values()))
        return ExitCode.OK
    if options.beliefs:
        told = faq.table()
        print(json.dumps(rendering.beliefs_json(told), indent=2) if options.json else rendering.beliefs_text(told))
        return ExitCode.OK
    if options.links:
        known = links.table().values()
        print(json.dumps(rendering.links_json(known), indent=2) if options.json else rendering.links_text(known))
        return ExitCode.OK
    here = _situation(options)
    if options.judge:
        return _judge(options, here)
    if isinstance(here.system, Absent):
        if options.json:
            print(json.dumps({"machine": None, "why": here.system.why, "system": None, "rows": []}, indent=2))
            return ExitCode.INCONCLUSIVE
        print(f"nothing is expected of GPUs here: {printable(here.system.why)}")
        print("gloo between such nodes is judged by streams measured between them: `ncclprobe bandwidth` says so")
        return ExitCode.INCONCLUSIVE
    asked = _asked(options, here)
    found = lines(asked)
    print(json.dumps(rendering.as_json(asked, here, found), indent=2) if options.json else
          printable_lines(rendering.as_text(asked, here, found)))  # fmt: skip
    return ExitCode.OK if found else ExitCode.INCONCLUSIVE


def printable_lines(text: str) -> str:
    """`text` with what a capture may have smuggled into it escaped, line by line."""
    return "\n".join(map(printable, text.split("\n")))


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("expect", _ABOUT, _MORE)
    add, count = parser.add_argument, arguments.count
    add("file", nargs="?", type=Path, metavar="FILE", help="a capture (default: this machine)")
    add("--machine", metavar="NAME", help="a machine type; --list names them")
    add("--nodes", type=count, metavar="N", help="how many, all alike (default: 1)")
    add("--gpus-per-node", metavar="N[,N]", help="how many GPUs take part; a list gives each node its own")
    add("--judge", type=Path, metavar="FILE",
        help="judge results from elsewhere by what this machine (or --machine, or the capture) should reach: a "
        "JSON report, or JSON or text output of nccl-tests; --algo and others of what if say how it was")  # fmt: skip
    add("--op", default="all_reduce", metavar="NAME[,NAME]", help=f"all, or of {', '.join(OPS)} (default: %(default)s)")
    add("-b", dest="begin", default="8", metavar="SIZE", help="smallest message (default: %(default)s)")
    add("-e", dest="end", default="8G", metavar="SIZE", help="largest message (default: %(default)s)")
    add("-f", dest="factor", type=int, default=4, metavar="N", help="factor between sizes (default: %(default)s)")
    add("--graphs", type=Path, metavar="FILE",
        help="what NCCL found itself, in place of its search here: a file of NCCL_GRAPH_DUMP_FILE, or a log of "
        "NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=GRAPH")  # fmt: skip
    _what_if(parser)
    add("--json", action="store_true", help="print JSON")
    add("--list", action="store_true", help="the machine types there are")
    add("--links", action="store_true", help="what PCIe, NVLink, InfiniBand and Ethernet links carry")
    add("--beliefs", action="store_true", help="what is commonly believed of these numbers, and what is true")
    return parser


def _what_if(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what if", "beside the machine as it is, and what that costs")
    add = group.add_argument
    add("--nic-rate", type=_gbps, metavar="GBPS", help="NICs at so many Gb/s each")
    add("--nics", type=arguments.count, metavar="N", help="so many NICs per node")
    add("--no-gdr", action="store_true", help="without GPUDirect RDMA")
    add("--no-nvls", action="store_true", help="without the switches' own reduction")
    add("--tcp", action="store_true", help="TCP sockets in place of RDMA")
    add("--algo", choices=tuple(ALGORITHMS), help="with NCCL_ALGO set so")
    add("--nccl", type=_version, metavar="VERSION", help="another release of NCCL, such as 2.28.9")


def _gbps(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text} is no number of Gb/s above zero, such as 200")
    return float(text)


def _version(text: str) -> NcclVersion:
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+.].{0,32})?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]} is no release of NCCL, such as 2.28.9")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def _situation(options: argparse.Namespace) -> Situation:
    """The machine that was named, captured, or is this one. Raises UsageError."""
    if options.machine and options.file:
        raise UsageError(f"{options.file} and --machine {options.machine[:40]!r}: give one")
    if options.machine:
        machine = machines.find(options.machine)
        return Situation(machine.system(), machine, f"{machine.title or machine.name}, as described")
    from ncclprobe.engine import observe

    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    if options.file:
        return situation(observe.replayed([options.file], collectors)[0].facts)
    return situation(observe.observed(collectors, time.monotonic() + _LOOK_S)[0].facts)


def _judge(options: argparse.Namespace, here: Situation) -> int:
    """Judge the rows of a file, print them, and return the verdict's exit code. Raises UsageError."""
    from ncclprobe.commands.run_files import read_runs

    _refuse_unused(options)
    if isinstance(here.system, Absent):
        raise UsageError(f"--judge {options.judge}: {here.system.why}: give --machine NAME, or a capture")
    change = _change(options)
    plain = replace(change, algorithm=None)
    path = str(options.judge)
    runs = read_runs(path)
    rows, failed = [row for run in runs for row in run.rows], "; ".join(filter(None, (run.failed for run in runs)))
    if not rows:
        raise UsageError(f"{path}: holds no row to judge")
    said = {**_set_in(path), **({"NCCL_ALGO": change.algorithm} if change.algorithm else {})}
    settings = pinned(merge(Environment(said), ()), options.nccl or here.nccl or LATEST)
    machine = None if plain else here.machine
    place = elsewhere.Setup(changed(here.system, plain), machine, options.nodes, settings, failed, options.nccl)
    found = elsewhere.judge(rows, place)
    told = elsewhere.as_json(found, place, [path]) if options.json else elsewhere.as_text(found, place, [path])
    print(json.dumps(told, indent=2) if options.json else printable_lines(str(told)))
    return elsewhere.exit_code(found, place)


_NOT_FOR_RESULTS = {"op": "--op", "begin": "-b", "end": "-e", "factor": "-f", "graphs": "--graphs",
                    "gpus_per_node": "--gpus-per-node"}  # fmt: skip


def _refuse_unused(options: argparse.Namespace) -> None:
    """Raises UsageError for an option that says which rows are wanted: the file says which there are."""
    usual = _parser().parse_args([])
    given = [flag for name, flag in _NOT_FOR_RESULTS.items() if getattr(options, name) != getattr(usual, name)]
    if given:
        raise UsageError(f"--judge {options.judge}: {given[0]} does not apply: the file says what was measured")


def _set_in(path: str) -> dict[str, str | None]:
    """Which of NCCL's variables a log or a report says were set. Raises UsageError."""
    from ncclprobe.commands.run_files import MAX_BYTES, schema_of
    from ncclprobe.report import json as as_json

    text = files.read(Path(path), limit=MAX_BYTES)
    if not text.lstrip().startswith("{"):
        return elsewhere.environment(text)
    if schema_of(text, path) == "nccl-tests":
        return {}
    nodes = as_json.read(path).environment.values()
    return {each.name: each.value for node in list(nodes)[:1] for each in node.settings}


def _change(options: argparse.Namespace) -> WhatIf:
    return WhatIf(
        nic_gbps=options.nic_rate,
        nics=options.nics,
        no_gdr=options.no_gdr,
        no_nvls=options.no_nvls,
        tcp=options.tcp,
        algorithm=ALGORITHMS.get(options.algo),
    )


def _asked(options: argparse.Namespace, here: Situation) -> TableRequest:
    assert not isinstance(here.system, Absent)
    steps = sizes(parse_size(options.begin), parse_size(options.end), options.factor)
    if len(steps) > _MOST_SIZES:
        raise UsageError(f"-b {options.begin} -e {options.end} -f {options.factor}: more than {_MOST_SIZES} sizes")
    asked = TableRequest(
        system=here.system,
        shape=_shape(options, here.system.gpus),
        ops=_ops(options.op),
        sizes=steps,
        machine=here.machine,
        version=here.nccl or LATEST,
        change=_change(options),
        graphs=_graphs(options.graphs),
        settings=pinned(here.settings, here.nccl or LATEST),
    )
    return replace(asked, changed_version=options.nccl) if options.nccl else asked


def _graphs(path: Path | None) -> Graphs | None:
    """What NCCL itself wrote of its search. Raises UsageError."""
    if path is None:
        return None
    text = files.read(path, limit=dumps.MOST_BYTES)
    return dumps.graph_dump(text, str(path)) if text.lstrip().startswith("<") else dumps.pattern_lines(text, str(path))


def _ops(text: str) -> tuple[str, ...]:
    names = tuple(OPS) if text == "all" else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in OPS:
            raise UsageError(f"--op {name[:40]!r} is unknown; choose from {', '.join(OPS)}")
    return names


def _shape(options: argparse.Namespace, gpus: int) -> Shape:
    """The ranks. Raises UsageError for a list that does not fit the number of nodes, or for GPUs that are not there."""
    text = options.gpus_per_node or str(gpus)
    if not re.fullmatch(r"\d{1,3}(,\d{1,3}){0,4095}", text):
        raise UsageError(f"--gpus-per-node {text[:40]!r}: give a number, or one for each node such as 8,8,4")
    counts = tuple(map(int, text.split(",")))
    nodes = options.nodes or len(counts)
    if nodes > _MOST_NODES:
        raise UsageError(f"--nodes {nodes}: at most {_MOST_NODES}")
    if len(counts) not in (1, nodes):
        raise UsageError(f"--gpus-per-node {text[:40]} speaks of {len(counts)} nodes and --nodes of {nodes}")
    for each in counts:
        if not 0 < each <= gpus:
            raise UsageError(f"--gpus-per-node {each}: this machine has {gpus} GPUs")
    shape = Shape(counts * nodes if len(counts) == 1 else counts)
    if shape.ranks < 2:
        raise UsageError("one GPU sends nothing to anybody: give --nodes 2 or more")
    return shape
