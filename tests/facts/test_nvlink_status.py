"""`nvidia-smi nvlink -s`."""

import pytest
from conftest import answers

from ncclprobe.facts.nvlink import GpuLinks, NvlinkStatus, nvlink_status, parse
from ncclprobe.model.errors import ParseError
from tests.each_row import each_row

TWO = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
GPU 3: NVIDIA RTX A6000 (UUID: GPU-bbbb)
NVML: Unable to retrieve NVLink information as all links are inActive
"""
IDLE = "NVML: Unable to retrieve NVLink information as all links are inActive"


def test_each_gpu_has_its_links_or_the_reason_for_none() -> None:
    expected = NvlinkStatus(
        {
            0: GpuLinks("NVIDIA H100 80GB HBM3", "GPU-aaaa", {0: 26.562, 1: None}),
            3: GpuLinks("NVIDIA RTX A6000", "GPU-bbbb", {}),
        }
    )
    assert parse(TWO) == expected
    assert nvlink_status.run(answers({("run", "nvidia-smi", "nvlink", "-s"): TWO})) == expected


def test_the_reason_may_stand_in_the_line_of_the_gpu() -> None:
    assert parse(f"GPU 0: NVIDIA RTX A6000 (UUID: GPU-b) {IDLE}\n").gpus[0].links == {}


@each_row("text", ["", "\n"])
def test_no_output_is_a_machine_without_nvlink(text: str) -> None:
    assert parse(text) == NvlinkStatus({})


@each_row(
    "text", ["Link 0: 25 GB/s", "no", TWO + TWO, TWO.replace("Link 1", "Link 0"), TWO.replace("<inactive>", "25 Gb")]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)
