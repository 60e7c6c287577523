"""Two looks at the ranks of a node, and what is kept of each: `texts-looks.txt` shows what they learned."""

import base64
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job.gpus import gpus
from ncclprobe.facts.job.process_state import LiveRank
from ncclprobe.facts.job.ranks import AskedJob, JobLook, LocalRanks
from ncclprobe.facts.job.stacks import C10D
from ncclprobe.facts.kernel_log import OF_GPUS
from ncclprobe.host.capture import Replay
from ncclprobe.host.rank_servers import PIPE
from ncclprobe.model.errors import HostError, OutOfTime, TimedOut
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.facts.made_up_ranks import found, gpu_row, process

Said = Mapping[tuple[str | int, ...], str | HostError]
HERE = LocalRanks((found(process(10, 0)).ranks[0],))
STATE = ("process", 10, 10)
WAIT: Said = {("wait", "5.0"): "", ("wait", "1.0"): ""}


class Asked(Replay):
    """Remembers what is asked of ranks, and at which look."""

    def __init__(self, said: Said) -> None:
        super().__init__({**WAIT, **said}, older=True)
        self.asked: list[str] = []

    def ask(self, *question: str | int) -> str:
        """Answer from the capture."""
        if question[0] in ("server", "process", "wait", "dump", "left_dump"):
            self.asked.append(f"{question[0]} {question[-1]}")
        return super().ask(*question)


def _looked(said: Said, here: LocalRanks = HERE, **asked: bool) -> object:
    """Return what was asked, and what each look has that it has not where nothing answers."""
    host, bare = Asked(said), looks.looks.run(Asked({}), here, AskedJob(**asked))  # type: ignore[arg-type]
    both = looks.looks.run(host, here, AskedJob(**asked))  # type: ignore[arg-type]
    own = [_apart(one, other) for one, other in ((both.first, bare.first), (both.second, bare.second))]
    others = [getattr(both, name) for name in ("interfaces", "xids") if getattr(both, name) != getattr(bare, name)]
    return host.asked if len(here.ranks) == 1 else sorted(host.asked), own, others


def _apart(look: JobLook, bare: JobLook) -> list[object]:
    names = [name for name in look.__struct_fields__ if getattr(look, name) != getattr(bare, name)]
    short = {"records": _records, "processes": lambda look: [*map(_process, look.processes)]}
    return [(name, short[name](look) if name in short else getattr(look, name)) for name in names]


def _process(at: LiveRank | Absent) -> object:
    return at if isinstance(at, Absent) else (at.state, at.still_s, [each.pid for each in at.children])


def _records(look: JobLook) -> object:
    of = look.records
    return *([[group.ranks for group in each.groups] for each in every] for every in (of.dumps, of.unplaced)), of.unread


def _state(*children: tuple[int, str, str], **more: Any) -> str:
    rows = [{"state": state, "cpu_s": 1.0, "pid": pid, "name": name} for pid, state, name in children]
    return json.dumps({"state": "S", "cpu_s": 1.0, "time_s": 9.0, "children": rows, **more})


def _stacks(*pids: int, files: str = "connection.py") -> dict[tuple[str | int, ...], str]:
    frames = [{"name": "recv", "filename": files, "line": 3}]
    return {("stacks", pid, n): json.dumps([{"os_thread_id": pid, "frames": frames}]) for pid in pids for n in (1, 2)}


def _flight(*groups: str) -> str:
    configs = {str(n): {"name": str(n), "desc": "", "ranks": ranks} for n, ranks in enumerate(groups)}
    return json.dumps({"version": "2.10", "pg_config": configs, "entries": []})


def _served(text: str, *question: str | int) -> dict[tuple[str | int, ...], str]:
    return {(*(question or ("server", 10, "fr_trace_json")), look): text for look in (1, 2)}


def _gpus(text: str) -> object:
    found = gpus(Replay({("nvml", "gpusOf", 1, "10"): text}, older=True), [10], 1)
    return [(each, each.lost) for each in found][:2], len(found)


def here_of(*ranks: int | None, **settings: str) -> LocalRanks:
    first = HERE.ranks[0]
    return replace(HERE, ranks=tuple(replace(first, pid=10 + n, rank=rank, settings=settings)
                                     for n, rank in enumerate(ranks)))  # fmt: skip


def _of_world(rank: int | None, world: int | None) -> LocalRanks:
    first = HERE.ranks[0]
    return replace(HERE, ranks=(replace(first, rank=rank, launch=replace(first.launch, world_size=world)),))


PICKLED = base64.b64encode(pickle.dumps(json.loads(_flight("[0, 1]")), 2)).decode()
SLOW, LEFT = TimedOut("no answer within 1 s"), {("left_dump", 10, 0): "/tmp/nccl_trace_rank_0"}
WRITTEN = {("dump", 10, 0, look): PICKLED for look in (1, 2)}
EIGHT = [(60 + n, "S", "pt_data_worker" if n % 2 else "python3") for n in range(8)]
STUCK = [(60, "S", "w"), (61, "D", "w"), (62, "S", "bash"), (63, "S", "python")]
LOST, REFUSED = {"refused": "Odd", "why": "GPU is lost"}, {"refused": "Denied", "why": "Insufficient Permissions"}
KERNEL = [
    "NVRM: Xid (PCI:0000:5e:00): 79, pid=9, GPU has fallen off the bus.", "NVRM: loading",
    "NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Link 61"]  # fmt: skip
