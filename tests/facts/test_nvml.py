"""GPUs, links and peers: read from boxes that a fake library shows, through the real nvidia-ml-py, and from answers."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
from conftest import answers
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.engine.collect import collect
from ncclprobe.facts import nvidia_smi, nvlink, nvml
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, PeerAccess
from ncclprobe.host import Host
from ncclprobe.host.capture import Recorder
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, ParseError, TimedOut
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from tests.each_row import each_row

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
        hot_s=0,
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
    assert (calls.total(), seen.questions) == (725, 300)


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


NO_LIBRARY = {("nvml", "nvmlDeviceGetCount"): Missing("libnvidia-ml.so.1: not there")}
SMI = {("run", "nvidia-smi", "--version"): "NVML version : 570.86\nCUDA Version        : 12.8\n"}
HEALTHY = {
    "product_name": "NVIDIA H200",
    "uuid": "GPU-0",
    "pci": "<pci_bus_id>00000000:07:00.0</pci_bus_id><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen>"
    "<current_link_gen>1</current_link_gen></pcie_gen><link_widths><max_link_width>16x</max_link_width>"
    "<current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info><replay_counter>3</replay_counter>",
    "persistence_mode": "Enabled",
    "mig_mode": "<current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig>",
    "clocks_event_reasons": "<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>"
    "<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>",
    "fb_memory_usage": "<total>143771 MiB</total><used>600 MiB</used>",
    "bar1_memory_usage": "<total>262144 MiB</total>",
    "compute_mode": "Default",
    "ecc_mode": "<current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc>",
    "ecc_errors": "<volatile><sram_correctable>7</sram_correctable><sram_uncorrectable_parity>0"
    "</sram_uncorrectable_parity><dram_uncorrectable>0</dram_uncorrectable></volatile><aggregate>"
    "<sram_uncorrectable_parity>1</sram_uncorrectable_parity><sram_uncorrectable_secded>2</sram_uncorrectable_secded>"
    "<dram_uncorrectable>4</dram_uncorrectable><sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate>",
    "remapped_rows": "<remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>",
    "temperature": "<gpu_temp>31 C</gpu_temp><gpu_temp_slow_threshold>92 C</gpu_temp_slow_threshold>",
    "gpu_power_readings": "<current_power_limit>200.00 W</current_power_limit>"
    "<default_power_limit>700.00 W</default_power_limit>",
    "applications_clocks": "<graphics_clock>1980 MHz</graphics_clock>",
    "fabric": "<state>Completed</state><status>Success</status><cliqueId>7</cliqueId><clusterUuid>ab-cd</clusterUuid>"
    "<health><bandwidth>Full</bandwidth><route_unhealthy>False</route_unhealthy></health>",
    "processes": "<process_info><type>C</type><used_memory>512 MiB</used_memory></process_info>"
    "<process_info><type>G</type><used_memory>4 MiB</used_memory></process_info>",
}
"""One GPU of ``nvidia-smi -q -x``: names and units as nvsmi_device_v12.dtd and nvidia-smi(1) have them."""


def xml(*gpus: dict[str, str]) -> str:
    listed = ["".join(f"<{name}>{text}</{name}>" for name, text in gpu.items()) for gpu in gpus]
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
        f"<driver_version>570.86.15</driver_version>{''.join(f'<gpu>{gpu}</gpu>' for gpu in listed)}</nvidia_smi_log>"
    )


def by_smi(text: str, compute: Any = "9.0\n") -> Any:
    return look(answers(NO_LIBRARY | SMI | {nvidia_smi.ASK: text, nvidia_smi.ASK_COMPUTE: compute})).gpus


def one(**changed: str) -> Gpu:
    gpu: Gpu = by_smi(xml(HEALTHY | changed)).all[0]
    return gpu


def test_nvidia_smi_tells_all_but_the_near_processors_where_nvml_cannot_be_asked() -> None:
    gpus = by_smi(xml(HEALTHY, HEALTHY), "9.0\n9.0\n")
    assert (len(gpus.all), gpus.driver, gpus.cuda, gpus.instead_of_nvml) == (
        *(2, "570.86.15", (12, 8), "libnvidia-ml.so.1: not there"),
    )
    assert gpus.all[1] == Gpu(
        index=1,
        name="NVIDIA H200",
        uuid="GPU-0",
        pci="00000000:07:00.0",
        memory_bytes=143771 << 20,
        memory_used_bytes=600 << 20,
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
        ecc_ever=7,
        sram_worn=False,
        remap_pending=False,
        remap_failed=False,
        throttle=("gpu-idle",),
        processes=(512 << 20,),
        fabric=GpuFabric("completed", cluster="ab-cd", clique=7, troubles=()),
        compute=(9, 0),
        power_limit_W=200,
        power_default_W=700,
        clock_MHz=1980,
        temperature_C=31,
        slowdown_C=92,
        pcie_replays=3,
    )


def test_older_drivers_have_other_names_for_limits_reasons_and_errors() -> None:
    old = {name: text for name, text in HEALTHY.items() if name not in ("gpu_power_readings", "clocks_event_reasons")}
    old |= {
        "power_readings": "<enforced_power_limit>250.00 W</enforced_power_limit>",
        "clocks_throttle_reasons": "<clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>"
        "<clocks_throttle_reason_display_clocks_setting>Active</clocks_throttle_reason_display_clocks_setting>",
        "ecc_errors": "<volatile><double_bit><total>5</total></double_bit></volatile>",
    }
    gpu = by_smi(xml(old), Failed('Field "compute_cap" is not a valid field to query.')).all[0]
    assert (gpu.power_limit_W, gpu.throttle) == (250, ("hw-slowdown", "display-clock-setting"))
    assert (gpu.ecc_since_reset, gpu.compute.refused, gpu.ecc_ever.refused) == (5, "Failed", "Missing")


def test_what_nvidia_smi_has_no_value_for_is_absent_in_nvmls_words() -> None:
    gpu = one(mig_mode="<current_mig>N/A</current_mig>", remapped_rows="N/A", fabric="<state>N/A</state>")
    assert nvml.unsupported(gpu.mig)
    assert nvml.unsupported(gpu.fabric)
    assert gpu.mig_pending.refused == gpu.remap_pending.refused == "Missing"  # type: ignore[union-attr]
    assert one(applications_clocks="<graphics_clock>9 GHz</graphics_clock>").clock_MHz.refused == "ParseError"  # type: ignore[union-attr]


@each_row("said", ["GPU is lost", "[GPU requires reset]"])
def test_a_gpu_that_nvidia_smi_calls_lost_is_lost(said: str) -> None:
    gpu = one(fb_memory_usage=f"<total>{said}</total>")
    assert gpu.lost == f"nvidia-smi fb_memory_usage/total: {said.strip('[]')}"


def test_a_fabric_that_failed_or_is_unwell_says_so() -> None:
    failed = one(fabric="<state>Completed</state><status>Failure</status>").fabric
    assert isinstance(failed, GpuFabric)
    assert (failed.status, isinstance(failed.troubles, Absent)) == (999, True)
    health = "<health><bandwidth>Degraded</bandwidth><route_unhealthy>True</route_unhealthy></health>"
    assert one(fabric=f"<state>In Progress</state><status>N/A</status>{health}").fabric == GpuFabric(
        "in-progress", troubles=("degraded-bandwidth", "route-unhealthy")
    )


@each_row(
    "text", ["", "No devices were found", xml(), "<a/>", "<nvidia_smi_log><gpu>", f'<!ENTITY a "b">{xml(HEALTHY)}']
)
def test_what_nvidia_smi_does_not_tell_plainly_is_nvmls_refusal(text: str) -> None:
    assert by_smi(text) == Absent("libnvidia-ml.so.1: not there", "Missing")


@given(st.text(max_size=200), st.sampled_from(sorted(HEALTHY)))
def test_no_text_in_place_of_a_value_ends_the_reader(text: str, name: str) -> None:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    with contextlib.suppress(ParseError):
        _, (gpu,) = "", nvidia_smi.log(xml(HEALTHY | {name: escaped})).findall("gpu")
        assert nvml._parse_smi_gpu(0, gpu, (9, 0)).index == 0


def test_the_cuda_version_is_read_in_both_spellings() -> None:
    assert nvidia_smi.cuda_version("CUDA Version        : 12.4\n") == (12, 4)
    umd = 'CUDA version        : Deprecated, see "CUDA UMD version" instead\nCUDA UMD version    : 13.3\n'
    assert nvidia_smi.cuda_version(umd) == (13, 3)


def test_a_driver_that_does_not_answer_is_no_lost_gpu() -> None:
    late = TimedOut("NVML nvmlDeviceGetName: no answer within 60 s")
    assert look(answers(ANSWERS | {("nvml", "nvmlDeviceGetName", 1): late})).gpus == Absent(str(late), "TimedOut")


@each_row("refusal", [Denied("no"), Missing("no"), Failed("no")])
def test_a_refused_field_keeps_its_reason(refusal: HostError) -> None:
    gpus = look(answers(ANSWERS | {("nvml", "nvmlDeviceGetMemoryInfo", 0): refusal})).gpus
    assert gpus.all[0].memory_bytes == gpus.all[0].memory_used_bytes == Absent("no", type(refusal).__name__)


@each_row(
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


@each_row(
    ("values", "understood"), [("[2]", True), ("[100000000]", False), ("[]", False), ("[1, 1]", False), ("7", False)]
)
def test_a_count_of_links_is_one_number_of_links(values: str, understood: bool) -> None:
    said = ANSWERS | {("nvml", "nvmlDeviceGetFieldValues", n, "91", "0"): values for n in (0, 1)}
    assert isinstance(look(answers(said)).links_of(0), tuple) == understood


@each_row(
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


def test_the_fake_library_tells_events_of_the_gpus_and_kinds_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text("1 8 13\n")  # before anybody listened
    said = fake_nvml.run(fake_nvml.build(tmp_path), EVENTS, str(path), gpus=2, events=path)
    assert said.split("\n") == ["8 79 1", "no more", ""]


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


def test_xids_are_told_from_the_first_question_on_each_once(new: Path, tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text("1 8 13\n")
    said = fake_nvml.run(new, XIDS, str(path), gpus=2, events=path)
    assert said.split("\n")[:2] == ["()", "((0, '31'), (1, '79')) ()"]


def test_xids_that_nvml_does_not_tell_are_absent(new: Path, tmp_path: Path) -> None:
    said = fake_nvml.run(new, XIDS, str(tmp_path / "events"), gpus=2, refuse="nvmlDeviceRegisterEvents=3")
    assert [line[:7] for line in said.splitlines()] == ["Absent(", "Absent("]
    assert said.count("Absent(") == 3  # not only the first time: to be refused is not to have heard nothing


def test_a_storm_of_one_xid_hides_no_other(new: Path, tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.touch()
    script = XIDS.replace("1 2 1", "\\n".join(["0 8 13"] * 1000))
    told = fake_nvml.run(new, script, str(path), gpus=2, events=path).splitlines()[1]
    assert (told.count("'13'"), told.count("'79'")) == (64, 1)


def test_of_a_storm_that_was_not_read_to_its_end_nothing_is_known(new: Path, tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.touch()
    script = XIDS.replace('.write("', '.write("0 8 13\\n" * (1 << 17) + "')
    told = fake_nvml.run(new, script, str(path), gpus=2, events=path).splitlines()[1]
    assert told.startswith("Absent(why='NVML xids: more than 131072 at once")


def test_what_a_gpu_told_before_it_was_lost_is_heard(new: Path, tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.touch()
    script = XIDS.replace("print(xids(host))", 'print(host.ask("nvml", "nvmlDeviceGetCount"))', 1)
    script = script.replace("print(xids(host), xids(host))", "\n".join(["print(xids(host))"] * 2))
    script = script.replace("with open", "xids(host)\nwith open")
    lost = {"refuse": "nvmlEventSetWait_v2=15", "gpus": 2, "events": path}
    first, said, after = fake_nvml.run(new, script, str(path), **lost).splitlines()
    assert (first, said) == ("2", "((0, '31'), (1, '79'))")
    assert after.startswith("Absent(")
