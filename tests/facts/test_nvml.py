"""GPUs, links and peers of boxes that a fake library shows, through nvidia-ml-py and the child that calls it."""

import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fake_nvml
import pytest

from ncclprobe.engine.collect import collect
from ncclprobe.facts import nvlink, nvml
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, PeerAccess
from ncclprobe.host import Host, nvml_child
from ncclprobe.host.capture import Recorder
from ncclprobe.host.nvml_child import NvmlChild
from ncclprobe.model.errors import Failed, TimedOut
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from tests.each_row import each_row

HGX = {"gpus": 8, "links": 18, "switched": 1}


class Box(Struct, frozen=True):
    """What the collectors made of a machine, and how many questions that took."""

    gpus: Any
    links: Any
    peers: Any
    questions: int


def look(host: Host) -> Box:
    recorder = Recorder(host)
    facts = collect(recorder, [nvml.nvml, nvlink.nvlink, nvml.nvml_p2p])
    return Box(facts[Gpus], facts[NvLinks], facts[PeerAccess], len(recorder.answers))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("old"), "-DOLD")


@pytest.fixture(scope="module")
def captures(new: Path) -> Iterator[fake_nvml.Captures]:
    with contextlib.closing(fake_nvml.Captures(new)) as started:
        yield started


@pytest.fixture
def box(captures: fake_nvml.Captures, tmp_path: Path) -> Callable[..., Box]:
    """Shows the box that the settings describe."""

    def show(library: Path | None = None, **fake: object) -> Box:
        capture = partial(fake_nvml.capture, library) if library else captures.capture
        return look(capture(tmp_path, **fake))

    return show


def test_a_healthy_box_leaves_no_field_unknown(box: Callable[..., Box]) -> None:
    for count in (1, 4, 16):
        seen = box(gpus=count, links=18, switched=1)
        assert (len(seen.gpus.all), len(seen.links.gpus), len(seen.peers.read)) == (count, count, count * (count - 1))
        assert not [gpu for gpu in seen.gpus.all if "Absent" in repr(gpu)]
        of_links = {
            (link.state, link.speed_MBps, link.version, link.remote) for links in seen.links.gpus for link in links
        }
        assert of_links == {("active", 26562, 7, "switch")}
        assert [[link.replays for link in links] for links in seen.links.gpus] == [
            [gpu * 100 + link for link in range(18)] for gpu in range(count)
        ]
        statuses = {*seen.peers.read.values(), *seen.peers.write.values(), *seen.peers.nvlink.values()}
        assert statuses == ({"OK"} if count > 1 else set())


def test_a_gpu_in_full_and_how_many_calls_and_questions_eight_take(box: Callable[..., Box], tmp_path: Path) -> None:
    seen = box(**HGX, log=tmp_path / "log")
    assert (seen.gpus.driver, seen.gpus.cuda, seen.gpus.nvml) == ("570.86.15", (12, 8), "12.570.86.15")
    assert seen.gpus.all[5] == Gpu(
        index=5, name="Fake H200", uuid="GPU-00000000-0000-0000-0000-000000000005", pci="00000000:05:00.0",
        memory_bytes=141 << 30, memory_used_bytes=1 << 20, bar1_bytes=256 << 30, pcie_generation=1, pcie_width=16,
        pcie_max_generation=5, pcie_max_width=16, compute_mode="default", mig=False, mig_pending=False,
        persistence=True, ecc=True, ecc_pending=True, ecc_since_reset=0, ecc_ever=0, sram_worn=False,
        remap_pending=False, remap_failed=False, throttle=("gpu-idle",), processes=(), cpus=tuple(range(56, 64)),
        numa_nodes=(1,), compute=(9, 0), power_limit_W=700, power_default_W=700, clock_MHz=1980, temperature_C=31,
        slowdown_C=92, pcie_replays=0, hot_s=0,
        fabric=GpuFabric("completed", cluster="00000000-0000-0000-0000-000000000000", troubles=()))  # fmt: skip
    calls = Counter((tmp_path / "log").read_text().split())
    once = ("nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetP2PStatus")
    assert [calls[name] for name in once] == [1, 8, 16, 3 * 8 * 7]
    assert (calls.total(), seen.questions) == (725, 300)