INTERFACES = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "fe80::1%eth0", "fe80::2%a%b"], "dummy": []}


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    return {
        "two looks": (lambda said, here=HERE, asked=(): _looked(said, here, **dict.fromkeys(asked, True)), [({},), ({},
            replace(HERE, others=(("10", "ada"),))), ({}, LocalRanks(())), (_served(_state(), *STATE),), (_served(
            _state(still_s=3.0), *STATE),), (_served("nonsense", *STATE),), *(({question: OutOfTime(
            "all that --timeout left")},) for question in (("server", 10, "fr_trace_json", 2), (*STATE, 2), ("dump", 10,
            0, 1), ("ras", "x", 2, 10))), ({("process", 10, 10, 1): SLOW},), (_served(_flight()),), (_served("[]"),),
            (_served("[]"), HERE, ["dumps"]), (_served(PICKLED),), (_served("e30="),), (_served("?"),), ({("server", 10,
            "fr_trace_json", 1): _flight("[0, 1]")},), *((_served(_flight(*groups)), _of_world(rank, world)) for groups,
            rank, world in ((["[0, 1]"], 0, 2), (["[0, 1]", "[1]"], 0, 2), (["[0, 2]"], 0, 2), (["[0, 1]"], 2, 4), ([
            "[1]"], 0, None), (["[0, 9]"], 0, None), (["[1, 2, 5]", "[]"], None, 2), (["", "[0]"], 0, 1))), ({},
            here_of(None), ["dumps"]), ({}, here_of(0, 1)), (WRITTEN, HERE, ["dumps"]), ({}, HERE, ["dumps"]), ({(
            "dump", 10, 0, 1): SLOW}, HERE, ["dumps"]), (_served(_flight("[0, 3]")) | _served(_flight("[0, 3]"),
            "server", 11, "fr_trace_json"), here_of(0, 3)), *((said, here_of(rank, **{name: "/tmp/x"})) for name in (
            PIPE, "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "NCCL_DEBUG") for said in ({}, LEFT) for
            rank in (0, None)), ({("left_dump", 11, 3): "/tmp/x_3"}, here_of(0, 3, TORCH_FR_DUMP_TEMP_FILE="/tmp/x_")),
            (_served(_state(*STUCK), *STATE) | _stacks(60, 61, 62, 63),), *((_served(_state(*children), *STATE) |
            _stacks(*pids, files=files), HERE, ["stacks"]) for children, pids, files in ((STUCK, (10, 60, 61, 62, 63),
            "x.py"), (STUCK, (10, 61), "x.py"), (STUCK, (60, 61), "x.py"), (STUCK, (10, 60, 61), f"/v{C10D}"), (EIGHT,
            (10, *range(60, 68)), "x.py"))), (_stacks(10), here_of(*range(6)), ["stacks"]), (_stacks(10, 11), here_of(0,
            1), ["stacks"]), ({("psutil", "net_if_addrs"): json.dumps({name: [{"address": each} for each in every] for
            name, every in INTERFACES.items()})},), ({("psutil", "net_if_addrs"): "[]"},), *(({("connections", 2,
            *pids): json.dumps([{"pid": 10, "local": "a:1", "peer": "b:2"}]), **_served(_state(*STUCK[:1]),
            *STATE)},) for pids in ((10,), (10, 60))), ({("connections", 1, 10): "7"},), ({("ras", "localhost:28028", 1,
            10): "nonsense"},), ({("ras", "n9:5", 2, 10, 11): "nonsense"}, here_of(0, 1, NCCL_RAS_ADDR="n9:5")), ({(
            "ras", "localhost:28028", 2, 10): "nonsense"}, here_of(0, NCCL_RAS_ADDR="")), *(({("nvml", "gpusOf", 2,
            "10"): gpu_row(), ("kernel_log", OF_GPUS): json.dumps({"lines": [[50.0 + n, line] for n, line in enumerate(
            lines)]})},) for lines in (KERNEL, [])), ({("nvml", "gpusOf", 2, "10"): gpu_row()},)]),
        "GPUs of a job": (_gpus, [*((gpu_row(**change),) for change in ({}, {"pci": LOST}, {"pci": REFUSED}, {
            "nvlink_KiB": [REFUSED, 9]}, {"nvlink_KiB": [7, LOST]}, {"nvlink_KiB": []}, {"nvlink_KiB": [0, 0]}, {
            "power_mW": REFUSED}, {"busy_percent": -1}, {"busy_percent": 0}, {"pids": []}, {"pids": 7}, {"pids": ["x"]},
            {"reasons": 0}, {"reasons": "x"}, {"pci": 7}, {"pci": {}}, {"pci": {"why": 7, "refused": "x"}}, {
            "nvlink_KiB": None}, {"index": 1.5}, {"index": -1})), *((text,) for text in ("[{}]", "7", "nonsense", "[]",
            '[{"index": 0}]', "[7]", json.dumps(json.loads(gpu_row()) * 300)))]),
    }  # fmt: skip
