"""``ncclprobe rails``: do the RDMA ports of all nodes reach each other, with exactly NCCL's choices?"""

import argparse
import json
import os
from collections.abc import Sequence

from ncclprobe import signals
from ncclprobe.cluster.rails.lead import RailsWanted
from ncclprobe.cluster.rails.plan import Budget
from ncclprobe.commands import arguments, hosts, nodes
from ncclprobe.engine import diagnose
from ncclprobe.facts.launcher import Flags, detect
from ncclprobe.host import SAMPLE, Question
from ncclprobe.host.live import LiveHost
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.snapshot import Job
from ncclprobe.probes.verbs.pair import run_rail

ALONE = (
    "rails need several nodes, and this is only one: start it once on each node, by srun, mpirun or torchrun, or "
    "with --nnodes N --node-rank R --master-addr HOST --master-port PORT"
)
_TIMEOUT_S = 180.0
_LAST_RESORT_S = 5.0  # after --timeout, for a process that cannot end by itself
_HOW = ("force", "full_bisection")
_SELECT = (
    *("rail.*", "launch.*", "path.*", "pci.link/nic-*", "ib.losses", "ib.perm", "ib.rate", "ib.roce", "ib.state"),
    *("sync.env", "sync.identity", "sync.limits", "sync.network", "sync.nodes"),
)
"""The checks if --select is not given: the rails, the nodes that joined, and likely reasons for a failure. No GPU is
used.
"""


def main(argv: Sequence[str]) -> int:
    """Meet the other nodes, test rails, judge, report; return the exit code. Raises UsageError."""
    options = _parser().parse_args(argv)
    options.select = options.select or list(_SELECT)
    flags = Flags(options.nnodes, options.node_rank, options.master_addr, options.master_port)
    nodes.refuse_half_given(flags, options)
    if where := nodes.named(options, flags):
        question = diagnose.ask(arguments.judging(options), ("rails", *argv), Job())
        return nodes.over_ssh(where, options, ("rails", *argv), question)
    launch = detect(os.environ, flags)
    if not nodes.has_peers(launch, options) or not launch.several_nodes:
        wrong = next((problem for problem in launch.problems if not problem.harmless), None)
        raise UsageError(f"{wrong.subject} {wrong.message}; {wrong.remedy}" if wrong else ALONE)
    signals.end_by(options.timeout + _LAST_RESORT_S)
    question = diagnose.ask(arguments.judging(options), ("rails", *argv), Job())
    said: dict[Question, str] = {(SAMPLE, "flags"): json.dumps(flags.given)} if flags.given else {}
    words = ("rails", *[f"--{name.replace('_', '-')}" for name in _HOW if getattr(options, name)])
    return nodes.meet(options, launch, question, said, words, _wanted(options))


def _wanted(options: argparse.Namespace) -> RailsWanted:
    """Return the requested rail tests, with the verbs library in children, and this machine's counters."""
    budget = Budget(at_once=bounds.HOST_NAMES) if options.full_bisection else Budget()
    return RailsWanted(run_rail, LiveHost((), lambda _name: False), budget, options.force)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "rails",
        "Test the RDMA ports of all nodes against each other, with NCCL's own choices on each end: device, GID, P_Key, "
        "service level, path MTU, queue pairs. Each rail is tested by itself and together with the others on its "
        "node, in both directions, and the received data is verified. Start it on several nodes, by a launcher or with "
        "--nnodes.",
    )
    parser.set_defaults(captures=(), local=False, backend="nccl", mixed_gpus=False, expect_gpus=None, expect_nics=None)
    add = parser.add_argument
    add("--force", action="store_true", help="Test rails even if a port carries other traffic.")
    add("--full-bisection", action="store_true",
        help="Let all nodes send at once (default: 16 pairs of nodes at a time).")  # fmt: skip
    nodes.options(parser)
    arguments.selection(parser)
    arguments.fleet_store(parser)
    hosts.options(parser)
    add("--timeout", type=arguments.positive, default=_TIMEOUT_S, metavar="SECONDS",
        help="End after this many seconds (default: %(default)g).")  # fmt: skip
    arguments.arguments(parser)
    return parser
