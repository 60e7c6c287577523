"""The layouts of the verbs library's structures: ours, against what a C compiler makes of rdma-core's header."""

import ctypes
import re
import subprocess

import fake_verbs
import pytest

from ncclprobe.model.rails import COMPLETIONS
from ncclprobe.probes.verbs import abi
from tests.each_row import each_row

PLAIN: tuple[type[ctypes.Structure], ...] = (
    abi.Device, abi.ContextOps, abi.QpCap, abi.QpInitAttr, abi.GlobalRoute, abi.AhAttr, abi.QpAttr, abi.Ece, abi.Sge,
    abi.SendWr, abi.RecvWr, abi.AsyncEvent, abi.GidEntry,
)  # fmt: skip
"""Structures whose names differ from the library's in their case only."""
WHOLE = {f"ibv_{re.sub('(?<!^)(?=[A-Z])', '_', each.__name__).lower()}": each for each in PLAIN}
WHOLE |= {"ibv_mr": abi.MemoryRegion, "ibv_wc": abi.WorkCompletion}
BEGINNING: dict[str, type[ctypes.Structure]] = {
    "ibv_context": abi.Context, "ibv_qp": abi.QueuePair, "ibv_port_attr": abi.PortAttr,
}  # fmt: skip
"""What is never made here, so that only the fields that are read need to lie right; a later library may add to them."""
NAMES = {
    "ibv_send_wr": {"remote_addr": "wr.rdma.remote_addr", "rkey": "wr.rdma.rkey"},
    "ibv_gid_entry": {"gid": "gid.raw"},
}
SAME = """QP_STATE QP_ACCESS_FLAGS QP_PKEY_INDEX QP_PORT QP_AV QP_PATH_MTU QP_TIMEOUT QP_RETRY_CNT QP_RNR_RETRY
QP_RQ_PSN QP_MAX_QP_RD_ATOMIC QP_MIN_RNR_TIMER QP_SQ_PSN QP_MAX_DEST_RD_ATOMIC QP_DEST_QPN"""
PREFIXED = {
    "ACCESS": "LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC RELAXED_ORDERING", "QPT": "RC", "QPS": "INIT RTR RTS",
    "WR": "RDMA_WRITE RDMA_WRITE_WITH_IMM", "SEND": "SIGNALED", "LINK_LAYER": "INFINIBAND ETHERNET",
    "QPF": "GRH_REQUIRED",
}  # fmt: skip
NUMBERS = {
    **{f"IBV_{name}": getattr(abi, name) for name in SAME.split()},
    **{f"IBV_{kind}_{name}": getattr(abi, name) for kind, names in PREFIXED.items() for name in names.split()},
    **{f"IBV_WC_{name}": number for number, (name, _) in COMPLETIONS.items()}, "IBV_WC_RECV": abi.WC_RECEIVED,
    "IBV_WC_WR_FLUSH_ERR": abi.FLUSHED, "IBV_PORT_ACTIVE": abi.PORT_STATES.index("ACTIVE"),
    "IBV_GID_TYPE_ROCE_V2": abi.GID_TYPES.index("RoCE v2"),
    "IBV_MTU_4096": {nbytes: number for number, nbytes in abi.MTUS.items()}[4096],
    "IBV_EVENT_DEVICE_FATAL": max(abi.FATAL_EVENTS - {10}), "IBV_EVENT_PORT_ERR": max(abi.FATAL_EVENTS),
}  # fmt: skip
CALLS = {f"{name}({', '.join('0' * len(takes))})": result for name, (result, takes) in abi.PROTOTYPES.items()}
CALLS |= {"((struct ibv_context_ops *)0)->poll_cq(0, 0, 0)": abi.Poll._restype_}
for kind, result in (("int", ctypes.c_int), ("void", None)):
    NUMBERS |= {f"__builtin_types_compatible_p(__typeof__({call}), {kind})": CALLS[call] is result for call in CALLS}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What a program that includes the header prints of it: sizes, offsets by ``structure.field``, numbers."""
    folder = tmp_path_factory.mktemp("abi")
    fake_verbs.build(folder)  # skips where the header is missing
    texts = [f"sizeof(struct {name})" for name in WHOLE]
    for name, structure in {**WHOLE, **BEGINNING}.items():
        texts += [f"offsetof(struct {name}, {NAMES.get(name, {}).get(f, f)})" for f in fields(structure)]
    prints = "".join(f'printf("%s=%llu\\n", "{text}", (unsigned long long)({text}));' for text in [*texts, *NUMBERS])
    source = folder / "print.c"
    source.write_text(
        f"#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\nint main() {{{prints}}}"
    )
    subprocess.run(["gcc", "-o", folder / "print", source], check=True)
    printed = subprocess.run([folder / "print"], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, _, number in (line.rpartition("=") for line in printed.splitlines())}


def fields(structure: type[ctypes.Structure]) -> list[str]:
    """Names of those that are the header's: what is skipped over begins with a line."""
    return [name for name, *_ in structure._fields_ if not name.startswith("_")]


@each_row("name", [*WHOLE, *BEGINNING])
def test_every_structure_and_field_lies_where_the_compiler_puts_it(compiled: dict[str, int], name: str) -> None:
    structure = {**WHOLE, **BEGINNING}[name]
    ours = {field: getattr(structure, field).offset for field in fields(structure)}
    theirs = {f: compiled[f"offsetof(struct {name}, {NAMES.get(name, {}).get(f, f)})"] for f in fields(structure)}
    assert ours == theirs
    assert name in BEGINNING or ctypes.sizeof(structure) == compiled[f"sizeof(struct {name})"]


def test_every_number_is_the_headers(compiled: dict[str, int]) -> None:
    assert {name: compiled[name] for name in NUMBERS} == NUMBERS


def test_every_status_that_a_queue_pair_of_ours_can_meet_has_words() -> None:
    """Not those of datagrams, of end-to-end contexts and of tag matching: 3, 17, 18, 22, 23."""
    assert sorted({0, *COMPLETIONS}) == [n for n in range(22) if n not in (3, 17, 18)]
