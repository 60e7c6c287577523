"""One end: an opened port, its memory, and queue pairs to the other end.

Queue pair states and attributes are those of NCCL's net_ib (``src/transport/net_ib/connect.cc``, ncclIbQpInit,
ncclIbQpRtr, ncclIbQpRts of v2.30.7), memory registration that of ``reg.cc`` (ncclIbRegMrDmaBufInternal2).
"""

import contextlib
import ctypes
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from ncclprobe.facts.cpu import cpu_list
from ncclprobe.model.errors import ParseError
from ncclprobe.model.rails import RailAddress, RailPort, RailQueuePair, RailTest
from ncclprobe.probes.verbs import abi, pattern
from ncclprobe.probes.verbs.library import Library, VerbsError

MAILBOX_BYTES = 4096
"""Host memory for small messages: the first word is sent, the word at MAILBOX_IN is received."""
MAILBOX_IN = 2048
_NCCLS = abi.LOCAL_WRITE | abi.REMOTE_WRITE | abi.REMOTE_READ | abi.REMOTE_ATOMIC
_LAYERS: dict[int, Literal["InfiniBand", "Ethernet"]] = {abi.INFINIBAND: "InfiniBand", abi.ETHERNET: "Ethernet"}
_RNR_RETRY, _MIN_RNR_TIMER, _HOP_LIMIT = 7, 12, 255


