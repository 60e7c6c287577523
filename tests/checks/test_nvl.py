"""NVLink: who is short of links, who only looks so, and what the fabric says."""

import pytest

from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.nvl import (
    CLUSTER,
    FULL,
    H200S,
    LINKS,
    METAL,
    SHORT,
    TRAY,
    UNSAID,
    WAITING,
    fabric,
    links,
    links_of,
    rate,
)
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.expect.tables.gpus import nvlink_products
from ncclprobe.facts import nvlink
from ncclprobe.facts.kernel_log import KernelLog
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import ExitCode, Finding, Severity
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases.nvl import GUEST
from tests.each_row import each_row


def named(name: str, count: int) -> Gpus:
    return box(*(replace(HEALTHY, name=name) for _ in range(count)))


def grave(findings: list[Finding]) -> dict[str, Severity]:
    return {f.subject: f.severity for f in findings if f.severity is not Severity.NOTE}


def judged(gpus: Gpus, *rows: tuple[NvLink, ...] | Absent, machine: object = METAL) -> dict[str, Severity]:
    return grave(list(links.run(gpus, NvLinks(rows), UNSAID, machine, UNSAID)))


def test_one_link_down_names_the_gpu_and_the_link() -> None:
    (finding,) = links.run(H200S, NvLinks((FULL, SHORT, FULL)), UNSAID, METAL, UNSAID)
    assert (finding.subject, finding.severity, finding.blame) == ("GPU1", Severity.FAIL, "link")
    assert finding.message == "17 NVLinks are up, link 17 down; its siblings have 18"


def test_every_link_of_every_gpu_down_is_found_without_a_healthy_sibling() -> None:
    """leptonai/gpud#1085."""
    down = links_of(0, 18, speed=53125)
    assert judged(named("NVIDIA B200", 8), *[down] * 8) == {f"GPU{n}": Severity.FAIL for n in range(8)}
    assert len(judged(named("NVIDIA B200", 8), *[down] * 8, machine=GUEST)) == 8


@each_row("name", ["NVIDIA A100 80GB PCIe", "NVIDIA A30", "NVIDIA H100 NVL", "NVIDIA RTX A6000"])
@each_row("up", [(4, 4), (0, 0), (4, 0), (0, 4)])
def test_bridges_may_be_few_and_need_not_join_all(name: str, up: tuple[int, int]) -> None:
    rows = [links_of(n, 18 - n, to="gpu") for n in (up[0], up[0], up[1], up[1])]
    assert judged(named(name, 4), *rows) == {}


def test_a_bridge_that_carries_less_than_the_other_pairs_is_a_warning() -> None:
    rows = [links_of(n, 12 - n, to="gpu") for n in (12, 12, 12, 11)]
    assert judged(named("NVIDIA A100 80GB PCIe", 4), *rows) == {"GPU3": Severity.WARN}


def test_a_product_that_nobody_listed_is_judged_by_its_siblings() -> None:
    gpus = named("NVIDIA H400", 3)
    assert judged(gpus, FULL, FULL, SHORT) == {"GPU2": Severity.FAIL}
    assert judged(gpus, SHORT, SHORT, SHORT) == {}
    bridged = [links_of(4, to="gpu"), links_of(4, to="gpu"), links_of(0, 4, to="gpu")]
    assert judged(gpus, *bridged) == {}


def test_an_ambiguous_name_is_not_in_the_table() -> None:
    assert "NVIDIA H100" not in nvlink_products()
    assert judged(named("NVIDIA H100", 4), *[links_of(12, 6)] * 4) == {}


def test_different_products_are_not_siblings() -> None:
    gpus = box(HEALTHY, replace(HEALTHY, name="NVIDIA L40S"))
    assert judged(gpus, FULL, ()) == {}


@each_row("count", [1, 2, 4])
def test_part_of_a_board_in_a_guest_may_have_fewer_links(count: int) -> None:
    assert judged(named("NVIDIA A100-SXM4-80GB", count), *[links_of(6, 6)] * count, machine=GUEST) == {}


def test_grace_alone_has_nobody_to_be_linked_to() -> None:
    assert judged(named("NVIDIA GH200 480GB", 1), links_of(0, 18)) == {}
    assert set(judged(named("NVIDIA GH200 480GB", 4), *[links_of(0, 18)] * 4).values()) == {Severity.WARN}


@each_row("state", ["sleep", "traffic-disabled"])
def test_a_link_that_rests_is_not_down(state: str) -> None:
    resting = links_of(17, 1, state)  # type: ignore[arg-type]
    findings = list(links.run(H200S, NvLinks((resting,) * 3), UNSAID, METAL, UNSAID))
    assert {f.severity for f in findings} == {Severity.NOTE}


def test_the_version_that_nvml_gives_is_not_judged() -> None:
    """H100s have been seen to give the 7 of NVLink 5."""
    odd = tuple(replace(link, version=7) for link in FULL)
    assert judged(named("NVIDIA H100 80GB HBM3", 2), odd, FULL) == {}


def test_a_gpu_split_by_mig_shows_no_links_and_is_left_out() -> None:
    split = replace(HEALTHY, mig=True)
    assert judged(box(split, HEALTHY), (), FULL) == {}


