"""Variables of launchers, and lines of jobs' logs: `texts-jobs.txt` keeps what is made of each.

What each launcher's variables mean without each of them is in `command_values/launchers.txt`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from conftest import FACTS

from ncclprobe.facts.environment import release_settings
from ncclprobe.facts.job.meeting import Agent, Connection, JobStore, agent, decoded, meetings
from ncclprobe.facts.job.process_state import LOADER, Child, LiveRank, suspects
from ncclprobe.facts.job.ranks import JobProcess, LocalRanks, places_met
from ncclprobe.facts.launcher import Flags, Launch, counts, detect, half_given, no_master
from ncclprobe.host import polls
from ncclprobe.logs import nccl_lines, texts, torch_lines
from ncclprobe.logs.torch_lines import Progress, TimedOutWork
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, HostError
from ncclprobe.model.snapshot import Absent
from tests.facts.made_up import sections

TORCHRUN = {
    "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}  # fmt: skip
STARTED = {
    "TORCHELASTIC_RUN_ID": "4711", "RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_NTASKS": "12", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": "8,4"}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}  # fmt: skip
UNEVEN = MPIRUN | {"OMPI_COMM_WORLD_RANK": "8", "OMPI_COMM_WORLD_SIZE": "12", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
TRAINER = {
    "PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500"}  # fmt: skip
OPERATOR = {
    "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "16", "RANK": "1",
    "PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456", "PET_NODE_RANK": "1", "PET_NNODES": "2"}  # fmt: skip
OLD_OPERATOR = {
    "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1"}  # fmt: skip
ELASTIC = {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "job-worker-0:23456", "PET_RDZV_BACKEND": "c10d"}
DEEPSPEED = {
    "RANK": "9", "WORLD_SIZE": "14", "LOCAL_RANK": "1", "LOCAL_SIZE": "6", "CROSS_RANK": "1", "CROSS_SIZE": "2",
    "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}  # fmt: skip
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "False", "MASTER_ADDR": "127.0.0.1"}
SALLOC = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "1"}  # fmt: skip
HYDRA = {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8"}
PTY = SALLOC | {"SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "40001"}
ALL_FLAGS = Flags(2, 1, "n0", 29500)
_BY_HAND = {"RANK": "0", "WORLD_SIZE": "2"}
_BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
_MET = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
_LAUNCHES: Sequence[Any] = (
    SRUN | {"SLURM_STEP_TASKS_PER_NODE": "6(x2)"}, {"PMI_RANK": "1", "PMI_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "1"},
    {}, SRUN | TORCHRUN, MPIRUN | {"OMPI_MCA_orte_num_nodes": "3"}, TRAINER | TORCHRUN,
    # half set, or contradictory
    {"RANK": "0"}, {"WORLD_SIZE": "2"}, _BY_HAND | {"MASTER_PORT": "1"}, _BY_HAND | {"MASTER_ADDR": "n0"},
    TORCHRUN | {"RANK": "16"}, TORCHRUN | {"RANK": "15"}, TORCHRUN | {"LOCAL_RANK": "8"}, TORCHRUN | {"RANK": "-1"},
    TORCHRUN | {"WORLD_SIZE": "sixteen"}, TORCHRUN | {"WORLD_SIZE": "4", "RANK": "1"}, TORCHRUN | {"WORLD_SIZE": "0"},
    TORCHRUN | {"GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0"}, TORCHRUN | {"GROUP_WORLD_SIZE": "17", "GROUP_RANK": "0"},
    *(_BY_HAND | {"MASTER_ADDR": "n0", "MASTER_PORT": port} for port in ("0", "1", "65535", "65536", "x")),
    {"RANK": "0", "WORLD_SIZE": str(bounds.JOB_RANKS), **_MET},
    {"RANK": "0", "WORLD_SIZE": str(bounds.JOB_RANKS + 1), **_MET},
    TORCHRUN | {"LOCAL_WORLD_SIZE": str(bounds.NODE_RANKS + 1)},
    {"LOCAL_RANK": "0", "MASTER_ADDR": "n0"}, {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_RDZV_ENDPOINT": "x"},
    TRAINER | {"PET_NODE_RANK": "4"}, TRAINER | {"PET_NNODES": "0"}, ELASTIC | {"PET_NNODES": "2:2"},
    {**_BY_HAND, "MASTER_ADDR": None, "MASTER_PORT": None}, {"RANK": None, "WORLD_SIZE": "2"},
    # a batch script or a shell of Slurm, which is no task; a prolog, or one node, is none of either
    _BATCH, _BATCH | {"SLURM_NTASKS": "1"}, _BATCH | {"SLURM_NTASKS": "1", "SLURM_NNODES": "2"}, SALLOC, PTY,
    {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"},
    {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_SCRIPT_CONTEXT": "epilog_slurmctld"},
    SALLOC | {"SLURM_JOB_NUM_NODES": "1"}, PTY | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"},
    _MET, {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3"},
    # accelerate's ranks are those of whoever started them
    ACCELERATE | MPIRUN, ACCELERATE | TORCHRUN, {"ACCELERATE_MIXED_PRECISION": "no"},
    # where to meet, and what the run is called
    *(SRUN | {"SLURM_STEP_NODELIST": nodes} for nodes in ("gpu[007-008]", "gpu[1-", "gpu[1-3]", "")),
    SRUN | {"SLURM_JOB_NODELIST": "n[1-2]"}, SRUN | {"SLURM_STEP_NODELIST": "n[1-2]", **_MET, "MASTER_ADDR": "n9"},
    MPIRUN | {"MASTER_ADDR": "n0", "PMIX_NAMESPACE": "5", "SLURM_JOB_ID": "7"},
    MPIRUN | {"MASTER_ADDR": "n0", "PMIX_NAMESPACE": "5", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"},
    *(SRUN | {"SLURM_STEP_ID": step} for step in ("4294967289", "4294967290", "42949672901", "9", "x")),
    SRUN | {"SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "8"},
    SRUN | {"SLURM_STEP_NODELIST": "n[1-2]", "MASTER_PORT": "29500"}, TRAINER | {"RANK": "3", "WORLD_SIZE": "9"},
    {**TRAINER, "PET_NODE_RANK": "", "RANK": "3"}, {**TRAINER, "PET_NODE_RANK": ""},
    *(MPIRUN | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
     "OMPI_COMM_WORLD_LOCAL_SIZE": local, "OMPI_MCA_orte_num_nodes": nodes} for local, nodes in ("12", "14", "24",
         "41")),
    ELASTIC | {"PET_RDZV_ENDPOINT": "[::1]:1:2"}, {"RANK": "0", "WORLD_SIZE": "-1"}, {"RANK": "0", "WORLD_SIZE": "0"},
    *(_BATCH | {"SLURM_NTASKS": tasks, "SLURM_NNODES": nodes} for tasks, nodes in (("-4", "-2"), ("1", "-2"),
        ("0", "0"))),
    # options win over a launcher, which keeps its ranks; complete ones need no environment
    ({}, ALL_FLAGS), (TORCHRUN, Flags(master_addr="n7")), (TORCHRUN, Flags()), ({"RANK": "0"}, ALL_FLAGS),
    (SALLOC, ALL_FLAGS), (ACCELERATE, ALL_FLAGS), ({}, Flags(1)), ({}, Flags(2, 2, "n0", 1)), (TORCHRUN, Flags(3, 2)),
    ({"RANK": "0"}, Flags(2, 0)), ({"RANK": "0"}, Flags(master_addr="n7")), (TORCHRUN | {"RANK": "16"}, Flags(2, 1)),
)  # fmt: skip
_HALF: Sequence[Any] = (
    (Flags(node_rank=1), {}), (Flags(nnodes=2), {}), (Flags(master_addr="n0"), {}), (Flags(2, 0), {}),
    (Flags(2, 0, "n0"), {}), (Flags(2, 2, "n0", 1), {}), (Flags(2, -1, "n0", 1), {}), (Flags(0), {}),
    (Flags(node_rank=1), TORCHRUN), (Flags(), {}), (Flags(1), {}), (ALL_FLAGS, {}), (Flags(2, 0), _MET),
    (Flags(master_port=1234), TORCHRUN), *((ALL_FLAGS, each) for each in ({"RANK": "0"}, SALLOC, ACCELERATE)),
    (Flags(2), TORCHRUN), (Flags(-1, 0), {}), (Flags(0, 0), {}), (Flags(1, 0), {}), (Flags(1, 1), {}), (Flags(2, 1),
        _MET),
)  # fmt: skip
_LINES = {title: text.splitlines() for title, text in sections("log_lines.txt").items()}
_MAPPED = ("::ffff:10.1.0.1", "::ffff:10.2.0.1")
_STANDING = [TimedOutWork(rank, 7, "ALLREDUCE", 4, group="0") for rank in (0, 1, 3)]


def _late(works: Sequence[TimedOutWork], came: Sequence[Progress], size: int | None = None) -> object:
    return [(each.group, each.late, each.silent, each.differ) for each in torch_lines.hangs(works, came, size)]


def _suspects(call: str, awaits: int, *children: dict[str, Any]) -> object:
    """Return the children that a rank waits for; each has the pid 60, 61 …, and is a loader if it is not named."""
    usual = {"state": "S", "cpu_s": 1.0, "name": LOADER}
    own = tuple(Child(**{"pid": 60 + number, **usual, **each}) for number, each in enumerate(children))
    at = LiveRank(state="S", cpu_s=1.0, time_s=9.0, call=call, file="pipe:[2]", awaits=awaits, pipes=("pipe:[1]",),
                  children=own)  # fmt: skip
    return [child.pid for child in suspects(at)]


def _at_store(resolved: str | Absent, *strangers: str) -> object:
    sockets = tuple(Connection(0, "[::]:29500", "", "listening", stranger=each) for each in strangers)
    store = JobStore("n1", 29500, resolved, "10.0.0.5", Absent("no") if "?" in strangers else sockets)
    return store.here, store.stranger, str(store)


def _same(address: str, port: int, resolved: str | Absent) -> object:
    stores = [JobStore("n1", 29500, each, "10.0.0.5") for each in ("10.0.0.5", "10.0.0.6")]
    return [store.same(JobStore(address, port, resolved, "10.0.0.5")) for store in stores]


_MET_BY = {"connections": '[{"pid": 9, "local": "a:1", "peer": "n1:29500"}]', "route": "10.0.0.9"}


def _meetings(addresses: Sequence[str], agents: Sequence[int], **refused: HostError) -> object:
    def said(*question: str | int) -> str:
        if (kind := str(question[0])) in refused:
            raise refused[kind]
        return {**_MET_BY, "resolve": json.dumps({"addresses": addresses}), "at_port": "[]"}[kind]

    return meetings(SimpleNamespace(ask=said), [("n1", 1), ("n1", 1)], [7], agents)


def _places_met(*masters: tuple[str, int | None], agents: Sequence[str] = ()) -> object:
    """Return the stores that are examined, and the questions about sockets there."""
    host = mock.Mock(ask=mock.Mock(side_effect=Denied("no")))
    ranks = tuple(JobProcess(60 + n, 1, "x", n, Launch(master_addr=at, master_port=port))
                  for n, (at, port) in enumerate(masters))  # fmt: skip
    here = LocalRanks(ranks, agents=tuple(Agent(70 + n, address=at, port=29400) for n, at in enumerate(agents)))
    found = places_met.run(host, here)
    asked = [each.args for each in host.ask.mock_calls if each.args[0] in ("at_port", "connections")]
    return [str(each) for each in found.masters], asked


_NEARBY = "while True:\n    if q.empty():{}\n    time.sleep(1)\n"
_POLLS = (FACTS.parent / "polls.txt").read_text()


def _polled(text: str, *lines: int) -> object:
    with mock.patch.object(polls, "_lines", return_value=text.splitlines()):
        return polls.asked("7", [("train.py", line) for line in lines])


_PIPED = {"pipes": ("pipe:[1]",)}


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    return {
        "launches": (detect, _LAUNCHES),
        "options that are half given": (half_given, _HALF),
        "no master": (lambda variables: no_master(detect(variables)), [
            SRUN, MPIRUN, UNEVEN, TRAINER, {}, MPIRUN | {"MASTER_ADDR": "n0"}, SRUN | {"SLURM_JOB_NODELIST": "n[1-3]"},
            MPIRUN | {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "1"}]),
        "speaks for its node": (
            lambda variables: ((of := detect(variables)).speaks_for_node, of.several_nodes, of.spans_by_launcher),
            [{}, MPIRUN, UNEVEN, {"RANK": "0", "WORLD_SIZE": "2"}, TORCHRUN | {"LOCAL_RANK": "0"}]),
        "tasks per node": (counts, ["8(x3),4", "8", "8,", "x", "8(x)", ""]),
        "settings of a release": (release_settings, ["2.4.1", "2.5.1", "2.6.0", "2.7.0", "2.50.1"]),
        "agents of torchrun": (agent, [(7, 1.0, {"nnodes": "2", "node_rank": "1", "rdzv_endpoint": "n1:29400"}, {}),
            (7, 1.0, {}, {}), (7, 1.0, {"nnodes": "1:4", "rdzv_endpoint": "n1", "master_port": "1"}, {}), (7, 1.0,
            {"master_addr": "n2", "master_port": "x"}, {"PET_NNODES": "3", "PET_MASTER_ADDR": "n3"}), (7, 1.0, {}, {
            "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "n3", "PET_MASTER_PORT": "29501"}), *((7, 1.0, {name: text}, {
            "PET_MASTER_ADDR": "n3"}) for name, text in (("rdzv_endpoint", "[::1]:29400"), ("rdzv_endpoint", "n1"),
            ("rdzv_endpoint", "n1:"), ("nnodes", "1:4:9"), ("nnodes", "\u0663"), ("nnodes", "4x"),
            ("node_rank", "1234567890"), ("master_port", "0"), ("node_rank", "0")))]),
        "texts of children": (lambda text, kind=list[int]: decoded(text, kind), ["[]", "[1, 2]", "{}", "[" * 100_000,
            "[x]", '["' + "y" * 99, ("[" * 100_000, object)]),
        "stores": (_at_store, [("127.0.0.1",), ("10.0.0.5",), ("10.0.0.6",), ("::1",), ("[::1]",), (Absent("no"),),
            ("127.0.0.1", "7 (x)", "8 (y)"), ("127.0.0.1", "7 (x)", ""), ("10.0.0.6", "7 (x)"), ("127.0.0.1", "?")]),
        "the same store": (_same, [("n1", 29500, Absent("no")), ("n1", 29501, "10.0.0.5"), ("n2", 29500, "10.0.0.6"),
            ("n2", 29500, "10.0.0.7"), ("localhost", 29500, "127.0.0.1")]),
        "meetings": (_meetings, [(["::1", "10.0.0.5"], []), (["::1"], [9])]),
        "places where ranks meet": (lambda masters, agents: _places_met(*masters, agents=agents), [([("n1", 29500),
            ("n1", 29500), ("n2", 1)], []), ([("", 29500), ("n1", None), ("n2", 7)], []), ([], ["n1", "", "n2"])]),
        "meetings that are not known": (lambda kind: _meetings(["n"], [9], **{kind: Denied("no")}), [
            "resolve", "route", "at_port", "connections"]),
        "what a rank waits for": (_suspects, [("poll", 60, {}, {}), ("poll", 61, {}, {"awaits": 60}), ("poll", 60, {
            "awaits": 60}), ("poll", 9, {}), *(("poll", 0, {"state": state}) for state in "SRDTtZ"), ("poll", 0, {
            "call": "futex"}), ("poll", 0, {"call": "futex", **_PIPED}), ("poll", 0, {"call": "futex", "name": "w",
            **_PIPED}), ("poll", 0, {"call": "nanosleep", **_PIPED}), ("poll", 0, {"call": "poll", **_PIPED}), ("poll",
            0, {"call": "read", "file": "/x", **_PIPED}), ("poll", 0, {"call": "read", "file": "/x"}), ("poll", 0, {
            "call": "read", "file": "pipe:[1]", **_PIPED}), ("poll", 0, {"call": "read", "file": "pipe:[3]", **_PIPED}),
            ("write", 0, {"call": "poll", "pipes": ("pipe:[1]", "pipe:[2]")}), ("read", 0, {"call": "poll", "pipes": (
            "pipe:[1]", "pipe:[2]")}), ("poll", 0, {"state": "D"}, {"call": "futex", **_PIPED}, {"state": "T"}), *((
            call, 0, {"call": "read", "file": file, "pipes": pipes}) for call in ("poll", "write", "read") for file in (
            "pipe:[1]", "pipe:[9]") for pipes in (("pipe:[1]",), ("pipe:[1]", "pipe:[2]"), ("pipe:[9]",), ())), ("poll",
            0, {"call": "read", "file": "pipe:[1]", "name": "w"}), ("poll", 62, {"state": "D"}, {"state": "D"}, {})]),
        "what a loop asks": (lambda *lines: _polled(_POLLS, *lines), [*((line,) for line in range(len(
            _POLLS.splitlines()) + 2)), *((6, line) for line in range(14, 20)), (3, 15, 7), (22, 18)]),
        "how near a loop asks": (lambda lines, at: _polled(_NEARBY.format("\n    x" * lines), lines + at), [
            *((lines, 3) for lines in (7, 8, 21, 22)), (30, 20), (24, 3)]),
        "the end of a long loop": (lambda lines: _polled("while q.empty():\n" + "    sleep()\n" * lines, 2), [23, 24]),
        "how long a statement is": (lambda lines: _polled("wait(" + "\n" * lines + "q.empty())", 1, 1), [7, 8]),
        "completions": (nccl_lines.completion, _LINES["completions"]),
        "refused queue pairs": (nccl_lines.qp_refusal, _LINES["refused queue pairs"]),
        "failed connections": (nccl_lines.failed_connection, _LINES["failed connections"]),
        "what is in use": (nccl_lines.used, _LINES["what is in use"]),
        "kinds of GIDs": (nccl_lines.types_differ, [("fe80::1", _MAPPED[0]), ("fe80::1", ""), _MAPPED]),
        "rails of GIDs": (nccl_lines.rails_differ, [_MAPPED, (_MAPPED[0], "::ffff:10.1.0.2"), (_MAPPED[0], "fe80::1")]),
        "timed out works": (torch_lines.timed_out_work, _LINES["timed out works"]),
        "how far a rank came": (torch_lines.progress, _LINES["how far a rank came"]),
        "who came to a store": (torch_lines.waited, _LINES["who came to a store"]),
        "ranks within their group": (_late, [(_STANDING, [Progress(2, "0", 6, 6)], 4),
            ([*_STANDING, TimedOutWork(0, 9, "BROADCAST", 1, group="1 (tp)")], [])]),
        "between": (texts.between, [("a=1, b=2", "a=", ","), ("a=1", "a=", ","), ("a=1", "b=")]),
        "numbers": (texts.number, ["12x", "-3", "x", "-", "1" * 40]),
        "addresses": (texts.address_of, [" [10.0.0.1]<4>"])}  # fmt: skip