class Port:
    """An opened port. Every method raises VerbsError."""

    def __init__(self, library: Library, asked: RailPort, test: RailTest) -> None:
        self.library, self.asked, self.test = library, asked, test
        self.context = self._opened()
        attr = abi.PortAttr()
        self.library.call("ibv_query_port", self.context, self.asked.port, ctypes.byref(attr))
        self.attr = attr
        self.gid, self._gid_type = self._read_gid()
        pkey = ctypes.c_uint16()
        index = self.asked.pkey_index
        if not 0 <= index < self.attr.pkey_tbl_len:
            raise VerbsError("missing", f"no P_Key index {index}: the table has {self.attr.pkey_tbl_len} entries")
        self.library.call("ibv_query_pkey", self.context, self.asked.port, index, ctypes.byref(pkey))
        self._pkey = int.from_bytes(bytes(pkey), "big")
        self._pd = library.call("ibv_alloc_pd", self.context)
        self.region_bytes = test.message_bytes * pattern.slots(test, asked.queue_pairs)
        self.data = allocate(asked, 2 * self.region_bytes, library.announce)
        self.data_mr = self._register(self.data)
        self.mailbox = _HostMemory(MAILBOX_BYTES)
        self.mailbox_mr = self._register(self.mailbox)
        self.cq: Any = None
        self.events: list[str] = []
        self.queue_pairs: list[Any] = []
        self._psns: list[int] = []

    def _opened(self) -> Any:
        with self.library.devices() as devices:
            if self.asked.device not in devices:
                seen = f"has {', '.join(sorted(devices))}" if devices else "finds none"
                raise VerbsError("missing", f"no RDMA device {self.asked.device}: the verbs library {seen}")
            keep_near(abi.Device.from_address(devices[self.asked.device]).ibdev_path.decode(errors="replace"))
            return self.library.call("ibv_open_device", devices[self.asked.device])

    def _read_gid(self) -> tuple[bytes, str]:
        """Return the GID at the requested index, and its type; empty if the type is unknown."""
        index = self.asked.gid_index
        if not 0 <= index < self.attr.gid_tbl_len:
            text = f"no GID index {index}: the table has {self.attr.gid_tbl_len} entries"
            raise VerbsError("missing", text, call="ibv_query_gid")
        plain = (ctypes.c_uint64 * 2)()
        self.library.call("ibv_query_gid", self.context, self.asked.port, index, ctypes.byref(plain))
        gid = bytes(plain)
        if not any(gid):
            raise VerbsError("missing", f"the GID at index {index} is empty", call="ibv_query_gid")
        return gid, self._read_gid_type(index)

    def _read_gid_type(self, index: int) -> str:
        if not self.library.has("_ibv_query_gid_ex"):
            return ""
        entry = abi.GidEntry()
        size = ctypes.sizeof(entry)
        self.library.call("_ibv_query_gid_ex", self.context, self.asked.port, index, ctypes.byref(entry), 0, size)
        return abi.GID_TYPES[entry.gid_type] if entry.gid_type < len(abi.GID_TYPES) else ""

    def _register(self, held: "_HostMemory | _GpuMemory") -> Any:
        """Register memory as NCCL does: as a DMA-BUF if requested, by ibv_reg_mr_iova2 if writes may be reordered."""
        call, at, nbytes = self.library.call, held.address, held.nbytes
        access = _NCCLS | (abi.RELAXED_ORDERING if self.asked.relaxed_ordering else 0)
        if isinstance(held, _GpuMemory) and self.asked.memory == "cuda-dmabuf":
            with held.exported() as handle:
                return call("ibv_reg_dmabuf_mr", self._pd, 0, nbytes, at, handle, access)
        if self.asked.relaxed_ordering:
            return call("ibv_reg_mr_iova2", self._pd, at, nbytes, at, access)
        return call("ibv_reg_mr", self._pd, at, nbytes, access)

    def look_at_events(self) -> VerbsError | None:
        """Record the device's events; return the error that they amount to, None if nothing ends a transfer."""
        found = None
        for number, words in self.library.events(self.context):
            self.events.append(words)
            if number in abi.FATAL_EVENTS:
                found = found or VerbsError("event", f"{self.asked.device} reports: {words}")
        return found

    # Queue pairs.

    def create(self) -> None:
        """Replace the queue pairs by new ones in state INIT.

        Their completion queue is new as well: rxe leaves completions of destroyed queue pairs in the old one, which
        would be
        taken for those of the new ones.
        """
        while self.queue_pairs:
            self.library.call("ibv_destroy_qp", self.queue_pairs.pop())
        if self.cq is not None:
            self.library.call("ibv_destroy_cq", self.cq)
        chain = self.test.chain
        depth = self.asked.queue_pairs * (4 * chain + 8)
        self.cq = self.library.call("ibv_create_cq", self.context, depth, None, None, 0)
        for _ in range(self.asked.queue_pairs):
            wish = abi.QpInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=abi.RC)
            wish.cap = abi.QpCap(2 * chain + 4, 4, 1, 1, 0)
            made = self.library.call("ibv_create_qp", self._pd, ctypes.byref(wish))
            self.queue_pairs.append(made)
            attr = abi.QpAttr(qp_state=abi.INIT, pkey_index=self.asked.pkey_index, port_num=self.asked.port)
            attr.qp_access_flags = abi.REMOTE_WRITE
            self._modify(made, attr, abi.QP_STATE | abi.QP_PKEY_INDEX | abi.QP_PORT | abi.QP_ACCESS_FLAGS)
        self._psns = [secrets.randbelow(1 << 24) for _ in self.queue_pairs]

    def address(self) -> RailAddress:
        """Return what the other end must know to connect."""
        attr, asked = self.attr, self.asked
        active = abi.MTUS.get(attr.active_mtu, 0)
        return RailAddress(
            device=asked.device,
            port=asked.port,
            link_layer=_LAYERS.get(attr.link_layer, "unknown"),
            state=abi.PORT_STATES[attr.state] if 0 <= attr.state < len(abi.PORT_STATES) else str(attr.state),
            rate_gbps=abi.LANES.get(attr.active_width, 0) * abi.LANE_GBPS.get(attr.active_speed, 0.0),
            lid=attr.lid,
            gid_index=asked.gid_index,
            gid=self.gid.hex(),
            gid_type=self._gid_type,
            pkey=self._pkey,
            active_mtu=active,
            mtu=min(asked.mtu or active, active),
            queue_pairs=tuple(
                RailQueuePair(made.contents.qp_num, psn, self._ece(made))
                for made, psn in zip(self.queue_pairs, self._psns, strict=True)
            ),
            address=self.data.address + self.region_bytes,
            rkey=self.data_mr.contents.rkey,
            nbytes=self.region_bytes,
            mailbox_address=self.mailbox.address + MAILBOX_IN,
            mailbox_rkey=self.mailbox_mr.contents.rkey,
        )

    def _ece(self, made: Any) -> tuple[int, int, int] | None:
        """Return the enhanced connection options that the device offers, or uses once connected; None if none."""
        if not (self.asked.ece and self.library.has("ibv_query_ece")):
            return None
        ece = abi.Ece()
        try:
            self.library.call("ibv_query_ece", made, ctypes.byref(ece))
        except VerbsError:  # EOPNOTSUPP: most devices
            return None
        return ece.vendor_id, ece.options, ece.comp_mask

    def connect(self, peer: RailAddress) -> None:
        """Bring the queue pairs to RTR and RTS, each to the peer's at the same index."""
        mtu = min(self.address().mtu, peer.mtu)
        for made, psn, other in zip(self.queue_pairs, self._psns, peer.queue_pairs, strict=True):
            if other.ece and self._ece(made):
                vendor, options, mask = other.ece
                self.library.call("ibv_set_ece", made, ctypes.byref(abi.Ece(vendor, options, mask)))
            self._ready_to_receive(made, peer, other, mtu)
            self._ready_to_send(made, psn)

    def _ready_to_receive(self, made: Any, peer: RailAddress, other: RailQueuePair, mtu: int) -> None:
        attr = abi.QpAttr(qp_state=abi.RTR, dest_qp_num=other.number, rq_psn=other.psn, max_dest_rd_atomic=1)
        attr.path_mtu = next((number for number, nbytes in abi.MTUS.items() if nbytes == mtu), 0)
        attr.min_rnr_timer = _MIN_RNR_TIMER
        attr.ah_attr = self._route(peer)
        known = abi.QP_STATE | abi.QP_AV | abi.QP_PATH_MTU | abi.QP_DEST_QPN | abi.QP_RQ_PSN
        self._modify(made, attr, known | abi.QP_MAX_DEST_RD_ATOMIC | abi.QP_MIN_RNR_TIMER)

    def _route(self, peer: RailAddress) -> abi.AhAttr:
        """Return the path to the peer: by GID on Ethernet and to another subnet, otherwise by LID."""
        gid = bytes.fromhex(peer.gid)
        way = abi.AhAttr(sl=self.asked.service_level or 0, port_num=self.asked.port)
        ethernet = self.attr.link_layer == abi.ETHERNET
        same_subnet = _subnet(self.gid) == _subnet(gid)
        if not ethernet:
            way.dlid = peer.lid if same_subnet else _flid(gid) or peer.lid
        if ethernet or not same_subnet or self.attr.flags & abi.GRH_REQUIRED:
            way.is_global = 1
            way.grh.dgid[:] = struct.unpack("=2Q", gid)
            way.grh.sgid_index, way.grh.hop_limit = self.asked.gid_index, _HOP_LIMIT
            way.grh.traffic_class = (self.asked.traffic_class or 0) if ethernet else 0
        return way

    def _ready_to_send(self, made: Any, psn: int) -> None:
        attr = abi.QpAttr(qp_state=abi.RTS, sq_psn=psn, rnr_retry=_RNR_RETRY, max_rd_atomic=1)
        attr.timeout, attr.retry_cnt = self.asked.timeout, self.asked.retry_count
        known = abi.QP_STATE | abi.QP_SQ_PSN | abi.QP_TIMEOUT | abi.QP_RETRY_CNT
        self._modify(made, attr, known | abi.QP_RNR_RETRY | abi.QP_MAX_QP_RD_ATOMIC)

    def _modify(self, made: Any, attr: abi.QpAttr, known: int) -> None:
        self.library.call("ibv_modify_qp", made, ctypes.byref(attr), known)


