"""Nothing is ready that cannot start: whatever a choice of NCCL's refuses, no report of it passes."""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from zoo import findings

from ncclprobe.checks.env.fixtures import TWO_NODES, having
from ncclprobe.checks.sync.settings import env as settings_of_nodes
from ncclprobe.engine import diagnose
from ncclprobe.engine.collect import Traces, add_choices, capture_facts, replayed
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.plugins import Plugins
from ncclprobe.host import Question
from ncclprobe.host.capture import Replay, load
from ncclprobe.model.errors import Failed, HostError, Missing
from ncclprobe.model.findings import ExitCode, Severity, Verdict
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Every, Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl.selection import choose, usable_gpus
from ncclprobe.report import text
from tests.each_row import each_row

CHECKS = every_check(MACHINE)
MACHINES = ("hgx-h100", "aws-p4d", "gcp-a3-mega", "rtx4090-2", "gb200-tray")
SETTINGS = (
    {}, {"NCCL_SOCKET_IFNAME": "nowhere0"}, {"NCCL_SOCKET_FAMILY": "AF_INET6"}, {"NCCL_COMM_ID": ""},
    {"NCCL_COMM_ID": "192.0.2.9:4711"}, {"NCCL_NET": "ofi"}, {"NCCL_NET": "IB"},
    {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "IB", "NCCL_IB_HCA": "nowhere"}, {"NCCL_NET": "FasTrak"},
    {"NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "none"}, {"NCCL_NET": "Socket"}, {"NCCL_IB_DISABLE": "1"},
    {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}, {"CUDA_VISIBLE_DEVICES": "99"},
)  # fmt: skip
LESS: dict[str, dict[type, Any]] = {
    "whole": {}, "without interfaces": {Interfaces: Interfaces()}, "without HCAs": {Fabric: Fabric()},
    "without plugins": {Plugins: Plugins()},
}  # fmt: skip
DENIED = dict.fromkeys([(one, other) for one in range(8) for other in range(8) if one != other], "NS")


MORE = (
    *(
        {"FI_PROVIDER": provider, "NCCL_NET": "AWS Libfabric"}
        for provider in ("tcp", "sockets", "tcp;ofi_rxm", "net,tcp")
    ),
    *({"FI_PROVIDER": provider} for provider in ("efa", "tcp,efa", "^tcp", "^tcp,sockets")),
    *({"NCCL_NET": name} for name in ("aws libfabric", "socket")),
    *({"NCCL_IB_HCA": name} for name in ("mlx5_0", "mlx5")),
    *({"NCCL_MAX_NCHANNELS": count} for count in ("1", "2", "32")), {"NCCL_P2P_DISABLE": "1"},
    {"NCCL_NVLS_ENABLE": "0"}, {"NCCL_PROTO": "^LL"},
)  # fmt: skip
"""What costs something, or must not, beside what may keep NCCL from starting."""


def outcomes() -> Iterator[tuple[str, object]]:
    """What each setting does on each machine: what NCCL refuses, the findings about it, and its cost."""
    for name, settings in product((*MACHINES, "one-gpu"), (*SETTINGS, *MORE)):
        seen = under(name, "whole", settings)
        several = replace(seen, facts={**seen.facts, Launch: TWO_NODES})
        told: dict[str, list[object]] = {}
        for where, each in (("one", seen), ("two", several)):
            report = doctors(each)
            found = [(v.key, f) for v in report.checks for f in v.findings if f.subject in (*settings, "transport")]
            told[where] = [f"{f.severity.name}:{key}:{f.subject}:{f.action}:{f.blame}" for key, f in found]
            told[where] += [report.exit_code, report.predicted and round(report.predicted.lost(), 3)]
        yield f"{name} {settings}", ([(part, each.subject) for part, each in choose(seen).refused], told)


@cache
def machine(path: Path) -> Snapshot:
    return replayed([path], discover("ncclprobe.facts", Collector, {"machine"}))[0]


def under(name: str, less: str, settings: dict[str, str]) -> Snapshot:
    before = machine(findings.zoo.CAPTURES / f"{name}.jsonl")
    variables = before.facts[Environment].variables | settings
    facts = {**before.facts, **LESS[less], Settings: having(**settings), Environment: Environment(variables)}
    return replace(before, facts=facts)


def code(seen: Snapshot) -> ExitCode:
    return conclude(judge([seen], CHECKS, Job()))[1]


@each_row("path", findings.captures(), ids=lambda path: path.stem)
def test_no_captured_machine_is_ready_where_nccl_does_not_start(path: Path) -> None:
    seen = machine(path)
    assert not choose(seen).refused or code(seen) is ExitCode.FAIL


@each_row("less", LESS)
@each_row("name", MACHINES)
def test_no_machine_is_ready_under_settings_with_which_nccl_does_not_start(name: str, less: str) -> None:
    every = [under(name, less, settings) for settings in SETTINGS]
    assert {code(seen) for seen in every if choose(seen).refused} == {ExitCode.FAIL}


def test_the_settings_above_refuse_every_part_that_can_be_refused() -> None:
    seen = [under(name, less, settings) for name in MACHINES for less in LESS for settings in SETTINGS]
    refused = {name for each in seen for name, _ in choose(each).refused}
    assert refused == {"bootstrap", "sockets", "network", "gpus"}


def test_gpus_that_may_not_reach_each_other_over_nvlink_are_not_ready() -> None:
    before = machine(findings.zoo.CAPTURES / "hgx-h100.jsonl")
    seen = replace(before, facts={**before.facts, PeerAccess: PeerAccess(DENIED, DENIED, {})})
    assert [(name, part.subject) for name, part in choose(seen).refused] == [("p2p", "GPU0 and GPU1")]
    assert code(seen) is ExitCode.FAIL


def told(seen: Snapshot) -> dict[str, Verdict]:
    return {verdict.key: verdict for verdict in judge([seen], CHECKS, Job())}


def test_a_network_is_called_as_the_plugins_file_calls_it() -> None:
    """The plugin of this capture says that its network is "AWS Libfabric"; newer ones say "Libfabric"."""
    seen = under("aws-p4d", "whole", {"NCCL_NET": "Libfabric"})
    assert "libnccl-net.so is called AWS Libfabric" in dict(choose(seen).refused)["network"].why
    known = seen.facts[Plugins].all
    for names, refused in (((), 0), (("Libfabric", "AWS Libfabric"), 0), (("Other",), 1)):
        plugins = Plugins(tuple(replace(each, names=names) for each in known))
        assert len(choose(replace(seen, facts={**seen.facts, Plugins: plugins})).refused) == refused


@each_row(
    ("text", "left"), [("1,0", ("GPU1", "GPU0")), ("0,9,1", ("GPU0",)), ("GPU-1", ("GPU1",)), ("", ()), ("MIG-1", None)]
)
def test_cuda_reads_its_list_up_to_the_first_entry_that_names_no_gpu(text: str, left: Any) -> None:
    one, other = machine(findings.zoo.CAPTURES / "rtx4090-2.jsonl").facts[Gpus].all
    two = Gpus((replace(one, uuid="GPU-0a"), replace(other, uuid="GPU-1b")), "570.86.15", (12, 8))
    found = usable_gpus(two, Environment({"CUDA_VISIBLE_DEVICES": text}))
    assert (found.chosen, found.refused) == (left, left == ())


def doctors(seen: Snapshot) -> Report:
    return diagnose.diagnose(diagnose.ask(diagnose.Judging(), ("doctor", "--local"), Job(local=True)), [seen])


@each_row(("name", "of"), [("aws-p4d", "no OFI plugin"), ("gcp-a3-mega", "Google's plugins")])
def test_sockets_beside_fast_nics_are_on_the_first_screen(name: str, of: str) -> None:
    report = doctors(under(name, "without plugins", {}))
    (area,) = [each for each in report.areas if each.name == "transport"]
    assert area.values.startswith("NCCL → sockets over ")
    assert area.ids == ("env.transport",)
    screen = text.render(report)
    assert "on this node only, with" in screen
    assert of in screen


def test_what_a_setting_costs_is_said_once_and_the_first_screen_says_what_is_left() -> None:
    report = doctors(under("hgx-h100", "whole", {"NCCL_P2P_DISABLE": "1"}))
    (found,) = [f for v in report.checks for f in v.findings if f.subject == "NCCL_P2P_DISABLE"]
    assert report.predicted is not None
    assert report.predicted.cost("NCCL_P2P_DISABLE") in found.message
    screen = " ".join(text.render(report).split())
    assert f"expected all_reduce 1 GiB over 2 nodes: at most {report.predicted.now_GBps:.3g} GB/s" in screen


def test_fewer_nics_than_expected_fail() -> None:
    seen = machine(findings.zoo.CAPTURES / "hgx-h100.jsonl")
    eight, nine = (judge([seen], CHECKS, Job(expect_nics=number)) for number in (8, 9))
    assert (conclude(eight)[1], conclude(nine)[1]) == (ExitCode.OK, ExitCode.FAIL)


def test_nodes_of_which_one_goes_over_sockets_are_told_apart() -> None:
    well, off = (under("hgx-h100", "whole", s) for s in ({}, {"NCCL_NET": "Socket"}))
    several = [replace(each, node=f"n{i}") for i, each in enumerate((well, well, off))]
    (verdict,) = [each for each in judge(several, CHECKS, Job()) if each.key == "sync.network/transport"]
    assert [finding.nodes for finding in verdict.findings] == [("n2",)]


RECORDED = Path(__file__).parent / "data" / "nccl_failures"
_ENDED = Missing("/opt/job: not there")
_WRITTEN: dict[str, str | HostError] = {
    "none.xml": _ENDED, "broken.xml": '<system version="1"><cpu numaid="0"',
    "other.xml": '<system version="9"></system>\n', "graph.xml": '<graphs version="1"><graph id="0"',
}  # fmt: skip
"""The files of the recorded cases."""
_OTHERWISE: dict[str, dict[Question, str | HostError]] = {
    "small-shm": {("statvfs", "/dev/shm"): '{"total": 1048576, "available": 1048576}'},
    "no-memory": {("nvml", "nvmlDeviceGetMemoryInfo", 0): f'{{"total": {513 << 20}, "free": {513 << 20}, "used": 0}}'},
    "no-nvml": {},
    "topology-file-of-no-gpus": {("read", "/opt/job/other.xml"): '<system version="1"></system>\n'},
}
"""What was otherwise on the machine."""
NOT_THE_SETTINGS = {
    "aborts-in-a-call": "the program aborts",
    "aborts-in-a-call-shm": "the program aborts",
    "aborts-in-a-call-2-hosts": "the program aborts",
    "plugin-of-another-abi": "what a plugin is called, and which interface it has, is not read from its file",
    "20-gpu-held": "another process has the GPU, which the stand-in plays; gpu.mode has tests of its own",
    "20-other-type": "the program calls with another type on one rank",
    "20-p2p-denied": "the driver's word, which the stand-in plays; a test below denies it to a captured machine",
    "stranger-on-the-port": "which ports of NCCL_COMM_ID are taken is not asked",
    "topology-file-of-no-gpus": "the whole topology is that of the file, on a processor",
}
"""Deaths that neither a setting nor the machine alone causes, or that the doctor cannot see."""


@cache
def recorded(release: str) -> list[dict[str, Any]]:
    return [*map(json.loads, gzip.decompress((RECORDED / f"{release}.jsonl.gz").read_bytes()).splitlines())]


def deeds(release: str) -> dict[str, dict[str, Any]]:
    """What died of all that was played with settings on every rank alike, or on another machine."""
    of_one = [row for row in recorded(release) if not (row["per_rank"] or row["library"] or row["leaves_out"])]
    died = [row for row in of_one if 0 not in row["exit_codes"].values()]
    return {row["name"]: row for row in died if row["env"].keys() - {"RANK_WAITS_S"} or row["name"] in _OTHERWISE}


def as_played(row: dict[str, Any], release: str) -> Snapshot:
    """The machine of a row: without HCAs, with this NCCL, these settings and these files."""
    before = load(findings.zoo.CAPTURES / "hgx-h100.jsonl").answers
    answers = {asked: said for asked, said in before.items() if "infiniband" not in " ".join(map(str, asked))}
    answers[("list", "/sys/class/infiniband")] = _ENDED
    variables = {"HOME": "/root", **row["env"]} | (_ON_TWO_HOSTS if row["hosts"] == 2 else {})
    answers[("env",)] = json.dumps(variables)
    (library,) = [asked for asked in answers if asked[0] == "elf_texts" and asked[-1] == "NCCL version 2."]
    answers[library] = json.dumps([f"NCCL version {release}+cuda12.3"])
    answers |= {("read", f"/opt/job/{name}"): said for name, said in _WRITTEN.items()}
    answers[("resolve", "here")] = Failed("resolve here: Temporary failure in name resolution")
    answers[("resolve", "n0")] = '{"addresses": ["10.0.0.11"], "seconds": 0.002}'
    answers |= _OTHERWISE.get(row["name"], {})
    if row["name"] == "no-nvml":
        answers |= dict.fromkeys([a for a in answers if a[0] == "nvml" or a[1:2] == ("nvidia-smi",)], _ENDED)
    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    return add_choices([capture_facts(Replay(answers, "n0", older=False), collectors, TRACES)], CHECKS)[0]


TRACES = Traces()
_ON_TWO_HOSTS = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4",
                 "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2",
                 "TORCHELASTIC_RUN_ID": "4711"}  # fmt: skip


