"""NVLink: who is short of links, who only looks so, and what the fabric says."""

import pytest

from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.nvl import (
    CLUSTER,
    LINKS,
    UNSAID,
    WAITING,
    fabric,
    links,
    rate,
)
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.expect.tables.gpus import nvlink_products
from ncclprobe.facts import nvlink
from ncclprobe.facts.kernel_log import KernelLog
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import ExitCode, Finding, Severity
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row


def grave(findings: list[Finding]) -> dict[str, Severity]:
    return {f.subject: f.severity for f in findings if f.severity is not Severity.NOTE}


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
    with pytest.raises(
        Unlearned, match="GPU0 with the NVLink fabric is in progress, 4 min after the machine was started"
    ):
        list(fabric.run(box(WAITING), LINKS, log))
    with pytest.raises(Unlearned, match="in progress: wait"):
        list(fabric.run(box(WAITING), LINKS, UNSAID))
    failed = replace(HEALTHY, fabric=replace(CLUSTER, status=3))
    assert grave(list(fabric.run(box(failed), LINKS, log))) == {"GPU0": Severity.FAIL}
    log = replace(log, uptime_s=3600.0)
    assert grave(list(fabric.run(box(failed, WAITING), LINKS, log))) == {"GPU0": Severity.FAIL}
    (verdict,) = judge([Snapshot("n", {Gpus: box(WAITING), NvLinks: LINKS, KernelLog: log})], [fabric], Job())
    assert conclude([verdict])[1] is ExitCode.INCONCLUSIVE


def test_every_product_of_the_table_has_links_and_a_source() -> None:
    assert nvlink_products()
    for product in nvlink_products().values():
        assert product.nvlinks > 0
        assert product.nvlink_GBps > 0
        assert product.nvlink_source