def keep_near(device: str) -> None:
    """Pin to the processors near the device with this sysfs folder, and so allocate memory there; ignore failures.

    NCCL's network threads run near the GPU, whose NIC is usually on the same NUMA node.
    """
    with contextlib.suppress(OSError, ValueError, ParseError):
        near = cpu_list(Path(device, "device", "local_cpulist").read_text())
        os.sched_setaffinity(0, set(near) & os.sched_getaffinity(0))  # ValueError, OSError: none of them is allowed


def _subnet(gid: bytes) -> int:
    """Return the subnet prefix without a fabric's local part: ncclIbExtractLocalSubnetPrefix."""
    return int.from_bytes(gid[:8], "big") & 0xFFFF


def _flid(gid: bytes) -> int:
    """Return the LID that routers know the port by: ncclIbExtractFlid."""
    return int.from_bytes(gid[:8], "big") >> 16 & 0xFFFF


_CUDA = "libcuda.so.1"
_BLOCK = 2 << 20
"""CUDA's mapping granularity: an allocation of whole blocks shares none, so it can be exported as a DMA-BUF."""
_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_SYNC_MEMOPS = 6  # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: what GPUDirect RDMA asks of memory that a NIC writes


def allocate(port: RailPort, nbytes: int, announce: Callable[[str], None]) -> "_HostMemory | _GpuMemory":
    """Allocate memory of the kind that `port` asks for. Raises VerbsError."""
    if port.memory == "host":
        return _HostMemory(nbytes)
    return _GpuMemory(port.gpu or 0, nbytes, announce)


