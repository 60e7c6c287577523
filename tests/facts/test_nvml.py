"""GPUs, links and peers: read from boxes that a fake library shows, through the real nvidia-ml-py, and from answers."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
from conftest import answers
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.engine.collect import collect
from ncclprobe.errors import Denied, Failed, HostError, Missing, ParseError, TimedOut
from ncclprobe.facts import nvidia_smi, nvlink, nvml
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, PeerAccess
from ncclprobe.host import Host
from ncclprobe.host.capture import Recorder
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

COLLECTORS = [nvml.nvml, nvlink.nvlink, nvml.nvml_p2p]
HGX = {"gpus": 8, "links": 18, "switched": 1}


class Box(Struct, frozen=True):
    """What the collectors made of a machine, and how many questions that took."""

    gpus: Any
    links: Any
    peers: Any
    questions: int

    def links_of(self, gpu: int) -> Any:
        assert isinstance(self.links, NvLinks)
        return self.links.gpus[gpu]


def look(host: Host) -> Box:
    recorder = Recorder(host)
    facts = collect(recorder, COLLECTORS)
    return Box(facts[Gpus], facts[NvLinks], facts[PeerAccess], len(recorder.answers))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("old"), "-DOLD")


@pytest.fixture
def box(new: Path, tmp_path: Path) -> Callable[..., Box]:
    """Shows the box that the settings describe."""

    def show(library: Path = new, **fake: object) -> Box:
        return look(fake_nvml.capture(library, tmp_path, **fake))

    return show


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_a_healthy_box_leaves_no_field_unknown(box: Callable[..., Box], count: int) -> None:
    seen = box(gpus=count, links=18, switched=1)
    assert (len(seen.gpus.all), len(seen.links.gpus), len(seen.peers.read)) == (count, count, count * (count - 1))
    assert not [gpu for gpu in seen.gpus.all if "Absent" in repr(gpu)]
    for links in seen.links.gpus:
        assert [link.state for link in links] == ["active"] * 18
        assert {(link.speed_MBps, link.version, link.remote) for link in links} == {(26562, 7, "switch")}
    assert set(seen.peers.read.values()) | set(seen.peers.nvlink.values()) == ({"OK"} if count > 1 else set())


def test_a_gpu_in_full(box: Callable[..., Box]) -> None:
    gpus = box(**HGX).gpus
    assert (gpus.driver, gpus.cuda, gpus.nvml) == ("570.86.15", (12, 8), "12.570.86.15")
    assert gpus.all[5] == Gpu(
        index=5,
        name="Fake H200",
        uuid="GPU-00000000-0000-0000-0000-000000000005",
        pci="00000000:05:00.0",
        memory_bytes=141 << 30,
        memory_used_bytes=1 << 20,
        bar1_bytes=256 << 30,
        pcie_generation=1,
        pcie_width=16,
        pcie_max_generation=5,
        pcie_max_width=16,
        compute_mode="default",
        mig=False,
        mig_pending=False,
        persistence=True,
        ecc=True,
        ecc_pending=True,
        ecc_since_reset=0,
        ecc_ever=0,
        sram_worn=False,
        remap_pending=False,
        remap_failed=False,
        throttle=("gpu-idle",),
        processes=(),
        cpus=tuple(range(56, 64)),
        numa_nodes=(1,),
        fabric=GpuFabric("completed", cluster="00000000-0000-0000-0000-000000000000", troubles=()),
        compute=(9, 0),
        power_limit_W=700,
        power_default_W=700,
        clock_MHz=1980,
        temperature_C=31,
        slowdown_C=92,
        pcie_replays=0,
    )


def test_counters_belong_to_their_gpu_and_link(box: Callable[..., Box]) -> None:
    seen = box(gpus=4, links=18, switched=1)
    assert [[link.replays for link in links] for links in seen.links.gpus] == [
        [gpu * 100 + link for link in range(18)] for gpu in range(4)
    ]


def test_bridged_gpus_know_each_other_by_address(box: Callable[..., Box]) -> None:
    seen = box(gpus=2, links=4)
    ends = [{(link.remote, link.remote_pci) for link in links} for links in seen.links.gpus]
    assert ends == [{("gpu", seen.gpus.all[1].pci)}, {("gpu", seen.gpus.all[0].pci)}]


def test_a_link_that_is_down_is_seen_and_its_remote_not_asked(box: Callable[..., Box]) -> None:
    links = box(**HGX, down="3:5").links_of(3)
    assert [link.link for link in links if link.state != "active"] == [5]
    assert (links[5].state, links[5].remote_pci) == ("inactive", nvml.NOT_ASKED)
    assert nvml.unsupported(links[5].speed_MBps)
    assert links[4].remote_pci != links[6].remote_pci


def test_nvlink_5_counts_recoveries_and_effective_errors_instead(box: Callable[..., Box]) -> None:
    link = box(**HGX, nvlink5=1).links_of(2)[17]
    assert (link.recoveries, link.effective_errors, link.speed_MBps) == (217, 217, 53125)
    assert nvml.unsupported(link.replays)


def test_gpus_without_nvlink_are_known_to_have_no_links(box: Callable[..., Box]) -> None:
    seen = box(gpus=8)
    assert seen.links == NvLinks(((),) * 8)
    assert (seen.peers.read[0, 1], seen.peers.nvlink[0, 1]) == ("OK", "NS")


@pytest.mark.parametrize("how", ["lost", "lost_late"])
def test_a_lost_gpu_hides_no_other(box: Callable[..., Box], how: str) -> None:
    seen = box(**HGX, **{how: 3})
    assert [gpu.index for gpu in seen.gpus.all if gpu.lost] == [3]
    assert seen.gpus.all[3].lost.endswith("GPU is lost")
    assert [isinstance(links, Absent) for links in seen.links.gpus] == [gpu == 3 for gpu in range(8)]
    assert len(seen.peers.read) == 7 * 6
    assert not [pair for pair in seen.peers.read if 3 in pair]


def test_a_gpu_lost_to_all_but_its_name_is_lost(box: Callable[..., Box]) -> None:
    gpu = box(gpus=1, refuse="nvmlDeviceGetMemoryInfo=15").gpus.all[0]
    assert (gpu.name, gpu.lost) == ("Fake H200", "NVML nvmlDeviceGetMemoryInfo: GPU is lost")


def test_an_old_library_is_asked_the_old_way(box: Callable[..., Box], old: Path) -> None:
    seen = box(old, gpus=8, links=12, switched=1, down="0:7")
    gpu, links = seen.gpus.all[1], seen.links_of(1)
    assert (gpu.throttle, gpu.fabric.state) == (("gpu-idle",), "completed")
    assert gpu.fabric.troubles.refused == "Missing"
    assert gpu.numa_nodes == Absent("NVML nvmlDeviceGetMemoryAffinity: Function Not Found", "Missing")
    assert [link.replays for link in links] == [100 + n for n in range(12)]
    assert {(n.speed_MBps, n.version, n.recoveries, n.crc_errors, n.remote) for n in links} == {
        (25781, 5, 0, 0, "switch")
    }
    assert [link.state for link in seen.links_of(0)] == ["active"] * 7 + ["inactive"] + ["active"] * 4


def test_no_permission_for_one_function_is_denied_for_its_fields(box: Callable[..., Box]) -> None:
    gpu = box(gpus=1, refuse="nvmlDeviceGetEccMode=4,nvmlDeviceGetMigMode=3").gpus.all[0]
    assert gpu.ecc == gpu.ecc_pending == Absent("NVML nvmlDeviceGetEccMode: Insufficient Permissions", "Denied")
    assert nvml.unsupported(gpu.mig)
    assert not nvml.unsupported(gpu.ecc)
    assert (gpu.lost, gpu.persistence) == ("", True)


@pytest.mark.parametrize(("code", "kind"), [(4, "Denied"), (9, "Failed"), (18, "Failed")])
def test_a_library_that_refuses_itself_leaves_every_fact_absent(box: Callable[..., Box], code: int, kind: str) -> None:
    seen = box(error=code)
    assert [fact.refused for fact in (seen.gpus, seen.links, seen.peers)] == [kind] * 3
    assert seen.questions == 2, "nvidia-smi is asked, too"


def test_links_that_cannot_be_counted_are_not_known_to_be_none(box: Callable[..., Box]) -> None:
    assert box(**HGX, refuse="nvmlDeviceGetFieldValues=999").links_of(0) == Absent(
        "NVML nvmlDeviceGetFieldValues: Unknown Error", "Failed"
    )


def test_work_that_is_under_way_is_seen_without_a_name(box: Callable[..., Box], tmp_path: Path) -> None:
    gpus = box(gpus=2, busy=1).gpus.all
    assert [gpu.processes for gpu in gpus] == [(), (5 << 30,)]
    assert gpus[1].throttle == ("hw-slowdown", "hw-power-brake-slowdown")
    assert [gpu.power_limit_W for gpu in gpus[:2]] == [700, 200]
    assert gpus[1].memory_used_bytes == 5 << 30
    assert "4711" not in (tmp_path / "fake.jsonl").read_text()


def test_a_multi_node_fabric_has_a_cluster_and_a_clique(box: Callable[..., Box]) -> None:
    fabric = box(gpus=4, links=18, switched=1, cluster=1).gpus.all[0].fabric
    assert (fabric.cluster, fabric.clique) == ("abababab-abab-abab-abab-abababababab", 32766)


@pytest.mark.parametrize(("state", "word"), [(0, "not-supported"), (1, "not-started"), (2, "in-progress")])
def test_a_fabric_that_is_not_ready_says_so(box: Callable[..., Box], state: int, word: str) -> None:
    assert box(**HGX, fabric=state).gpus.all[0].fabric.state == word


def test_eight_gpus_with_18_links_take_this_many_calls_and_questions(box: Callable[..., Box], tmp_path: Path) -> None:
    seen = box(**HGX, log=tmp_path / "log")
    calls = Counter((tmp_path / "log").read_text().split())
    assert calls["nvmlInitWithFlags"] == 1
    assert calls["nvmlDeviceGetHandleByIndex_v2"] == 8
    assert calls["nvmlDeviceGetFieldValues"] == 16
    assert calls["nvmlDeviceGetP2PStatus"] == 3 * 8 * 7
    assert (calls.total(), seen.questions) == (717, 292)


def test_uncorrectable_errors_of_memory_are_counted(box: Callable[..., Box], old: Path) -> None:
    gpus = box(gpus=2, ecc=1).gpus.all
    assert [(gpu.ecc_since_reset, gpu.ecc_ever, gpu.sram_worn) for gpu in gpus] == [(0, 0, False), (3, 5, True)]
    before = box(old, gpus=1, ecc=0).gpus.all[0]
    assert (before.ecc_since_reset, before.sram_worn.refused) == (3, "Missing")


ANSWERS: dict[Any, Any] = {
    ("nvml", "nvmlDeviceGetCount"): "2",
    ("nvml", "nvmlSystemGetCudaDriverVersion"): "12080",
    ("nvml", "nvmlSystemGetDriverVersion"): '"570.86.15"',
    **{("nvml", "nvmlDeviceGetName", n): '"NVIDIA H200"' for n in (0, 1)},
    **{("nvml", "nvmlDeviceGetUUID", n): f'"GPU-{n}"' for n in (0, 1)},
    **{("nvml", "nvmlDeviceGetPciInfo", n): {"busId": f"00000000:0{n}:00.0"} for n in (0, 1)},
}


def test_a_capture_of_an_older_tool_lacks_fields_and_still_has_gpus() -> None:
    gpus = look(answers(ANSWERS)).gpus
    assert [(gpu.name, gpu.lost) for gpu in gpus.all] == [("NVIDIA H200", "")] * 2
    assert gpus.all[0].ecc.refused == gpus.nvml.refused == "NotCaptured"


FULL, BRIEF = (f"--query-gpu={','.join(fields)}" for fields in (nvidia_smi.FIELDS, nvidia_smi.FIELDS[:8]))
ROW = "0, NVIDIA H200, GPU-0, 00000000:07:00.0, 570.86.15, 143771, 600, Default"
REST = ", Enabled, 9.0, Disabled, Disabled, Enabled, Enabled, 0, [N/A], 1, 5, 16, 16"
NO_LIBRARY = {("nvml", "nvmlDeviceGetCount"): Missing("libnvidia-ml.so.1: not there")}
SMI = {("run", "nvidia-smi", "--version"): "NVML version : 570.86\nCUDA Version        : 12.8\n"}


def by_smi(**said: Any) -> Any:
    asked = {("run", "nvidia-smi", question, "--format=csv,noheader,nounits"): text for question, text in said.items()}
    return look(answers(NO_LIBRARY | SMI | asked)).gpus


def test_nvidia_smi_is_asked_where_nvml_cannot_be() -> None:
    gpus = by_smi(**{FULL: f"{ROW}{REST}\n{ROW.replace('0, NV', '1, NV', 1)}{REST}\n"})
    assert (len(gpus.all), gpus.driver, gpus.cuda, gpus.instead_of_nvml) == (
        *(2, "570.86.15", (12, 8)),
        "libnvidia-ml.so.1: not there",
    )
    gpu = gpus.all[0]
    assert (gpu.name, gpu.pci, gpu.memory_bytes, gpu.compute) == (
        "NVIDIA H200",
        "00000000:07:00.0",
        143771 << 20,
        (9, 0),
    )
    assert (gpu.mig, gpu.mig_pending, gpu.ecc, gpu.ecc_since_reset, gpu.persistence) == (False, False, True, 0, True)
    assert (gpu.pcie_generation, gpu.pcie_max_generation, gpu.pcie_max_width) == (1, 5, 16)
    assert nvml.unsupported(gpu.ecc_ever)


def test_an_older_nvidia_smi_is_asked_for_less_and_a_lost_gpu_is_lost() -> None:
    gpus = by_smi(**{FULL: Failed('Field "compute_cap" is not a valid field to query.'), BRIEF: ROW})
    assert (gpus.all[0].memory_used_bytes, gpus.all[0].compute.refused) == (600 << 20, "Failed")
    gone = by_smi(**{FULL: f"{ROW}{REST}".replace("143771", "[GPU is lost]")})
    assert gone.all[0].lost == "nvidia-smi memory.total: GPU is lost"


@pytest.mark.parametrize("text", ["", "No devices were found", ROW, f"{ROW}{REST}, 7", f"x{ROW}{REST}"])
def test_what_nvidia_smi_does_not_tell_plainly_is_nvmls_refusal(text: str) -> None:
    assert by_smi(**{FULL: text}) == Absent("libnvidia-ml.so.1: not there", "Missing")


def test_the_cuda_version_is_read_in_both_spellings() -> None:
    assert nvidia_smi.cuda_version("CUDA Version        : 12.4\n") == (12, 4)
    umd = 'CUDA version        : Deprecated, see "CUDA UMD version" instead\nCUDA UMD version    : 13.3\n'
    assert nvidia_smi.cuda_version(umd) == (13, 3)


def test_a_driver_that_does_not_answer_is_no_lost_gpu() -> None:
    late = TimedOut("NVML nvmlDeviceGetName: no answer within 60 s")
    assert look(answers(ANSWERS | {("nvml", "nvmlDeviceGetName", 1): late})).gpus == Absent(str(late), "TimedOut")


@pytest.mark.parametrize("refusal", [Denied("no"), Missing("no"), Failed("no")])
def test_a_refused_field_keeps_its_reason(refusal: HostError) -> None:
    gpus = look(answers(ANSWERS | {("nvml", "nvmlDeviceGetMemoryInfo", 0): refusal})).gpus
    assert gpus.all[0].memory_bytes == gpus.all[0].memory_used_bytes == Absent("no", type(refusal).__name__)


@pytest.mark.parametrize(
    ("function", "answer", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", {"total": "1"}, "memory_bytes"),
        ("nvmlDeviceGetRemappedRows", [0, 0], "remap_failed"),
        ("nvmlDeviceGetMigMode", [True], "mig"),
        ("nvmlDeviceGetComputeMode", 9, "compute_mode"),
        ("nvmlDeviceGetComputeMode", -1, "compute_mode"),
        ("nvmlDeviceGetCudaComputeCapability", [9], "compute"),
        ("nvmlDeviceGetPersistenceMode", None, "persistence"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "1", "throttle"),
        ("nvmlDeviceGetEnforcedPowerLimit", [700000], "power_limit_W"),
        ("nvmlDeviceGetGpuFabricInfoV", {"clusterUuid": 10**12}, "fabric"),
        ("nvmlDeviceGetGpuFabricInfoV", {"clusterUuid": [256] * 16}, "fabric"),
    ],
)
def test_an_answer_that_is_not_understood_costs_one_field(function: str, answer: object, field: str) -> None:
    gpu = look(answers(ANSWERS | {("nvml", function, 0): json.dumps(answer)})).gpus.all[0]
    assert (getattr(gpu, field).refused, gpu.lost) == ("ParseError", "")


@pytest.mark.parametrize(
    ("values", "understood"), [("[2]", True), ("[100000000]", False), ("[]", False), ("[1, 1]", False), ("7", False)]
)
def test_a_count_of_links_is_one_number_of_links(values: str, understood: bool) -> None:
    said = ANSWERS | {("nvml", "nvmlDeviceGetFieldValues", n, "91", "0"): values for n in (0, 1)}
    assert isinstance(look(answers(said)).links_of(0), tuple) == understood


@pytest.mark.parametrize(
    ("mask", "troubles"),
    [
        (0, ()),
        (0x1AA, ()),
        (0x001, ("degraded-bandwidth",)),
        (0x154, ("route-recovery", "route-unhealthy", "access-timeout-recovery")),
        (0x400, ("incorrect-configuration-4",)),
    ],
)
def test_the_health_of_a_fabric_is_a_mask(mask: int, troubles: tuple[str, ...]) -> None:
    said = {"clusterUuid": [0] * 16, "status": 0, "cliqueId": 0, "state": 3, "healthMask": mask}
    gpus = look(answers(ANSWERS | {("nvml", "nvmlDeviceGetGpuFabricInfoV", 0): json.dumps(said)})).gpus
    assert gpus.all[0].fabric.troubles == troubles


@given(st.lists(st.sets(st.integers(0, 63)), max_size=4))
def test_a_set_in_words_has_its_members(sets: list[set[int]]) -> None:
    words = [sum(1 << bit for bit in bits) for bits in sets]
    assert nvml.members(words) == tuple(64 * place + bit for place, bits in enumerate(sets) for bit in sorted(bits))


class Babble:
    """A machine whose every answer is drawn."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw

    def ask(self, *question: str | int) -> str:
        return self._draw()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["refused", "why", "total", "busId", "state", "clusterUuid"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)


@given(st.data())
def test_whatever_the_answers_are_each_fact_is_known_or_says_why(data: st.DataObject) -> None:
    said = JSON.map(json.dumps) | st.text(max_size=8) | st.just("2") | st.just('"text"') | st.just('{"busId": "0"}')
    host = Babble(lambda: data.draw(said))
    for collector, given_facts in ((nvml.nvml, ()), (nvlink.nvlink, (PAIR,)), (nvml.nvml_p2p, (PAIR,))):
        with contextlib.suppress(HostError, ParseError):
            assert isinstance(collector.run(host, *given_facts), Gpus | NvLinks | PeerAccess)


PAIR = Gpus((Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200")), "570.86.15", (12, 8))
