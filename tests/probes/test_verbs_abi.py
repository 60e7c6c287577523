"""The layouts of the verbs library's structures: ours, against what a C compiler makes of rdma-core's header."""

import ctypes
import subprocess

import fake_verbs
import pytest

from ncclprobe.model.rails import COMPLETIONS
from ncclprobe.probes.verbs import abi
from tests.each_row import each_row

WHOLE: dict[str, type[ctypes.Structure]] = {
    "ibv_device": abi.Device,
    "ibv_context_ops": abi.ContextOps,
    "ibv_mr": abi.MemoryRegion,
    "ibv_qp_cap": abi.QpCap,
    "ibv_qp_init_attr": abi.QpInitAttr,
    "ibv_global_route": abi.GlobalRoute,
    "ibv_ah_attr": abi.AhAttr,
    "ibv_qp_attr": abi.QpAttr,
    "ibv_ece": abi.Ece,
    "ibv_sge": abi.Sge,
    "ibv_send_wr": abi.SendWr,
    "ibv_recv_wr": abi.RecvWr,
    "ibv_wc": abi.WorkCompletion,
    "ibv_async_event": abi.AsyncEvent,
    "ibv_gid_entry": abi.GidEntry,
}
BEGINNING: dict[str, type[ctypes.Structure]] = {
    "ibv_context": abi.Context,
    "ibv_qp": abi.QueuePair,
    "ibv_port_attr": abi.PortAttr,
}
"""What is never made here, so that only the fields that are read need to lie right; a later library may add to them."""
NAMES = {
    "ibv_send_wr": {"remote_addr": "wr.rdma.remote_addr", "rkey": "wr.rdma.rkey"},
    "ibv_gid_entry": {"gid": "gid.raw"},
}
NUMBERS = {
    "IBV_ACCESS_LOCAL_WRITE": abi.LOCAL_WRITE,
    "IBV_ACCESS_REMOTE_WRITE": abi.REMOTE_WRITE,
    "IBV_ACCESS_REMOTE_READ": abi.REMOTE_READ,
    "IBV_ACCESS_REMOTE_ATOMIC": abi.REMOTE_ATOMIC,
    "IBV_ACCESS_RELAXED_ORDERING": abi.RELAXED_ORDERING,
    "IBV_QPT_RC": abi.RC,
    "IBV_QPS_INIT": abi.INIT,
    "IBV_QPS_RTR": abi.RTR,
    "IBV_QPS_RTS": abi.RTS,
    "IBV_QP_STATE": abi.QP_STATE,
    "IBV_QP_ACCESS_FLAGS": abi.QP_ACCESS_FLAGS,
    "IBV_QP_PKEY_INDEX": abi.QP_PKEY_INDEX,
    "IBV_QP_PORT": abi.QP_PORT,
    "IBV_QP_AV": abi.QP_AV,
    "IBV_QP_PATH_MTU": abi.QP_PATH_MTU,
    "IBV_QP_TIMEOUT": abi.QP_TIMEOUT,
    "IBV_QP_RETRY_CNT": abi.QP_RETRY_CNT,
    "IBV_QP_RNR_RETRY": abi.QP_RNR_RETRY,
    "IBV_QP_RQ_PSN": abi.QP_RQ_PSN,
    "IBV_QP_MAX_QP_RD_ATOMIC": abi.QP_MAX_QP_RD_ATOMIC,
    "IBV_QP_MIN_RNR_TIMER": abi.QP_MIN_RNR_TIMER,
    "IBV_QP_SQ_PSN": abi.QP_SQ_PSN,
    "IBV_QP_MAX_DEST_RD_ATOMIC": abi.QP_MAX_DEST_RD_ATOMIC,
    "IBV_QP_DEST_QPN": abi.QP_DEST_QPN,
    "IBV_WR_RDMA_WRITE": abi.RDMA_WRITE,
    "IBV_WR_RDMA_WRITE_WITH_IMM": abi.RDMA_WRITE_WITH_IMM,
    "IBV_SEND_SIGNALED": abi.SIGNALED,
    "IBV_WC_RECV": abi.WC_RECEIVED,
    "IBV_WC_WR_FLUSH_ERR": abi.FLUSHED,
    "IBV_PORT_ACTIVE": abi.PORT_STATES.index("ACTIVE"),
    "IBV_LINK_LAYER_INFINIBAND": abi.INFINIBAND,
    "IBV_LINK_LAYER_ETHERNET": abi.ETHERNET,
    "IBV_QPF_GRH_REQUIRED": abi.GRH_REQUIRED,
    "IBV_GID_TYPE_ROCE_V2": abi.GID_TYPES.index("RoCE v2"),
    "IBV_MTU_4096": {nbytes: number for number, nbytes in abi.MTUS.items()}[4096],
    "IBV_EVENT_DEVICE_FATAL": max(abi.FATAL_EVENTS - {10}),
    "IBV_EVENT_PORT_ERR": max(abi.FATAL_EVENTS),
    **{f"IBV_WC_{name}": number for number, (name, _) in COMPLETIONS.items()},
}


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


@each_row("name", WHOLE)
def test_a_structure_is_as_large_as_the_librarys(compiled: dict[str, int], name: str) -> None:
    assert ctypes.sizeof(WHOLE[name]) == compiled[f"sizeof(struct {name})"]


@each_row("name", [*WHOLE, *BEGINNING])
def test_every_field_lies_where_the_compiler_puts_it(compiled: dict[str, int], name: str) -> None:
    structure = {**WHOLE, **BEGINNING}[name]
    ours = {field: getattr(structure, field).offset for field in fields(structure)}
    theirs = {f: compiled[f"offsetof(struct {name}, {NAMES.get(name, {}).get(f, f)})"] for f in fields(structure)}
    assert ours == theirs


def test_every_number_is_the_headers(compiled: dict[str, int]) -> None:
    assert {name: compiled[name] for name in NUMBERS} == NUMBERS


def test_every_status_that_a_queue_pair_of_ours_can_meet_has_words() -> None:
    """Not those of datagrams, of end-to-end contexts and of tag matching: 3, 17, 18, 22, 23."""
    assert sorted({0, *COMPLETIONS}) == [n for n in range(22) if n not in (3, 17, 18)]