class _HostMemory:
    """Anonymous, page-aligned memory of this process."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.map = mmap.mmap(-1, nbytes)
        self._first = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._first)

    def write(self, offset: int, data: bytes) -> None:
        self.map[offset : offset + len(data)] = data

    def read(self, offset: int, nbytes: int) -> bytes:
        return self.map[offset : offset + nbytes]


class _GpuMemory:
    """Memory of the GPU with NVML index `gpu`, in its primary context.

    NVML orders all GPUs by PCI address. CUDA does so too if CUDA_DEVICE_ORDER says so and CUDA_VISIBLE_DEVICES hides
    none.
    """

    def __init__(self, gpu: int, nbytes: int, announce: Callable[[str], None]) -> None:
        self.nbytes = -(-nbytes // _BLOCK) * _BLOCK
        self._announce = announce
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            announce(f"loading {_CUDA}")
            self._cuda = ctypes.CDLL(_CUDA)
        except OSError as error:
            raise VerbsError("missing", f"{error}: there is no NVIDIA driver here") from None
        device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), gpu)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(self.nbytes))
        self.address = pointer.value
        self._call("cuPointerSetAttribute", ctypes.byref(ctypes.c_uint(1)), _SYNC_MEMOPS, pointer)

    def write(self, offset: int, data: bytes) -> None:
        """Copy `data` to the GPU."""
        self._call("cuMemcpyHtoD_v2", self._address_at(offset), data, ctypes.c_size_t(len(data)))

    def read(self, offset: int, nbytes: int) -> bytes:
        """Copy `nbytes` from the GPU."""
        found = ctypes.create_string_buffer(nbytes)
        self._call("cuMemcpyDtoH_v2", found, self._address_at(offset), ctypes.c_size_t(nbytes))
        return found.raw

    @contextlib.contextmanager
    def exported(self) -> Iterator[int]:
        """Provide a DMA-BUF file descriptor of the whole memory, for registration. Raises VerbsError."""
        handle = ctypes.c_int(-1)
        size, no_flags = ctypes.c_size_t(self.nbytes), ctypes.c_ulonglong(0)
        self._call(
            "cuMemGetHandleForAddressRange", ctypes.byref(handle), self._address_at(0), size, _DMA_BUF_FD, no_flags
        )
        try:
            yield handle.value
        finally:
            os.close(handle.value)

    def _address_at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.address + offset)

    def _call(self, name: str, *arguments: Any) -> None:
        """Call CUDA's driver library. Raises VerbsError if the function is missing or fails."""
        self._announce(name)
        try:
            code = getattr(self._cuda, name)(*arguments)
        except AttributeError:
            raise VerbsError("missing", f"{_CUDA} has no {name}: the driver is too old", call=name) from None
        if code:
            words = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(words))
            text = (words.value or b"an unknown error").decode(errors="replace")
            raise VerbsError("refused", f"{name}: {text} ({code})", call=name)
