"""libibverbs' binary interface: constants, and the layouts of structures passed by address.

From rdma-core's ``libibverbs/verbs.h`` (installed as ``infiniband/verbs.h``), whose structure names are given here;
unchanged since IBVERBS_1.1, and copied by NCCL's own ``src/include/ibvcore.h``. tests/probes/test_verbs_abi.py compares
every size and offset with those that a C compiler computes from the header.
"""

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_int,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

# enum ibv_access_flags
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8
RELAXED_ORDERING = 1 << 20
# enum ibv_qp_type, ibv_qp_state
RC = 2
INIT, RTR, RTS = 1, 2, 3
# enum ibv_qp_attr_mask
QP_STATE, QP_ACCESS_FLAGS, QP_PKEY_INDEX, QP_PORT, QP_AV, QP_PATH_MTU = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8
QP_TIMEOUT, QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN, QP_MAX_QP_RD_ATOMIC = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
QP_MIN_RNR_TIMER, QP_SQ_PSN, QP_MAX_DEST_RD_ATOMIC, QP_DEST_QPN = 1 << 15, 1 << 16, 1 << 17, 1 << 20
# enum ibv_wr_opcode, ibv_send_flags, ibv_wc_opcode
RDMA_WRITE, RDMA_WRITE_WITH_IMM = 0, 1
SIGNALED = 2
WC_RECEIVED = 1 << 7
# enum ibv_wc_status
FLUSHED = 5
# enum ibv_event_type: CQ_ERR, QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR, DEVICE_FATAL, PORT_ERR
FATAL_EVENTS = frozenset((0, 1, 2, 3, 8, 10))
# enum ibv_port_state
PORT_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
# IBV_LINK_LAYER_…
INFINIBAND, ETHERNET = 1, 2
# enum ibv_port_flags: IBV_QPF_GRH_REQUIRED
GRH_REQUIRED = 1
# enum ibv_gid_type
GID_TYPES = ("IB", "RoCE v1", "RoCE v2")
# enum ibv_mtu: 1 is 256 bytes, 5 is 4096
MTUS = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
"""Lanes by a port's active_width."""
LANE_GBPS = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0}
"""Gb/s per lane by active_speed (SDR to NDR; XDR, 256, does not fit the field that all library versions have)."""


class GidEntry(Structure):
    """struct ibv_gid_entry, for _ibv_query_gid_ex (IBVERBS_1.11)."""

    _fields_ = (
        ("gid", c_uint64 * 2),
        ("gid_index", c_uint32),
        ("port_num", c_uint32),
        ("gid_type", c_uint32),
        ("ndev_ifindex", c_uint32),
    )


class PortAttr(Structure):
    """struct ibv_port_attr; ibv_query_port itself fills the part up to `flags` (its struct _compat_ibv_port_attr)."""

    _fields_ = (
        ("state", c_int),
        ("max_mtu", c_int),
        ("active_mtu", c_int),
        ("gid_tbl_len", c_int),
        ("port_cap_flags", c_uint32),
        ("max_msg_sz", c_uint32),
        ("bad_pkey_cntr", c_uint32),
        ("qkey_viol_cntr", c_uint32),
        ("pkey_tbl_len", c_uint16),
        ("lid", c_uint16),
        ("sm_lid", c_uint16),
        ("lmc", c_uint8),
        ("max_vl_num", c_uint8),
        ("sm_sl", c_uint8),
        ("subnet_timeout", c_uint8),
        ("init_type_reply", c_uint8),
        ("active_width", c_uint8),
        ("active_speed", c_uint8),
        ("phys_state", c_uint8),
        ("link_layer", c_uint8),
        ("flags", c_uint8),
        ("port_cap_flags2", c_uint16),
    )


class Device(Structure):
    """struct ibv_device."""

    _fields_ = (
        ("_ops", c_void_p * 2),
        ("node_type", c_int),
        ("transport_type", c_int),
        ("name", c_char * 64),
        ("dev_name", c_char * 64),
        ("dev_path", c_char * 256),
        ("ibdev_path", c_char * 256),
    )


