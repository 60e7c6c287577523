"""The table of GPUs: nobody is named twice, what is derived agrees, every row has its source."""

import pytest
import zoo
from conftest import fact_rows

from ncclprobe.expect import composed
from ncclprobe.expect.tables import gpus
from ncclprobe.expect.visible import nccl_link_GBps
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row, some

every_gpu = each_row("gpu", gpus.products(), ids=lambda gpu: gpu.name)


@every_gpu
def test_every_gpu_has_a_source_and_a_place_on_some_bus(gpu: gpus.GpuProduct) -> None:
    assert gpu.source
    assert gpu.pcie_generation or gpu.c2c_GBps or gpu.name == "NVIDIA GB10"
    assert (gpu.wiring is None) == (not gpu.nvlink_source)
    assert gpus.table()[gpu.name] is gpu


@every_gpu
def test_a_link_counts_for_nccl_as_the_architecture_says(gpu: gpus.GpuProduct) -> None:
    if gpu.nvlinks:
        assert gpu.nccl_nvlink_GBps == nccl_link_GBps(gpu.compute_capability)
        assert 0.7 < gpu.nccl_nvlink_GBps / gpu.nvlink_GBps < 0.9
    else:
        assert not gpu.nvlink_GBps
        assert gpu.wiring is None


def test_an_alias_is_the_gpu_and_a_name_of_several_products_is_none() -> None:
    assert gpus.table()["H100-SXM5-80GB"].name == "NVIDIA H100 80GB HBM3"
    assert "NVIDIA Graphics Device" not in gpus.table()
    assert gpus.table()["NVIDIA H100"].nvlinks == 0


@each_row(("generation", "width", "GBps"), [(3, 16, 12), (4, 16, 24), (5, 16, 48), (4, 8, 12), (9, 16, 12)])
def test_a_slot_counts_for_nccl_by_generation_and_width(generation: int, width: int, GBps: float) -> None:
    assert gpus.nccl_pcie_GBps(generation, width) == GBps


def test_every_gpu_of_the_zoo_is_in_the_table() -> None:
    for machine in some(zoo.MACHINES.values()):
        if machine.gpu:
            gpu = gpus.table()[machine.gpu.name]
            assert gpu.compute_capability == machine.gpu.capability[0] * 10 + machine.gpu.capability[1]
            assert f"{machine.gpu.chip:04X}" in gpu.pci_ids


def test_products_with_nvlink_are_those_of_which_somebody_says_who_decides() -> None:
    assert set(gpus.nvlink_products()) == {gpu.name for gpu in gpus.products() if gpu.wiring}
    assert gpus.nvlink_products()["NVIDIA H200"].nvlink_GBps == 25


def test_no_gpu_of_the_collected_facts_is_missing() -> None:
    rows = fact_rows("gpus.csv")
    assert {row["nvml_name"] for row in rows} <= {gpu.name for gpu in gpus.products()}


PRINTED = {
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 80GB PCIe LC": "NVIDIA A100 80GB PCIe",
    "NVIDIA H20-3e": "NVIDIA H20",
    "NVIDIA H200 141GB HBM3e": "NVIDIA H200",
    "NVIDIA B200 192GB": "NVIDIA B200",
    "NVIDIA L40S 48GB": "NVIDIA L40S",
    "GPU 3: NVIDIA H200 (UUID: GPU-8a0e4d1c-0000-1111-2222-333344445555)": "NVIDIA H200",
    "NVIDIA A10-24Q": "NVIDIA A10",
}
"""Names as nvidia-smi -L prints them, with what vendors and virtual machines add, and whose links they have."""


def test_every_name_that_nvidia_smi_prints_is_taken_for_a_gpu_of_its_links() -> None:
    bad = []
    for product in gpus.products():
        for text in (product.name, f"GPU 0: {product.name} (UUID: GPU-1-2)"):
            if (product.wiring or product.pcie_generation) and product.name != "NVIDIA H100":  # of several products
                try:
                    composed.product_called(text)
                except UsageError as error:
                    bad.append((text, str(error)))
    for text, name in PRINTED.items():
        found, meant = composed.product_called(text), gpus.table()[name]
        if (found.nvlinks, found.wiring, found.compute_capability) != (
            meant.nvlinks,
            meant.wiring,
            meant.compute_capability,
        ):
            bad.append((text, found.name))
    assert len(gpus.products()) > 40
    assert bad == []


@pytest.mark.parametrize("name", ["NVIDIA RTX 9999", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA Graphics Device"])
def test_another_model_is_not_a_variant(name: str) -> None:
    with pytest.raises(UsageError):
        composed.product_called(name)
