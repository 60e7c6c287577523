"""Options and meeting of a command that inspects all nodes of its job and tests rails between them."""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ncclprobe.commands import arguments, hosts
from ncclprobe.engine import diagnose
from ncclprobe.facts.launcher import Flags, Launch, half_given
from ncclprobe.host import Question, files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report import delivery

if TYPE_CHECKING:
    from ncclprobe.cluster.rails.lead import RailsWanted
    from ncclprobe.cluster.rendezvous.token import Token
    from ncclprobe.report.progress import Waiting

WAIT_S = 30.0
_MOST_LINES = 8
_LONGEST_NAME = 253  # of DNS: RFC 1035, 2.3.4


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that several nodes run together."""
    add = parser.add_argument
    add("--nnodes", type=below(bounds.HOST_NAMES + 1), metavar="N",
        help="Check N nodes together (default: the launcher's).")  # fmt: skip
    add("--node-rank", type=arguments.whole, metavar="R",
        help="Set this node's rank, from 0 to N-1 (default: the launcher's).")  # fmt: skip
    add("--master-addr", type=_host, metavar="HOST", help="Reach node 0 at HOST (default: the launcher's).")
    add("--master-port", type=below(1 << 16), metavar="PORT",
        help="Reach node 0 at PORT, which the job will use (default: the launcher's).")  # fmt: skip
    add("--wait", type=arguments.positive, metavar="SECONDS",
        help=f"Wait this long for other nodes, at most {bounds.MEETING_SHARE:g} of --timeout (default: "
        f"{WAIT_S:g}; the maximum if node 0 prints the commands for the others).")  # fmt: skip
    add("--trust-network", action="store_true",
        help="Accept any process on this network as a node of the job, without authentication.")  # fmt: skip
    add("--exit", choices=("own", "whole"), default="own",
        help="Exit with the code for this node's part, or for the whole job (default: %(default)s).")  # fmt: skip
    add("--keep", type=Path, metavar="DIR", help="Write the captures of all nodes to this folder on node 0.")


def meet(
    options: argparse.Namespace,
    launch: Launch,
    question: diagnose.Question,
    given: Mapping[Question, str],
    words: Sequence[str],
    rails: "RailsWanted | None" = None,
    waiting: "Waiting | None" = None,
) -> int:
    """Gather all nodes of the job, judge them and deliver the report; return this process's exit code.

    `given`: options about this node, as samples. `words`: the command and those of its options that every node must
    get.
    `waiting` shows the current work. Raises UsageError.
    """
    from ncclprobe.cluster.gather import NodePlace, Times, assemble  # imports that a look at one node does without
    from ncclprobe.engine.captures import arrival_workers

    if options.keep and launch.node_rank == 0:
        make_folder(options.keep)
    token = _token(options, launch, words)
    lost, made = list[bool](), list[Report]()

    def judge(snapshots: Sequence[Snapshot], missing: Sequence[str], notes: Sequence[str]) -> Report:
        report = diagnose.diagnose(question, snapshots, missing=missing, notes=(*notes, *_note_short_wait(options)))
        if waiting:
            waiting.end()
        lost.append(delivery.deliver(report, arguments.output(options)) != report.exit_code)
        made.append(report)
        return report

    part = NodePlace(
        launch=launch,
        token=token,
        times=Times(question.clock, options.timeout, options.wait or (options.timeout if token.made else WAIT_S)),
        collectors=discover("ncclprobe.facts", Collector, diagnose.MACHINE),
        backend=options.backend,
        judge=judge,
        leaves=partial(diagnose.leaves, fail_on=options.fail_on, whole=options.exit == "whole"),
        given=given,
        keep=options.keep,
        attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        rails=rails,
        workers=partial(arrival_workers, question, launch.nnodes or 1),
    )
    code = assemble(replace(part, progress=waiting.say) if waiting else part)
    for report in made:  # the other nodes have left
        arguments.keep_in_fleet(options, report, question.clock + options.timeout - time.monotonic())
    return ExitCode.USAGE if any(lost) and code != ExitCode.FAIL else code


def _token(options: argparse.Namespace, launch: Launch, words: Sequence[str]) -> "Token":
    """Return the token that the nodes prove to each other; print what to type on the others if it was made here."""
    from ncclprobe.cluster.rendezvous.token import find_token

    token = find_token(os.environ, launch, trust=options.trust_network)
    if token.made:
        # Each other node's line holds the secret that it needs.
        nodes = launch.nnodes or 1
        shared = ["--master-addr", launch.master_addr or "", "--master-port", str(launch.master_port)]
        shared += ["--backend", options.backend, "--timeout", f"{options.timeout:g}"]
        shared += words[1:]
        print("ncclprobe: start the other nodes now, each with its own command:", file=sys.stderr)
        for rank in range(1, min(nodes, _MOST_LINES + 1)):
            line = ["ncclprobe", words[0], "--nnodes", str(nodes), "--node-rank", str(rank), *shared]
            print(f"  NCCLPROBE_TOKEN={token.made} {shlex.join(line)}", file=sys.stderr, flush=True)
        if nodes > _MOST_LINES + 1:
            print(f"  … and so on, up to --node-rank {nodes - 1}", file=sys.stderr, flush=True)
    return token


def has_peers(launch: Launch, options: argparse.Namespace) -> bool:
    """Return whether there are other ranks or nodes. A contradictory launch is judged by itself."""
    several = launch.several_nodes or (launch.local_world_size or 1) > 1
    return several and not options.local and not any(not problem.harmless for problem in launch.problems)


def make_folder(folder: Path) -> None:
    """Make the folder of --keep, before anything is inspected. Raises UsageError."""
    try:
        files.make_folder(folder, 0o700)
    except OSError as error:
        raise UsageError(f"--keep {folder}: {error.strerror}; name a folder that can be written") from None


def refuse_half_given(flags: Flags, options: argparse.Namespace) -> None:
    """Refuse options that mean too little, or something else than they seem to. Raises UsageError."""
    wrong = half_given(flags, os.environ)
    if wrong:
        raise UsageError(wrong)
    if flags.given and (options.captures or options.local):
        with_ = "captures" if options.captures else "--local"
        raise UsageError(f"--{next(iter(flags.given)).replace('_', '-')} and {with_} cannot be used together")


def named(options: argparse.Namespace, flags: Flags) -> hosts.Hosts | None:
    """Return the hosts of --hosts; None if not given. Raises UsageError for options that exclude them."""
    found = hosts.named(options)
    if not found.names:
        return None
    others = {"captures": options.captures, "--local": options.local}
    others |= {f"--{name.replace('_', '-')}": True for name in flags.given}
    for name, given in others.items():
        if given:
            raise UsageError(f"{name} and --hosts cannot be used together")
    return found


def over_ssh(where: hosts.Hosts, options: argparse.Namespace, line: Sequence[str], question: diagnose.Question) -> int:
    """Run the command `line` on the hosts, one process each; return the exit code. Raises UsageError."""
    from ncclprobe.commands import over_ssh  # imports that a look at one node does without

    asked = over_ssh.Started(where, line, options.timeout, arguments.output(options), options.keep)
    return over_ssh.run(asked, question)


def below(limit: int) -> Callable[[str], int]:
    """Return an argparse type for integers from 1 to below `limit`."""

    def number(text: str) -> int:
        value = arguments.count(text)
        if value >= limit:
            raise arguments.invalid(text, f"at most {limit - 1}")
        return value

    return number


def _note_short_wait(options: argparse.Namespace) -> list[str]:
    """Return a note if --wait is cut by --timeout."""
    most_s = bounds.MEETING_SHARE * options.timeout
    if not options.wait or options.wait <= most_s:
        return []
    share = f"{bounds.MEETING_SHARE:g} of --timeout {options.timeout:g}"
    return [f"--wait {options.wait:g}: other nodes are waited for {most_s:g} s at most, {share}"]


def _host(text: str) -> str:
    """Parse a host name or address, for argparse."""
    if text.startswith("[") and text.endswith("]"):
        raise argparse.ArgumentTypeError(f"{text}: give an IPv6 address without brackets")
    if not 0 < len(text) <= _LONGEST_NAME or not re.fullmatch(r"[\w.:%-]+", text):
        raise argparse.ArgumentTypeError(f"{ascii(text)[:80]} is not a host name or an address")
    return text
