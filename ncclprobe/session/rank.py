"""One rank's part in a run, from meeting the others to the verdict."""

import argparse
import json
import os
import re
import socket
import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from ncclprobe.errors import HostError, ProbeError, UsageError
from ncclprobe.expect.bands import Band
from ncclprobe.host import Host
from ncclprobe.session import selflaunch
from ncclprobe.session.ledger import Ledger, Party
from ncclprobe.session.progress import Progress
from ncclprobe.session.seat import Backend, Devices, Seat, choose_backend, device_index
from ncclprobe.session.store import Exchange, connect, key
from ncclprobe.session.watch import Limits, Watch, leave

_SLACK_S = 30.0  # torch's own deadlines come this much after ours, so that ours names the rank


def devices(host: Host) -> Devices:
    """The NVIDIA devices of this node as /dev shows them, without asking the driver."""
    try:
        names = json.loads(host.ask("list", "/dev"))
    except HostError:
        return Devices(0)
    return Devices(sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names))


class Rank:
    """This process in a run: `run` is all of it."""

    def __init__(
        self,
        options: argparse.Namespace,
        argv: Sequence[str],
        seat: Seat,
        host: Host,
        expected: Sequence[Band],
        backend: Backend,
    ) -> None:
        self._options, self._seat, self._host = options, seat, host
        self._hostname = socket.gethostname()
        progress = Progress(wanted=seat.rank == 0 and not options.quiet)
        party = Party(seat.kind, seat.ranks, (self._hostname,), backend, nnodes=seat.nnodes)
        self._ledger = Ledger(options, argv, party, expected, progress)
        spent = time.time() - float(os.environ.get(selflaunch.STARTED, time.time()))
        limits = Limits(time.monotonic() + options.timeout - spent, options.phase_timeout)
        self._watch = Watch(seat, self._hostname, limits, self._ledger.close, progress.show)

    def run(self) -> NoReturn:
        """Measure with the others and leave with rank 0's exit code. Raises UsageError, then on every rank."""
        if self._seat.rank == 0:
            self._ledger.save()  # a path that cannot be written is found out now
        self._watch.start()
        try:
            code = self._measure()
        except (ProbeError, RuntimeError) as error:  # torch raises RuntimeError for a peer that is gone
            self._watch.failed(str(error).strip().partition("\n")[0])
        finally:
            self._watch.stop()
        leave(code)

    def _measure(self) -> int:
        torch = self._torch()
        self._watch.beat(f"reach the store at {self._seat.address}:{self._seat.port}")
        self._store = connect(self._seat, serve=self._seat.serves, timeout_s=self._options.phase_timeout)
        self._watch.attach(connect(self._seat, serve=False, timeout_s=self._options.phase_timeout))
        self._watch.beat("wait for the other ranks")
        exchange = Exchange(self._store, self._seat, self._options.phase_timeout + _SLACK_S)
        terms = self._settle(exchange, torch)
        self._open_group(terms["backend"])
        self._sweep(exchange, terms)
        self._watch.beat("close the process group")
        torch.distributed.destroy_process_group()
        self._watch.beat("verdict")
        code = exchange.share(self._ledger.close() if self._seat.rank == 0 else None)
        exchange.collect(None)  # rank 0 may serve the store, so it leaves last
        return int(code)

    def _torch(self) -> Any:
        self._watch.beat("import torch")
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # torch would abort rank 0 before it has reported
        if not self._options.verbose:
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its stack traces would bury the report
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*NumPy", category=UserWarning)  # torch without numpy
            try:
                import torch.distributed
            except ImportError as error:
                raise UsageError(f"torch cannot be imported ({error}); install ncclprobe[torch]") from None
        return torch

    def _settle(self, exchange: Exchange, torch: Any) -> dict[str, Any]:
        """Agree on what is measured with. Raises UsageError on all ranks where they cannot."""
        cards = exchange.collect(self._card(torch))
        terms = exchange.share(_terms(cards, self._seat.nnodes) if cards else None)
        if cards and not terms["error"]:
            hosts = tuple(card["host"] for card in cards)
            backend = terms["backend"]
            self._ledger.party = Party(
                self._seat.kind, self._seat.ranks, hosts, backend, cards[0]["versions"], terms["nodes"]
            )
            self._ledger.met = True
            if terms["remark"]:
                self._ledger.doubt(terms["remark"])
        exchange.collect(None)
        if terms["error"]:
            raise UsageError(terms["error"])
        return dict(terms)

    def _card(self, torch: Any) -> dict[str, Any]:
        """What this rank tells the others of itself before anything is measured."""
        usable = torch.cuda.device_count()
        seen = Devices(devices(self._host).nodes, usable, torch.__version__)
        self._device = device_index(self._seat, usable)
        card: dict[str, Any] = {
            "host": self._hostname,
            "gpu": None,
            "backend": None,
            "remark": "",
            "error": "",
            "plan": self._plan_digest(),
        }
        try:
            card["backend"], card["remark"] = choose_backend(
                self._options.backend, self._seat.kind, self._seat.local_ranks, seen
            )
        except UsageError as error:
            card["error"] = str(error)
        if card["backend"] == "nccl":
            card["gpu"] = str(getattr(torch.cuda.get_device_properties(self._device), "uuid", self._device))
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        card["versions"] = {"torch": torch.__version__, "nccl": ".".join(map(str, nccl)) if nccl else None}
        return card

    def _plan_digest(self) -> int:
        """Ranks started with different options would wait for each other for ever."""
        names = ("ops", "sizes", "iters", "warmup", "batches", "dtype", "redop", "mode")
        return zlib.crc32(repr([getattr(self._options, name) for name in names]).encode())

    def _open_group(self, backend: str) -> None:
        import torch
        import torch.distributed as dist

        self._watch.beat("init_process_group")
        if backend == "nccl":
            torch.cuda.set_device(self._device)
        store = connect(self._seat, serve=False, timeout_s=self._options.phase_timeout)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(key(self._seat, "group"), store),
            rank=self._seat.rank,
            world_size=self._seat.ranks,
            timeout=timedelta(seconds=self._options.phase_timeout + _SLACK_S),
        )

    def _sweep(self, exchange: Exchange, terms: Mapping[str, Any]) -> None:
        from ncclprobe.probes import sweep

        options = self._options
        plan = sweep.Plan(
            ops=options.ops,
            sizes=options.sizes,
            rank=self._seat.rank,
            ranks=self._seat.ranks,
            nodes=terms["nodes"],
            backend=terms["backend"],
            device=f"cuda:{self._device}" if terms["backend"] == "nccl" else "cpu",
            dtype=options.dtype,
            redop=options.redop,
            iters=options.iters,
            warmup=options.warmup,
            batches=options.batches,
            mode=options.mode or "queued",
        )
        for row in sweep.run(plan, exchange, self._watch.beat, host=self._host):
            if self._seat.rank:
                continue
            if isinstance(row, sweep.Skipped):
                tell = self._ledger.doubt if row.nbytes is None else self._ledger.remark
                tell(f"{row.op} was skipped: {row.why}")
            else:
                self._ledger.add(row)


