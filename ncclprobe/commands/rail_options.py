"""What a command line says of rails, and what a run needs for them."""

import argparse
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from ncclprobe import bounds

if TYPE_CHECKING:
    from ncclprobe.cluster.rails.lead import RailsWanted
    from ncclprobe.cluster.rails.plan import Budget
    from ncclprobe.model.rails import RailOutcome, RailPort, RailTest

ALONE = (
    "rails are tried between nodes, and this is one alone: start it once on each node, by srun, mpirun or torchrun, or "
    "with --nnodes N --node-rank R --master-addr HOST --master-port PORT"
)
_OPTIONS = ("force", "cross_rails", "full_bisection")


def options(parser: argparse.ArgumentParser) -> None:
    """Add how rails are tried."""
    add = parser.add_argument
    add("--force", action="store_true", help="Try rails also where a port carries other traffic.")
    add("--cross-rails", action="store_true",
        help="Also try rails of different numbers with each other (default: where NCCL would).")  # fmt: skip
    add("--full-bisection", action="store_true",
        help="Let all nodes send at once (default: 16 pairs of nodes at a time).")  # fmt: skip


def given(options: argparse.Namespace) -> Sequence[str]:
    """Return those of these options that were given, as every node must be given them."""
    return [f"--{name.replace('_', '-')}" for name in _OPTIONS if getattr(options, name)]


def budget(options: argparse.Namespace) -> "Budget":
    """Return how much a run may ask of the fabric."""
    from ncclprobe.cluster.rails.plan import Budget

    return Budget(at_once=bounds.HOST_NAMES) if options.full_bisection else Budget()


def wanted(options: argparse.Namespace) -> "RailsWanted":
    """Return what is to be tried, and with what: the verbs library, or fi_pingpong, in children; and this machine's
    counters.
    """
    from ncclprobe.cluster.rails.lead import RailsWanted
    from ncclprobe.host.live import LiveHost
    from ncclprobe.probes.ping_pong import run_ping_pong
    from ncclprobe.probes.verbs.pair import run_rail

    def run(port: "RailPort", test: "RailTest", **how: Any) -> "Awaitable[RailOutcome]":
        return (run_ping_pong if port.transport == "efa" else run_rail)(port, test, **how)

    host = LiveHost((), lambda _name: False)
    return RailsWanted(run, host, budget(options), options.force, options.cross_rails)
