"""``ncclprobe bandwidth --nproc N``: start N ranks on this node with torch's elastic launcher, and end with their code.

Two processes: the caller, which imports no torch, keeps the deadline and passes signals on; and torch's agent, this
module run as a program in a session of its own. The agent only knows the first rank that failed, so the exit code is
read from rank 0's report. Its workers lead sessions of their own, so ending the agent's group does not end them.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclprobe.errors import UsageError
from ncclprobe.model import ExitCode
from ncclprobe.report import json as as_json

VERDICT_FILE = "NCCLPROBE_VERDICT_FILE"
"""Set for ranks that this module starts: where rank 0 leaves its report, beside what the user asked for."""
STARTED = "NCCLPROBE_STARTED"
"""Set likewise: when the user's clock started to run (time.time()), for --timeout is theirs and not the ranks'."""

_IMPORTED = "imported"  # the agent makes this file beside the report once it has torch
_GRACE_S = 2.0  # after --timeout: the ranks report at the deadline and need a moment to leave
_FAREWELL_S = 4.0  # after rank 0's report: the others leave within two
_GOODBYE_S = 12.0  # after a signal: time for rank 0 to learn who is missing and to report


def launch(nproc: int, argv: Sequence[str], timeout_s: float) -> int:
    """Run ``ncclprobe bandwidth`` with `argv` on `nproc` ranks and return the exit code of the whole."""
    with tempfile.TemporaryDirectory(prefix="ncclprobe-") as folder:
        report = Path(folder, "report.json")
        own = {VERDICT_FILE: str(report), STARTED: repr(time.time())}
        agent = subprocess.Popen(
            [sys.executable, "-m", "ncclprobe.session.selflaunch", str(nproc), *argv],
            env=os.environ | own | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(_GOODBYE_S))},
            start_new_session=True,
        )
        return _verdict(_attend(agent, report, time.monotonic() + timeout_s + _GRACE_S), report)


def _verdict(code: int | None, report: Path) -> int:
    """The agent's `code` (None: it had to be ended), or rank 0's where that is worse."""
    if report.exists() and code != ExitCode.BROKEN:
        return max(code or ExitCode.OK, as_json.read(str(report)).exit_code)
    if code is not None:
        return code
    if report.with_name(_IMPORTED).exists():
        return ExitCode.FAIL
    sys.stderr.write(
        "ncclprobe: --timeout ran out in import torch, before any rank was started; a cold network file system takes "
        "minutes: start again, or raise --timeout\n"
    )
    return ExitCode.INCONCLUSIVE


def _attend(agent: "subprocess.Popen[bytes]", report: Path, deadline: float) -> int | None:
    """Wait for `agent`, passing on what is asked of us; nothing that it started survives. None: it did not end.

    Rank 0 writes `report` when all is over. A rank that is stopped then keeps the agent for another half minute.
    """
    asked: list[int] = []
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    started: dict[int, object] = {}
    over = False
    try:
        while agent.poll() is None and time.monotonic() < deadline:
            _remember(agent.pid, started)
            if report.exists() and not over:
                over = True
                deadline = min(deadline, time.monotonic() + _FAREWELL_S)
            if asked:
                agent.send_signal(asked.pop())
                deadline = min(deadline, time.monotonic() + _GOODBYE_S)
            time.sleep(0.1)
        if agent.poll() is None:
            return None
        return ExitCode.FAIL if agent.returncode < 0 else agent.returncode
    finally:
        _end(agent, started)
        for number, handler in before.items():
            signal.signal(number, handler)


def _remember(pid: int, started: dict[int, object]) -> None:
    """Note the agent's descendants while they can be told from others': once it ends, they are nobody's children."""
    import psutil

    try:
        started.update({process.pid: process for process in psutil.Process(pid).children(recursive=True)})
    except psutil.NoSuchProcess:
        return


def _end(agent: "subprocess.Popen[bytes]", started: dict[int, object]) -> None:
    import psutil

    if agent.poll() is None:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
    for process in started.values():
        assert isinstance(process, psutil.Process)
        try:
            process.kill()  # psutil compares start times, so a reused number is not hit
        except psutil.NoSuchProcess:
            continue


def agent(nproc: int, argv: Sequence[str]) -> int:
    """Torch's agent with `nproc` workers; returns 0, or what rank 0, else the worst of the others, ended with."""
    import logging
    import uuid

    try:
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise UsageError(f"torch cannot be imported ({error}); install ncclprobe[torch]") from None
    if VERDICT_FILE in os.environ:
        Path(os.environ[VERDICT_FILE]).with_name(_IMPORTED).touch()
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # rank 0's report says what happened
    logging.disable(logging.ERROR)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "ncclprobe.bandwidth", *argv)
    except ChildFailedError as error:
        return worst({rank: failure.exitcode for rank, failure in error.failures.items()})
    except SignalException:
        return ExitCode.INCONCLUSIVE  # the caller ended it; rank 0's report says with which rows
    return ExitCode.OK


def worst(codes: Mapping[int, int]) -> int:
    """Rank 0's code, else the worst of the others'; a rank that a signal ended counts as lost.

    SIGTERM is what the agent itself sends to the others once one has ended.
    """
    own = {rank: ExitCode.FAIL if code < 0 else code for rank, code in codes.items() if code != -signal.SIGTERM}
    return own.get(0, max(own.values(), default=ExitCode.FAIL))


if __name__ == "__main__":
    try:
        sys.exit(agent(int(sys.argv[1]), sys.argv[2:]))
    except UsageError as error:
        sys.stderr.write(f"ncclprobe: {error}\n")
        sys.exit(ExitCode.USAGE)
