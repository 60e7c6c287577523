"""``--copies`` with one rank: it needs no other, so there is no store to meet at and nobody to wait for."""

import socket
import threading
from collections.abc import Sequence
from typing import Any

from ncclprobe.errors import ProbeError, UsageError
from ncclprobe.host import Host
from ncclprobe.session.measure.progress import Progress
from ncclprobe.session.measure.recorder import Ledger, Party
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import Backend, Seat
from ncclprobe.session.watchdog.watchdog import Ending, leave


class Nobody:
    """The exchange of a run that has one rank."""

    def collect(self, value: Any) -> Sequence[Any]:
        """What it says itself."""
        return [value]

    def share(self, value: Any) -> Any:
        """Likewise."""
        return value


def copies(options: Options, kind: str, host: Host, backend: Backend) -> int:
    """Measure this node's copies, report, and return the exit code. Raises UsageError without torch.

    At --timeout the report says so, and the process leaves at once: a copy of a wedged driver never returns.
    """
    name = socket.gethostname()
    progress = Progress(wanted=not options.quiet)
    ledger = Ledger(options, Party(kind, 1, (name,), backend, nnodes=1), (), progress)
    ledger.met = True
    ledger.save()

    def give_up() -> None:
        leave(ledger.close(Ending(why="--timeout ran out while memory was copied")))

    timer = threading.Timer(options.timeout_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        _measure(ledger, Seat(kind, 0, 1, 0, 1, 1, "127.0.0.1", 0), host, progress, backend)
    except (ProbeError, RuntimeError) as error:
        return ledger.close(Ending(why=str(error).strip().partition("\n")[0]))
    finally:
        timer.cancel()
    return ledger.close()


def _measure(ledger: Ledger, seat: Seat, host: Host, progress: Progress, backend: Backend) -> None:
    progress.show("import torch")
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"torch cannot be imported ({error}); install ncclprobe[torch]") from None
    if backend == "nccl" and not torch.cuda.is_available():
        raise UsageError("--copies needs a GPU that torch can use, or --backend gloo for the host's own memory")
    from ncclprobe.session.measure.copies import Copies

    device = "cuda:0" if backend == "nccl" else "cpu"
    measuring = Copies(seat, host, Nobody(), progress.show, ledger.party.hosts[0], device)
    ledger.asides.copies = measuring.play()
    if measuring.remark:
        ledger.remark(measuring.remark)
