"""Texts that people paste are judged as far as they show a machine; the rest stays unknown and advisory.

What is made of each form and each fault is among the kept values (tests/pasted_cases.py and its neighbours).
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands import main
from ncclprobe.host import pasted
from ncclprobe.host.pasted_containers import pairs
from tests import pasted_containers, pasted_faults, pasted_jobs
from tests.each_row import each_row
from tests.pasted_cases import FORMS, STATISTICS, UP
from tests.pasted_texts import MATRIX, NVLINK, QUERY, SMI, doctored, objections


@each_row(
    "text",
    [
        "",
        "hello\n",
        "step 7 loss 2.0\nLR=0.1\nepoch 3\nsaved\n",  # a log that quotes a setting
        "mpirun -x NCCL_DEBUG=INFO ./a\n" + "n1:7:7 [0] NCCL INFO comm 0x1 rank 0\n",
        "n1:7:7 [0] NCCL INFO NCCL_DEBUG set by environment to INFO.\n" * 3,
        "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: x\n",
        '{"capture": 1}\n',
        '{"log": "export A=1", "of": ' + "[" * 100_000,
        "# Ports\n\nState: Active\n",  # notes
        "GPU0 is lost; GPU1 is not\nGPU0 again\n",
    ],
)
def test_a_log_a_note_and_a_capture_are_not_pastes_of_a_machine(text: str) -> None:
    assert not pasted.forms(text)


LINES = st.sampled_from([line for text in FORMS.values() for line in text.splitlines()])


@given(st.text() | st.lists(LINES, max_size=30).map("\n".join))
def test_no_text_and_no_mixture_of_forms_is_a_surprise(text: str) -> None:
    pasted.forms(text)


def test_a_container_a_text_or_a_setting_without_a_fault_is_not_objected_to() -> None:
    silent = {
        **{name: text for module in (pasted_containers, pasted_faults) for name, text in module.SILENT.items()},
        **{f"{row[1]} on {row[0][:30]}, {row[2]}": pasted_jobs.text(*row) for row in pasted_jobs.RIGHT},
    }
    silent.pop("InfiniBand that is off")  # its cost is another check's business
    found = {
        name: [each for each in objections(doctored(text)) if ":note:" not in each] for name, text in silent.items()
    }
    assert {name: each for name, each in found.items() if each} == {}
    assert len(silent) >= 84


def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str], *texts: str) -> tuple[int, str]:
    paths = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    code = main(["doctor", "--no-config", *map(str, paths)])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


def test_what_a_text_does_not_show_is_not_called_ready_or_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = doctor(tmp_path, capsys, "NCCL_DEBUG=INFO\nPATH=/usr/bin\n")
    assert code == 0
    assert "What the pasted texts do not show was not judged." in said
    assert "Ready" not in said
    assert "(required)" not in said
    report = doctored(MATRIX.replace("NV18", "SYS"))
    passed = {check["id"] for check in report["checks"] if check["status"] == "pass"}
    assert passed == {"gpu.count", "nvl.links"}


@each_row("whole", [UP, SMI, NVLINK, QUERY])
def test_a_text_that_is_cut_short_makes_nothing_inconclusive(
    whole: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = doctor(tmp_path, capsys, whole[: len(whole) * 2 // 3])
    assert (code != 1, "(required)" in said) == (True, False), said


BRIDGES = "".join(
    f"0{number}:00.0 PCI bridge: Broadcom PEX88096 PCIe Gen 4 Switch (rev b0)\n"
    f"\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{sign} CmpltRedir{sign} UpstreamFwd+ EgressCtrl- DirectTrans-\n"
    for number, sign in enumerate("-+++++")
)
ACS = "A PCIe switch redirects traffic between its devices to the CPU (ACS)"
UNKNOWN = "Every line that reports a failure is known."
STATED: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    # text: the id, status and title of the verdict, and why it is unknown, or its finding
    BRIDGES: ("pci.acs", f"warn {ACS}", "",
        ("PCIe switches: 5 of 6 bridges redirect requests to the CPU (ACS)", "node fix-image",
        "unless virtual machines run here, turn ACS off in the firmware setup, or with setpci at each boot",
        "lspci -vvv: ACSCtl of 0000:01:00.0, 0000:02:00.0, 0000:03:00.0, 0000:04:00.0: ReqRedir+")),
    BRIDGES.replace("Redir+", "Redir-"): ("pci.acs", f"pass {ACS}", "", ()),
    STATISTICS.format(1000): ("ib.losses", "warn A port drops packets", "",
        ("ens3: rx_prio3_discards is 1000: packets arrived, but there was no buffer for them", "link none",
        "turn on priority flow control for the RoCE traffic class, on this port and on the switch",
        "ethtool -S ens3: ")),
    STATISTICS.format(999): ("ib.losses", "pass A port drops packets", "", ()),
    pasted_faults.SAYS["an image"]: ("env.libraries", "unknown Every plugin that is named is there.", (
        "NCCL_NET=AWS Libfabric asks for a plugin, and it is unknown if the image nvcr.io/nvidia/pytorch:24.10-py3 has "
        "it"), ()),
    pasted_faults.SAYS["no IB device"]: ("ib.state", "warn RDMA devices: no RDMA device is visible here, and NCCL uses "
        "TCP between nodes (No IB devices found)", "",
        ("RDMA devices: no RDMA device is visible here, and NCCL uses TCP between nodes (No IB devices found)",
        "node none", "give the container /dev/infiniband, or load the NIC's driver; then run ibv_devinfo again",
        "the pasted text: ")),
    "× nvidia-persistenced.service - NVIDIA\n   Active: failed (Result: exit-code)\n": ("log.unexplained",
        f"unknown {UNKNOWN}", "a line reports a failure that no check recognises:    Active: failed (Result: "
        "exit-code)", ()),
    "".join(f"Nov 20 10:00:0{n} n7 kernel: usb 1-1: new device\n" for n in range(9)): ("log.gpu-failed",
        "pass No check recognises a failure in the pasted text.", "", ()),
}  # fmt: skip


@each_row(("text", "expected"), STATED.items())
def test_what_a_text_states_is_a_verdict_with_its_reason_evidence_and_remedy(
    text: str, expected: tuple[str, str, str, tuple[str, ...]]
) -> None:
    id_, head, why, told = expected
    report = doctored(text)
    found = [each for each in report["checks"] if each["id"] == id_ and not each["title"].startswith("Not checked")]
    (check,) = [each for each in found if f"{each['status']} {each['title']}" == head]
    assert (check["why"], check["required"]) == (why, check["status"] == "unknown")
    assert [
        (f"{each['subject']}: {each['message']}", f"{each['blame']} {each['action']}", each["fix"],
         "; ".join(f"{seen['source']}: {seen['text']}" for seen in each["evidence"]))
        for each in check["findings"]
    ] == ([told] if told else [])  # fmt: skip


FLOWS = {"b": "it's, so", "c": "", "d": 'x "y, z'}


def test_the_values_of_a_manifest_are_found_by_their_keys() -> None:
    text = "a:\n- b: 1\n  c: {d: x, e: y}\n-  b: 2 # two\n---\nf: [g, h]\ni:\n  j:\n    k: 'l'\n"
    rows = {("a", "0", "b"): "1", ("a", "0", "c", "d"): "x", ("a", "0", "c", "e"): "y", ("a", "1", "b"): "2"}
    assert dict(pairs(text.splitlines())) == {**rows, ("f",): "[g, h]", ("i", "j", "k"): "l"}
    assert pairs(["a: {b: \"it's, so\", c:, d: 'x \"y, z'}"]) == [(("a", at), value) for at, value in FLOWS.items()]
    ((deep, value),) = pairs(["a: " + "{a: " * 40 + "x" + "}" * 40])
    assert (len(deep), value) == (33, "{a: " * 8 + "x" + "}" * 8)
