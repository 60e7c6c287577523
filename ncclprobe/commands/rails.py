"""``ncclprobe rails``: do the RDMA ports of all nodes reach each other, with the very choices that NCCL makes?"""

import argparse
import json
import os
from collections.abc import Sequence

from ncclprobe import signals
from ncclprobe.commands import arguments, hosts, nodes
from ncclprobe.engine import diagnose
from ncclprobe.facts.launcher import Flags, detect
from ncclprobe.host import SAMPLE, Question
from ncclprobe.model.errors import UsageError
from ncclprobe.model.snapshot import Job

_TIMEOUT_S = 180.0
_LAST_RESORT_S = 5.0  # after --timeout, for a process that cannot end by itself
_SELECT = (
    *("rail.*", "launch.*", "path.*", "pci.link/nic-*", "ib.losses", "ib.perm", "ib.rate", "ib.roce", "ib.state"),
    *("sync.env", "sync.identity", "sync.limits", "sync.network", "sync.nodes"),
)
"""The checks if --select is not given: the rails, the nodes that joined, and likely reasons for a failure. No GPU is
used.
"""


def main(argv: Sequence[str]) -> int:
    """Meet the other nodes, try rails, judge, report; returns the exit code. Raises UsageError."""
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
        raise UsageError(f"{wrong.subject} {wrong.message}; {wrong.remedy}" if wrong else nodes.ALONE)
    signals.end_by(options.timeout + _LAST_RESORT_S)
    question = diagnose.ask(arguments.judging(options), ("rails", *argv), Job())
    said: dict[Question, str] = {(SAMPLE, "flags"): json.dumps(flags.given)} if flags.given else {}
    words = ("rails", *nodes.rail_words(options))
    return nodes.meet(options, launch, question, said, words, nodes.rails_wanted(options))


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "rails",
        "Try the RDMA ports of all nodes with each other, with the choices that NCCL makes on each end: device, GID, "
        "P_Key, service level, path MTU, queue pairs. Each rail is tried alone and together with the others of its "
        "node, both ways, and the data is compared. Start it on several nodes, by a launcher or with --nnodes.",
    )
    parser.set_defaults(captures=(), local=False, backend="nccl", mixed_gpus=False, expect_gpus=None, expect_nics=None)
    add = parser.add_argument
    nodes.rail_options(parser)
    nodes.options(parser)
    arguments.selection(parser)
    arguments.fleet_store(parser)
    hosts.options(parser)
    add("--timeout", type=arguments.positive, default=_TIMEOUT_S, metavar="SECONDS",
        help="End after so many seconds (default: %(default)g).")  # fmt: skip
    arguments.arguments(parser)
    return parser