def test_links_that_are_down_bridged_newer_none_or_not_countable(box: Callable[..., Box]) -> None:
    links = box(**HGX, down="3:5").links.gpus[3]
    assert [link.link for link in links if link.state != "active"] == [5]
    assert (links[5].state, links[5].remote_pci) == ("inactive", nvml.NOT_ASKED)  # its remote end was not asked
    assert nvml.unsupported(links[5].speed_MBps)
    assert links[4].remote_pci != links[6].remote_pci
    seen = box(gpus=2, links=4)
    ends = [{(link.remote, link.remote_pci) for link in links} for links in seen.links.gpus]
    assert ends == [{("gpu", seen.gpus.all[1].pci)}, {("gpu", seen.gpus.all[0].pci)}]
    link = box(**HGX, nvlink5=1).links.gpus[2][17]
    assert (link.recoveries, link.effective_errors, link.speed_MBps) == (217, 217, 53125)
    assert nvml.unsupported(link.replays)
    seen = box(gpus=8)
    assert (seen.links, seen.peers.read[0, 1], seen.peers.nvlink[0, 1]) == (NvLinks(((),) * 8), "OK", "NS")
    unknown = box(**HGX, refuse="nvmlDeviceGetFieldValues=999").links.gpus[0]
    assert unknown == Absent("NVML nvmlDeviceGetFieldValues: Unknown Error", "Failed")


def test_a_lost_gpu_hides_no_other(box: Callable[..., Box]) -> None:
    for how in ("lost", "lost_late"):
        seen = box(**HGX, **{how: 3})
        assert [gpu.index for gpu in seen.gpus.all if gpu.lost] == [3]
        assert seen.gpus.all[3].lost.endswith("GPU is lost")
        assert [isinstance(links, Absent) for links in seen.links.gpus] == [gpu == 3 for gpu in range(8)]
        assert len(seen.peers.read) == 7 * 6
        assert not [pair for pair in seen.peers.read if 3 in pair]
    gpu = box(gpus=1, refuse="nvmlDeviceGetMemoryInfo=15").gpus.all[0]
    assert (gpu.name, gpu.lost) == ("Fake H200", "NVML nvmlDeviceGetMemoryInfo: GPU is lost")


def test_an_old_library_is_asked_the_old_way(box: Callable[..., Box], old: Path) -> None:
    seen = box(old, gpus=8, links=12, switched=1, down="0:7", ecc=0)
    gpu, links = seen.gpus.all[1], seen.links.gpus[1]
    assert (gpu.throttle, gpu.fabric.state, gpu.fabric.troubles.refused) == (("gpu-idle",), "completed", "Missing")
    assert gpu.numa_nodes == Absent("NVML nvmlDeviceGetMemoryAffinity: Function Not Found", "Missing")
    assert [link.replays for link in links] == [100 + n for n in range(12)]
    assert {(n.speed_MBps, n.version, n.recoveries, n.crc_errors, n.remote) for n in links} == {
        (25781, 5, 0, 0, "switch")
    }
    assert [link.state for link in seen.links.gpus[0]] == ["active"] * 7 + ["inactive"] + ["active"] * 4
    assert (seen.gpus.all[0].ecc_since_reset, seen.gpus.all[0].sram_worn.refused) == (3, "Missing")


def test_no_permission_for_one_function_is_denied_for_its_fields(box: Callable[..., Box]) -> None:
    gpu = box(gpus=1, refuse="nvmlDeviceGetEccMode=4,nvmlDeviceGetMigMode=3").gpus.all[0]
    assert gpu.ecc == gpu.ecc_pending == Absent("NVML nvmlDeviceGetEccMode: Insufficient Permissions", "Denied")
    assert (nvml.unsupported(gpu.mig), nvml.unsupported(gpu.ecc)) == (True, False)
    assert (gpu.lost, gpu.persistence) == ("", True)
    for code, kind in ((4, "Denied"), (9, "Failed"), (18, "Failed")):
        seen = box(error=code)
        assert [fact.refused for fact in (seen.gpus, seen.links, seen.peers)] == [kind] * 3
        assert seen.questions == 2, "nvidia-smi is asked, too"


