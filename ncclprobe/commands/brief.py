"""What ``--help`` of a command with many options shows: those that a newcomer needs, by task, and an example each.

``--help-all`` shows every option. A command that is not here has few, and shows all of them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ncclprobe.model.values import Struct

MOST = 14
"""Options that --help shows at most, itself included."""


class Brief(Struct, frozen=True):
    """The options of each task, and commands to copy."""

    tasks: Mapping[str, str]
    examples: tuple[str, ...]


_REPORT = "--json --html --quiet --verbose"

BRIEF: Mapping[str, Brief] = MappingProxyType(
    {
        "doctor": Brief(
            {
                "what to look at": "--backend --local --path --expect-gpus",
                "several nodes by hand": "--nnodes --node-rank --master-addr",
                "how it is judged": "--ignore",
                "the report": _REPORT,
            },
            (
                "ncclprobe doctor",
                "srun --ntasks-per-node=1 ncclprobe doctor --path /data --path /ckpt:checkpoint",
                "ncclprobe doctor node7.jsonl",
            ),
        ),
        "accept": Brief(
            {
                "what to measure": "--level --backend --ladder",
                "how it is judged": "--expect-gpus --expect --require-judged",
                "the run": "--timeout --keep",
                "the report": _REPORT,
            },
            (
                "ncclprobe accept",
                "ncclprobe accept --level quick",
                "srun --ntasks-per-node=8 ncclprobe accept --json accept.json --ladder",
            ),
        ),
        "bandwidth": Brief(
            {
                "what to measure": "--op -b -e -n --backend",
                "how it is judged": "--expect --require-judged",
                "the run": "--nproc --timeout",
                "the report": "--json --quiet --verbose",
            },
            (
                "ncclprobe bandwidth",
                "torchrun --nproc-per-node=gpu -m ncclprobe.bandwidth --op all_gather -e 1G",
                "ncclprobe bandwidth --nproc 8 --expect bands.toml --json report.json",
            ),
        ),
        "pairs": Brief(
            {
                "what to measure": "-b -e --rounds --backend",
                "how it is judged": "--require-judged",
                "the run": "--nproc --timeout --keep",
                "the report": _REPORT,
            },
            ("srun --ntasks-per-node=8 ncclprobe pairs", "torchrun --nproc-per-node=gpu -m ncclprobe.pairs"),
        ),
        "copies": Brief(
            {
                "what to measure": "--backend --nproc",
                "how it is judged": "--require-judged",
                "the run": "--timeout --keep",
                "the report": _REPORT,
            },
            ("ncclprobe copies", "ncclprobe copies --nproc 8 --json copies.json"),
        ),
        "affinity": Brief(
            {"what to measure": "-e --backend --nproc", "the run": "--timeout --keep", "the report": _REPORT},
            ("torchrun --nproc-per-node=gpu -m ncclprobe.affinity",),
        ),
        "workload": Brief(
            {
                "what to measure": "--params --layers --tokens --groups --backend",
                "the run": "--nproc --timeout --keep",
                "the report": _REPORT,
            },
            (
                "torchrun --nproc-per-node=gpu -m ncclprobe.workload ddp,zero3 --params 7B",
                "srun --ntasks-per-node=8 ncclprobe workload --groups tp=8,dp=2",
            ),
        ),
        "rails": Brief(
            {
                "what to try": "--plan --cross-rails --force",
                "several nodes by hand": "--nnodes --node-rank --master-addr",
                "the run": "--timeout --keep",
                "the report": _REPORT,
            },
            ("srun --ntasks-per-node=1 ncclprobe rails", "ncclprobe rails --plan --nnodes 64"),
        ),
        "expect": Brief(
            {
                "which machine": "--machine --nodes --gpus-per-node --list",
                "which numbers": "--op -b -e --judge",
                "what if": "--nics --tcp --algo",
                "the report": "--json",
            },
            (
                "ncclprobe expect",
                "ncclprobe expect --machine a3-megagpu-8g --nodes 16 --op all_reduce",
                "ncclprobe expect node7.jsonl --op all_gather,all_to_all -b 1M -e 8G",
                "ncclprobe expect --machine dgx-h100 --nodes 4 --nics 7",
                "ncclprobe expect --machine '8 x L40S, 2 sockets, no P2P'",
                "ncclprobe expect --judge all_reduce.log --machine dgx-h100 --nodes 4",
            ),
        ),
        "explain": Brief(
            {
                "what counts": "--exit-code --ignore",
                "names and addresses": "--redact --redact-key",
                "the report": "--json --html --markdown --quiet --verbose",
            },
            (
                "ncclprobe explain slurm-4711.out",
                "ncclprobe explain logs/ kernel.log --redact",
                "ncclprobe explain NCCL_IB_TIMEOUT",
            ),
        ),
        "attach": Brief(
            {
                "what to look at": "--pid --stacks --prepare",
                "what counts": "--exit-code",
                "the run": "--keep --timeout",
                "the report": _REPORT,
            },
            (
                "ncclprobe attach",
                "srun --jobid=4711 --overlap --ntasks-per-node=1 ncclprobe attach --keep hang",
                "ncclprobe explain hang",
            ),
        ),
    }
)
