"""Torch's elastic agent as a process of its own, started by a measuring command with ``--nproc``.

It starts N ranks and writes down how they ended. Nothing here looks at the host's name, which in a plain container
means nothing.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ncclprobe.errors import UsageError, without_torch
from ncclprobe.host import own_child
from ncclprobe.interrupt import ENDING
from ncclprobe.model.findings import ExitCode
from ncclprobe.session.ranks import rank_files

_LOOPBACK = "127.0.0.1"


def run(nproc: int, command: str, argv: Sequence[str], folder: Path) -> int:
    """Start `nproc` ranks of `command` with the options `argv`, wait for them, and write to `folder` how they ended.

    The exit code only says whether all ended well. Raises UsageError where torch cannot be imported.
    """
    import logging
    import uuid

    try:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise without_torch(error) from None
    (folder / rank_files.IMPORTED).touch()
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # rank 0's report says what happened
    logging.disable(logging.ERROR)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{_LOOPBACK}:0",
        local_addr=_LOOPBACK,
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),  # else a folder of torch's own, which it leaves behind
    )
    try:
        python, *rank = own_child.command("ncclprobe.start:program", command, *argv)
        elastic_launch(config, python)(*rank)
    except ChildFailedError as error:
        rank_files.write_exit_codes(folder, {rank: failure.exitcode for rank, failure in error.failures.items()})
        return ExitCode.FAIL
    except SignalException:
        return ExitCode.INCONCLUSIVE
    return ExitCode.OK


def main(nproc: int, command: str, argv: Sequence[str]) -> int:
    """Run the ranks."""
    folder = Path(os.environ[rank_files.FOLDER])
    os.environ[rank_files.AGENT] = str(os.getpid())

    def leave(number: int, _frame: object) -> NoReturn:
        os._exit(128 + number)  # importing torch is no place to raise in

    for number in ENDING:  # until torch's agent takes them over
        signal.signal(number, leave)
    return run(nproc, command, argv, folder)


def begin(nproc: str, command: str, *argv: str) -> NoReturn:
    """Be this process."""
    try:
        sys.exit(main(int(nproc), command, argv))
    except UsageError as error:
        sys.stderr.write(f"ncclprobe: {error}\n")
        sys.exit(ExitCode.USAGE)