def test_work_errors_and_fabrics_of_gpus_are_seen_without_a_name(box: Callable[..., Box], tmp_path: Path) -> None:
    gpus = box(gpus=2, busy=1, ecc=1).gpus.all
    assert [gpu.processes for gpu in gpus] == [(), (5 << 30,)]
    assert gpus[1].throttle == ("hw-slowdown", "hw-power-brake-slowdown")
    assert [(gpu.power_limit_W, gpu.memory_used_bytes) for gpu in gpus] == [(700, 1 << 20), (200, 5 << 30)]
    assert [(gpu.ecc_since_reset, gpu.ecc_ever, gpu.sram_worn) for gpu in gpus] == [(0, 0, False), (3, 5, True)]
    assert "4711" not in (tmp_path / "fake.jsonl").read_text()
    fabric = box(gpus=4, links=18, switched=1, cluster=1).gpus.all[0].fabric
    assert (fabric.cluster, fabric.clique) == ("abababab-abab-abab-abab-abababababab", 32766)
    states = [box(gpus=1, fabric=state).gpus.all[0].fabric.state for state in (0, 1, 2)]
    assert states == ["not-supported", "not-started", "in-progress"]


EVENTS = """
import pynvml, sys
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
known = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, known)
with open(sys.argv[1], "a") as file:
    file.write("0 8 31\\n1 2 1\\n1 8 79\\n")
event = pynvml.nvmlEventSetWait_v2(known, 100)
print(event.eventType, event.eventData, pynvml.nvmlDeviceGetIndex(event.device))
try:
    pynvml.nvmlEventSetWait_v2(known, 20)
except pynvml.NVMLError_Timeout:
    print("no more")
"""
XIDS = """
import sys
from ncclprobe.facts.nvml import xids
from ncclprobe.host.live import LiveHost
host = LiveHost((), bool)
print(xids(host))
with open(sys.argv[1], "a") as file:
    file.write("0 8 31\\n1 2 1\\n1 8 79\\n")
print(xids(host), xids(host))
host.close()
"""
STORM = "\\n".join(["0 8 13"] * 1000)
COUNTED = (
    XIDS.replace("print(xids(host))", 'print(host.ask("nvml", "nvmlDeviceGetCount"))', 1)
    .replace("print(xids(host), xids(host))", "print(xids(host))\nprint(xids(host))")
    .replace("with open", "xids(host)\nwith open")
)


@each_row(
    ("script", "fake", "told"),
    [
        (EVENTS, {}, ["8 79 1", "no more"]),
        (XIDS, {}, [r"\(\)", r"\(\(0, '31'\), \(1, '79'\)\) \(\)"]),  # from the first question on, each once
        (XIDS, {"refuse": "nvmlDeviceRegisterEvents=3"}, [r"Absent\(.*\)", r"Absent\(.*\) Absent\(.*\)"]),
        (XIDS.replace("1 2 1", STORM), {}, [r"\(\)", r"\((\(\d, '(31|13)'\), ){65}\(1, '79'\)\) \(\)"]),
        (XIDS.replace('.write("', '.write("0 8 13\\n" * (1 << 17) + "'), {},
         [r"\(\)", r"Absent\(why='NVML xids: more than 131072 at once.*"]),
        (COUNTED, {"refuse": "nvmlEventSetWait_v2=15"}, ["2", r"\(\(0, '31'\), \(1, '79'\)\)", r"Absent\(.*"]),
    ],
    ids=["the library", "xids", "not told", "a storm hides no other", "a storm without an end", "before it was lost"],
)  # fmt: skip
def test_xids_are_told_once_and_absent_if_they_cannot_be(
    script: str, fake: dict[str, object], told: list[str], new: Path, tmp_path: Path
) -> None:
    (tmp_path / "events").write_text("1 8 13\n")  # before anybody listened
    said = fake_nvml.run(new, script, str(tmp_path / "events"), gpus=2, events=tmp_path / "events", **fake)
    for line, wanted in zip(said.splitlines(), told, strict=True):
        assert re.fullmatch(wanted, line), line[:300]