def test_a_lost_gpu_hides_neither_itself_nor_the_others() -> None:
    found = list(links.run(H200S, NvLinks((Absent("GPU is lost"), FULL, SHORT)), UNSAID, METAL, UNSAID))
    assert {f.subject: f.severity for f in found} == {"GPU2": Severity.FAIL, "GPU0": Severity.NOTE}
    with pytest.raises(Unlearned):
        list(links.run(H200S, NvLinks((Absent("GPU is lost"),) * 3), UNSAID, METAL, UNSAID))


def test_speeds_that_nobody_tells_do_not_pass() -> None:
    silent = tuple(replace(link, speed_MBps=Absent("Not Supported")) for link in FULL)
    with pytest.raises(Unlearned):
        list(rate.run(H200S, NvLinks((silent,) * 3), UNSAID))
    (finding,) = rate.run(H200S, NvLinks((silent, FULL, FULL)), UNSAID)
    assert (finding.severity, finding.subject) == (Severity.NOTE, "GPU0")


@each_row(
    ("name", "speed"),
    [("Tesla V100-SXM2-32GB", 25781), ("NVIDIA A100-SXM4-80GB", 25000), ("NVIDIA B200", 53125)],
)
def test_raw_and_payload_rates_are_both_right(name: str, speed: int) -> None:
    row = links_of(nvlink_products()[name].nvlinks, speed=speed)
    assert list(rate.run(named(name, 2), NvLinks((row, row)), UNSAID)) == []


A100, BRIDGED = "NVIDIA A100-SXM4-80GB", "NVIDIA RTX A6000"


def printed(name: str, active: int, speed: str = "25 GB/s", gpu: int = 0, links_: int = 12, uuid: str = "GPU-1") -> str:
    """What `nvidia-smi nvlink -s` prints of one GPU, of whose links so many are active."""
    states = (f"\t Link {n}: {speed if n < active else '<inactive>'}\n" for n in range(links_))
    return f"GPU {gpu}: {name} (UUID: {uuid})\n{''.join(states)}"


IDLE = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
FOUR = "".join(printed(A100, 12, gpu=n) for n in range(4))
PAIR = "".join(printed(BRIDGED, 4, "14.062 GB/s", gpu=n, links_=4) for n in range(2))


@each_row(
    ("text", "expected"),
    [
        (printed(A100, 12, gpu=7), {}),
        (FOUR, {}),
        (FOUR.replace("GPU-1", "GPU-redacted"), {}),
        (FOUR + printed(A100, 0, gpu=6, links_=0) + IDLE, {"GPU6": Severity.FAIL}),
        (PAIR, {}),
        (PAIR + printed(BRIDGED, 0, gpu=2, links_=0) + IDLE, {}),
        ("", {}),  # a part without NVLink: no output at all
    ],
)
def test_what_nvidia_smi_printed_is_judged_where_nvml_does_not_tell(text: str, expected: dict[str, Severity]) -> None:
    status = nvlink.parse(text)
    assert grave(list(links.run(UNSAID, UNSAID, status, UNSAID, UNSAID))) == expected
    assert grave(list(rate.run(UNSAID, UNSAID, status))) == {}


def test_the_bridged_machines_third_gpu_is_at_least_noted() -> None:
    text = PAIR + printed(BRIDGED, 0, gpu=2, links_=0) + IDLE
    findings = list(links.run(UNSAID, UNSAID, nvlink.parse(text), UNSAID, UNSAID))
    assert [f.subject for f in findings] == ["GPU2"]


def test_a_fabric_in_progress_is_waited_for_and_one_that_failed_is_not() -> None:
    log = KernelLog((), 240.0)
    with pytest.raises(Unlearned, match="GPU0 is in progress, 4 min after the machine was started"):
        list(fabric.run(box(WAITING), LINKS, log))
    with pytest.raises(Unlearned, match="in progress: wait"):
        list(fabric.run(box(WAITING), LINKS, UNSAID))
    failed = replace(HEALTHY, fabric=replace(CLUSTER, status=3))
    assert grave(list(fabric.run(box(failed), LINKS, log))) == {"GPU0": Severity.FAIL}
    log = replace(log, uptime_s=3600.0)
    assert grave(list(fabric.run(box(failed, WAITING), LINKS, log))) == {"GPU0": Severity.FAIL}
    (verdict,) = judge([Snapshot("n", {Gpus: box(WAITING), NvLinks: LINKS, KernelLog: log})], [fabric], Job())
    assert conclude([verdict])[1] is ExitCode.INCONCLUSIVE


def test_trays_whose_gpus_are_in_different_cliques_are_told() -> None:
    other = replace(TRAY.all[3], fabric=replace(CLUSTER, clique=1))
    assert grave(list(fabric.run(replace(TRAY, all=(*TRAY.all[:3], other)), LINKS, UNSAID))) == {"GPUs": Severity.WARN}


def test_every_product_of_the_table_has_links_and_a_source() -> None:
    assert nvlink_products()
    for product in nvlink_products().values():
        assert product.nvlinks > 0
        assert product.nvlink_GBps > 0
        assert product.nvlink_source