def _terms(cards: Sequence[Mapping[str, Any]], nnodes: int) -> dict[str, Any]:
    """What all ranks do, or the error for which none does. Containers on several nodes may share one host name."""
    return {
        "error": next((card["error"] for card in cards if card["error"]), "") or _disagreement(cards),
        "backend": cards[0]["backend"],
        "nodes": max(nnodes, len({card["host"] for card in cards})),
        "remark": cards[0]["remark"],
    }


def _disagreement(cards: Sequence[Mapping[str, Any]]) -> str:
    first, seen = cards[0], dict[tuple[str, str], int]()
    for rank, card in enumerate(cards):
        if card["backend"] != first["backend"]:
            return (
                f"rank 0 on {first['host']} would measure {first['backend']} and rank {rank} on {card['host']} "
                f"{card['backend']}; give every node its GPUs, or ask for --backend gloo"
            )
        if card["plan"] != first["plan"]:
            return f"rank {rank} on {card['host']} was started with other options than rank 0; start all alike"
        other = seen.setdefault((card["host"], card["gpu"]), rank) if card["gpu"] is not None else rank
        if other != rank:
            return (
                f"ranks {other} and {rank} on {card['host']} have the same GPU; start one rank per GPU "
                "(--nproc-per-node=gpu), or ask for --backend gloo"
            )
    return ""