ASK = """
import json, sys
from ncclprobe.model.errors import HostError
from ncclprobe.host.nvml_child import NvmlChild
child, said = NvmlChild(), []
for question in json.loads(sys.argv[1]):
    try:
        said.append(["said", json.loads(child.call(*question, patience_s=float(sys.argv[2])))])
    except HostError as refusal:
        said.append([type(refusal).__name__, str(refusal)])
child.close()
print(json.dumps(said))
"""
CHECKOUT = str(Path(nvml_child.__file__).parents[2])
BARE = [CHECKOUT, *(each for each in sys.path if each and "site-packages" not in each and "tests" not in each)]
INVALID, GONE = ({"refused": "Failed", "why": why} for why in ("Invalid Argument", "GPU is lost"))
COUNT = ["nvmlDeviceGetCount"]


def ask(library: Path | None, *questions: list[Any], script: str = ASK, patience_s: float = 30, **fake: object) -> Any:
    return json.loads(fake_nvml.run(library, script, json.dumps(questions), str(patience_s), **fake))


@each_row(
    ("questions", "fake", "answers"),
    [
        ([COUNT, ["nvmlDeviceGetName", 7]], {"gpus": 8}, [["said", 8], ["said", "Fake H200"]]),
        ([["nvmlDeviceGetNvLinkState", 0, "0,1,2"]], {"links": 2, "down": "0:1"}, [["said", [1, 0, INVALID]]]),
        ([["nvmlDeviceGetP2PStatus", 0, "1,2", 0]], {"gpus": 3, "lost": 2}, [["said", [0, GONE]]]),
        ([["nvmlDeviceGetNvLinkState", 0, "0"], ["nvmlDeviceGetNvLinkState", 0, 0]], {"links": 1},
         [["said", [1]], ["said", 1]]),
        ([["nvmlDeviceGetFieldValues", 1, "164,999,161", "0,1"]], {"gpus": 2, "links": 2},
         [["said", [26562, 26562, INVALID, INVALID, 100, 101]]]),
        ([["nvmlDeviceGetComputeRunningProcesses", 0]], {"busy": 0}, [["said", [5 << 30]]]),  # amounts, no names
        ([COUNT], {"error": 9}, [["Failed", "NVML nvmlDeviceGetCount: Driver Not Loaded"]]),
        ([COUNT], {"error": 4}, [["Denied", "NVML nvmlDeviceGetCount: Insufficient Permissions"]]),
        ([["nvmlDeviceGetSerial", 0], COUNT], {}, [["Missing", "NVML nvmlDeviceGetSerial: Function Not Found"],
                                                   ["said", 1]]),
        ([["nvmlNoSuch"]], {}, [["Missing", "nvidia-ml-py: module 'pynvml' has no attribute 'nvmlNoSuch'"]]),
        ([COUNT], {"script": f"import sys; sys.path[:] = {BARE!r}\n{ASK}"},
         [["Missing", "nvidia-ml-py: No module named 'pynvml'"]]),
        ([COUNT], {"gpus": 8, "chatty": 1}, [["said", 8]]),  # what the driver prints is no answer
    ])  # fmt: skip
def test_the_child_answers_each_question_or_says_why_not(
    questions: list[Any], fake: dict[str, Any], answers: list[Any], new: Path
) -> None:
    assert ask(new, *questions, **fake) == answers


def test_the_gpus_of_a_job_tell_of_its_own_processes_alone_and_of_each_value_why_it_is_not_there(new: Path) -> None:
    (_, rows), (_, others) = ask(new, ["gpusOf", 1, "4711"], ["gpusOf", 2, "9"], gpus=2, links=2, busy=0, lost=1)
    assert [row["index"] for row in rows] == [0, 1]
    assert (rows[0]["pci"], rows[0]["pids"], rows[0]["reasons"]) == ("00000000:00:00.0", [4711], 0x88)
    assert others[0]["pids"] == []
    assert rows[0]["busy_percent"]["refused"] == "Missing"
    assert rows[1]["pci"] == GONE


