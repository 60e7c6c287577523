"""The kernel's command line."""

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.machine import device_options
from tests.each_row import each_row


@each_row(
    ("text", "expected"),
    [
        (
            "BOOT_IMAGE=/vmlinuz root=UUID=1 ro intel_iommu=on iommu=pt pci=realloc=off\n",
            ("intel_iommu=on", "iommu=pt", "pci=realloc=off"),
        ),
        ("quiet iommu.passthrough=1 pcie_aspm=off", ("iommu.passthrough=1", "pcie_aspm=off")),
        ("quiet pcie_aspm.policy=performance", ("pcie_aspm.policy=performance",)),
        ("pcipassword=x myiommu=on pciehp", ()),
        ("iommu=pt -- iommu=off", ("iommu=pt",)),
        ("iommu=pt iommu=pt", ("iommu=pt",)),
        ("", ()),
    ],
)
def test_only_what_is_about_devices_is_kept(text: str, expected: tuple[str, ...]) -> None:
    assert device_options(text) == expected


@given(st.text())
def test_any_text_gives_sorted_words_of_it(text: str) -> None:
    found = device_options(text)
    assert list(found) == sorted(set(found))
    assert set(found) <= set(text.split())