class ContextOps(Structure):
    """struct ibv_context_ops: 32 function pointers; only post and poll are called."""

    _fields_ = (
        ("_before_poll_cq", c_void_p * 11),
        ("poll_cq", c_void_p),
        ("req_notify_cq", c_void_p),
        ("_before_post_send", c_void_p * 12),
        ("post_send", c_void_p),
        ("post_recv", c_void_p),
        ("_rest", c_void_p * 5),
    )


class Context(Structure):
    """struct ibv_context up to `num_comp_vectors`; a mutex of the C library's follows."""

    _fields_ = (
        ("device", c_void_p),
        ("ops", ContextOps),
        ("cmd_fd", c_int),
        ("async_fd", c_int),
        ("num_comp_vectors", c_int),
    )


class MemoryRegion(Structure):
    """struct ibv_mr."""

    _fields_ = (
        ("context", c_void_p),
        ("pd", c_void_p),
        ("addr", c_void_p),
        ("length", c_size_t),
        ("handle", c_uint32),
        ("lkey", c_uint32),
        ("rkey", c_uint32),
    )


class QueuePair(Structure):
    """struct ibv_qp up to `qp_type`."""

    _fields_ = (
        ("context", c_void_p),
        ("qp_context", c_void_p),
        ("pd", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("handle", c_uint32),
        ("qp_num", c_uint32),
        ("state", c_int),
        ("qp_type", c_int),
    )


class QpCap(Structure):
    """struct ibv_qp_cap."""

    _fields_ = (
        ("max_send_wr", c_uint32),
        ("max_recv_wr", c_uint32),
        ("max_send_sge", c_uint32),
        ("max_recv_sge", c_uint32),
        ("max_inline_data", c_uint32),
    )


class QpInitAttr(Structure):
    """struct ibv_qp_init_attr."""

    _fields_ = (
        ("qp_context", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("cap", QpCap),
        ("qp_type", c_int),
        ("sq_sig_all", c_int),
    )


class GlobalRoute(Structure):
    """struct ibv_global_route."""

    _fields_ = (
        ("dgid", c_uint64 * 2),
        ("flow_label", c_uint32),
        ("sgid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
    )


class AhAttr(Structure):
    """struct ibv_ah_attr: the address of the other end."""

    _fields_ = (
        ("grh", GlobalRoute),
        ("dlid", c_uint16),
        ("sl", c_uint8),
        ("src_path_bits", c_uint8),
        ("static_rate", c_uint8),
        ("is_global", c_uint8),
        ("port_num", c_uint8),
    )


class QpAttr(Structure):
    """struct ibv_qp_attr."""

    _fields_ = (
        ("qp_state", c_int),
        ("cur_qp_state", c_int),
        ("path_mtu", c_int),
        ("path_mig_state", c_int),
        ("qkey", c_uint32),
        ("rq_psn", c_uint32),
        ("sq_psn", c_uint32),
        ("dest_qp_num", c_uint32),
        ("qp_access_flags", c_uint),
        ("cap", QpCap),
        ("ah_attr", AhAttr),
        ("alt_ah_attr", AhAttr),
        ("pkey_index", c_uint16),
        ("alt_pkey_index", c_uint16),
        ("en_sqd_async_notify", c_uint8),
        ("sq_draining", c_uint8),
        ("max_rd_atomic", c_uint8),
        ("max_dest_rd_atomic", c_uint8),
        ("min_rnr_timer", c_uint8),
        ("port_num", c_uint8),
        ("timeout", c_uint8),
        ("retry_cnt", c_uint8),
        ("rnr_retry", c_uint8),
        ("alt_port_num", c_uint8),
        ("alt_timeout", c_uint8),
        ("rate_limit", c_uint32),
    )


class Ece(Structure):
    """struct ibv_ece (IBVERBS_1.10): what a device offers beyond the standard."""

    _fields_ = (("vendor_id", c_uint32), ("options", c_uint32), ("comp_mask", c_uint32))


class Sge(Structure):
    """struct ibv_sge."""

    _fields_ = (("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32))


class SendWr(Structure):
    """struct ibv_send_wr, with the part of its unions that an RDMA write uses."""

    _fields_ = (
        ("wr_id", c_uint64),
        ("next", c_void_p),
        ("sg_list", c_void_p),
        ("num_sge", c_int),
        ("opcode", c_int),
        ("send_flags", c_uint),
        ("imm_data", c_uint32),
        ("remote_addr", c_uint64),
        ("rkey", c_uint32),
        ("_rest", c_uint64 * 9),
    )


class RecvWr(Structure):
    """struct ibv_recv_wr."""

    _fields_ = (("wr_id", c_uint64), ("next", c_void_p), ("sg_list", c_void_p), ("num_sge", c_int))


class WorkCompletion(Structure):
    """struct ibv_wc."""

    _fields_ = (
        ("wr_id", c_uint64),
        ("status", c_int),
        ("opcode", c_int),
        ("vendor_err", c_uint32),
        ("byte_len", c_uint32),
        ("imm_data", c_uint32),
        ("qp_num", c_uint32),
        ("src_qp", c_uint32),
        ("wc_flags", c_uint),
        ("pkey_index", c_uint16),
        ("slid", c_uint16),
        ("sl", c_uint8),
        ("dlid_path_bits", c_uint8),
    )


class AsyncEvent(Structure):
    """struct ibv_async_event."""

    _fields_ = (("element", c_void_p), ("event_type", c_int))


# The three of ibv_context_ops that are called: they return 0, or an errno; poll_cq a number of completions.
Poll = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
Post = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)

PROTOTYPES: dict[str, tuple[object, tuple[object, ...]]] = {
    "ibv_get_device_list": (POINTER(c_void_p), (POINTER(c_int),)),
    "ibv_free_device_list": (None, (POINTER(c_void_p),)),
    "ibv_open_device": (POINTER(Context), (c_void_p,)),
    "ibv_close_device": (c_int, (c_void_p,)),
    "ibv_query_port": (c_int, (c_void_p, c_uint8, POINTER(PortAttr))),
    "ibv_query_gid": (c_int, (c_void_p, c_uint8, c_int, POINTER(c_uint64 * 2))),
    "_ibv_query_gid_ex": (c_int, (c_void_p, c_uint32, c_uint32, POINTER(GidEntry), c_uint32, c_size_t)),
    "ibv_query_pkey": (c_int, (c_void_p, c_uint8, c_int, POINTER(c_uint16))),
    "ibv_alloc_pd": (c_void_p, (c_void_p,)),
    "ibv_dealloc_pd": (c_int, (c_void_p,)),
    "ibv_reg_mr": (POINTER(MemoryRegion), (c_void_p, c_void_p, c_size_t, c_int)),
    "ibv_reg_mr_iova2": (POINTER(MemoryRegion), (c_void_p, c_void_p, c_size_t, c_uint64, c_uint)),
    "ibv_reg_dmabuf_mr": (POINTER(MemoryRegion), (c_void_p, c_uint64, c_size_t, c_uint64, c_int, c_int)),
    "ibv_dereg_mr": (c_int, (c_void_p,)),
    "ibv_create_cq": (c_void_p, (c_void_p, c_int, c_void_p, c_void_p, c_int)),
    "ibv_destroy_cq": (c_int, (c_void_p,)),
    "ibv_create_qp": (POINTER(QueuePair), (c_void_p, POINTER(QpInitAttr))),
    "ibv_modify_qp": (c_int, (c_void_p, POINTER(QpAttr), c_int)),
    "ibv_destroy_qp": (c_int, (c_void_p,)),
    "ibv_query_ece": (c_int, (c_void_p, POINTER(Ece))),
    "ibv_set_ece": (c_int, (c_void_p, POINTER(Ece))),
    "ibv_get_async_event": (c_int, (c_void_p, POINTER(AsyncEvent))),
    "ibv_ack_async_event": (None, (POINTER(AsyncEvent),)),
    "ibv_event_type_str": (ctypes.c_char_p, (c_int,)),
}
"""Result and parameter types of every function called by name. A device, context or queue pair is an address."""