def test_a_file_in_the_working_directory_is_not_imported(
    new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert ask(new, COUNT, script=f"import sys; sys.path[0:1] = [{CHECKOUT!r}]\n{ASK}") == [["said", 1]]


def test_a_driver_that_is_wedged_or_kills_the_asker_is_abandoned_and_not_asked_again(new: Path) -> None:
    first, second = ask(new, COUNT, ["nvmlDeviceGetName", 0], patience_s=1, hang=1)
    assert (first[0], first) == ("TimedOut", second)
    ((kind, why),) = ask(new, COUNT, crash=1)
    assert (kind, "ended by SIGABRT" in why) == ("TimedOut", True)


def test_without_the_library_no_child_is_started() -> None:
    ((kind, why),) = ask(None, COUNT)
    if kind == "said":
        pytest.skip("this machine has a real NVML")
    assert (kind, "libnvidia-ml.so.1" in why) == ("Missing", True)


SCRIPT = """
import sys, time

def ask():
    sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "little"))

def out(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

def say(text, pause_s=0.0):
    data = len(text).to_bytes(8, "little") + text.encode()
    out(data[:12])
    time.sleep(pause_s)
    out(data[12:])

def serve():
    """


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], NvmlChild]:
    """Makes children that run a line of the test instead of NVML; libc stands in for the library."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(nvml_child, "_LIBRARY", "libc.so.6")

    def child(name: str, line: str) -> NvmlChild:
        (tmp_path / f"{name}.py").write_text(f"{SCRIPT}{line}\n")
        monkeypatch.setattr(nvml_child, "_SERVER", name)
        return NvmlChild()

    return child


def test_an_answer_in_pieces_is_put_together_and_a_refusal_keeps_the_child(
    calls: Callable[[str, str], NvmlChild],
) -> None:
    half, long = "'{\"said\": 8}', 0.1", "'{\"said\": \"' + 'x' * 500_000 + '\"}'"
    for name, said, length in (("half", half, 1), ("long", long, 500_002)):
        with contextlib.closing(calls(f"in_pieces_{name}", f"ask(); say({said}); ask()")) as child:
            assert len(child.call("nvmlDeviceGetCount", patience_s=30)) == length
    line = 'ask(); say(\'{"refused": "Failed", "why": "no"}\'); ask(); say(\'{"said": 7}\'); ask()'
    with contextlib.closing(calls("refuses", line)) as child:
        with pytest.raises(Failed, match="no"):
            child.call("nvmlDeviceGetCount", patience_s=30)
        assert child.call("nvmlDeviceGetCount", patience_s=30) == "7"


def test_whatever_the_child_does_the_call_returns_and_is_the_last(calls: Callable[[str, str], NvmlChild]) -> None:
    for number, (line, words) in enumerate((
        ("ask(); out(bytes([9, 0, 0])); time.sleep(60)", "no answer within 1 s"),
        ("ask(); out(bytes([9, 0, 0]))", "ended with code 0"),
        ("raise SystemExit(7)", "ended with code 7"),
        ("while True: out(b'x' * 4096)", "longer than 1 MiB"),
        ("ask(); say('Segmentation fault'); ask()", "invalid answer"),
        ("ask(); say('[' * 100_000); ask()", "invalid answer"),
        ('ask(); say(\'{"refused": "Exception"}\'); ask()', "invalid answer"),
        ("ask(); say('{\"refused\": []}'); ask()", "invalid answer"),
    )):  # fmt: skip
        with contextlib.closing(calls(f"misbehaves_{number}", line)) as child:
            for _ in range(2):
                with pytest.raises(TimedOut, match=words):
                    child.call("nvmlDeviceGetCount", patience_s=1 if "within" in words else 30)