@each_row("release", ["2.23.4", "2.28.9"])
def test_nothing_is_ready_with_which_real_nccl_died(release: str) -> None:
    """What NCCL itself did, recorded on a processor, is held against the doctor's rules."""
    died = deeds(release)
    ready = {name for name, row in died.items() if code(as_played(row, release)) is ExitCode.OK}
    assert ready == died.keys() & NOT_THE_SETTINGS.keys()
    assert len(died) > 25


OF_ONE_HOST = {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NTHREADS"}
"""They ended jobs whose ranks of one host disagreed; no transport between nodes depends on them."""
WELL_AS_PLAYED = {"NCCL_BUFFSIZE", "NCCL_COLLNET_ENABLE", "NCCL_MIN_NCHANNELS"}
"""Jobs in which they differ die with 2.23.4, and with 2.28.9 at other sizes or with a plugin, as its source says."""


def differing(release: str) -> dict[str, tuple[bool, bool]]:
    """Whether a job died in which one rank had another value, and whether two such nodes FAIL, by the variable."""
    found = {}
    for row in recorded(release):
        (theirs,) = row["per_rank"].values() if row["name"].startswith("differs-") else ({},)
        for name in theirs:
            two = Every({"n0": having(**row["env"]), "n1": having(**{**row["env"], **theirs})})
            told_of = [each.severity for each in settings_of_nodes.run(two, Every({}), Job()) if each.subject == name]
            found[name] = (any(each != 0 for each in row["exit_codes"].values()), told_of == [Severity.FAIL])
    return found


@each_row("release", ["2.23.4", "2.28.9"])
def test_nodes_fail_over_settings_that_ended_real_jobs_where_one_rank_had_another(release: str) -> None:
    seen = differing(release)
    assert {name for name, (died, fails) in seen.items() if died and not fails} == OF_ONE_HOST & {
        name for name, (died, _) in seen.items() if died
    }
    assert {name for name, (died, fails) in seen.items() if fails and not died} <= WELL_AS_PLAYED
    assert len(seen) > 10
