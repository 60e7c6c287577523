"""libibverbs, loaded on first use, and its calls with the reason for each failure.

Only in the child (:mod:`ncclprobe.probes.verbs.server`): any of these calls may never return.
"""

import contextlib
import ctypes
import errno
import os
import select
from collections.abc import Callable, Iterator
from typing import Any

from ncclprobe.model.rails import RailFailure, RailFailureKind, RailStepName
from ncclprobe.probes.verbs import abi

NAME = "libibverbs.so.1"
EVENTS = 64
"""Maximum asynchronous events read from a device."""


class VerbsError(Exception):
    """A failed step; `failure` adds the step, which the caller knows."""

    def __init__(self, kind: RailFailureKind, text: str, **more: Any) -> None:
        super().__init__(text)
        self.kind, self.more = kind, more

    def failure(self, step: RailStepName, **more: Any) -> RailFailure:
        """Return the error as a failure of `step`."""
        return RailFailure(step=step, kind=self.kind, text=str(self), **{**self.more, **more})


class Library:
    """The functions of libibverbs. `announce` receives the name of each before it is called."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.announce = announce
        announce(f"loading {NAME}")
        try:
            self._loaded = ctypes.CDLL(NAME, use_errno=True)
        except OSError as error:
            raise VerbsError("missing", f"{error}: no RDMA library in this image (rdma-core, libibverbs1)") from None

    def has(self, name: str) -> bool:
        """Return whether the library, which may be old, has this function."""
        return hasattr(self._loaded, name)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function. Raises VerbsError if the result is null or a nonzero number."""
        self.announce(name)
        function = self._function(name)
        ctypes.set_errno(0)
        result = function(*arguments)
        if function.restype is not None and not (result if function.restype is not ctypes.c_int else result == 0):
            raise refusal(name, result if isinstance(result, int) and result > 0 else ctypes.get_errno())
        return result

    def _function(self, name: str) -> Any:
        try:
            function = getattr(self._loaded, name)
        except AttributeError:
            raise VerbsError("missing", f"{NAME} has no {name}: it is too old", call=name) from None
        function.restype, function.argtypes = abi.PROTOTYPES[name]
        return function

    @contextlib.contextmanager
    def devices(self) -> Iterator[dict[str, int]]:
        """Provide each device's address by name, for the duration of the block."""
        count = ctypes.c_int()
        self.announce("ibv_get_device_list")
        listed = self._function("ibv_get_device_list")(ctypes.byref(count))
        if not listed:
            number = ctypes.get_errno()
            if number == errno.ENOSYS:  # rdma-core's word for: the kernel has no ib_uverbs
                raise VerbsError("missing", "no RDMA device: the kernel offers none (is ib_uverbs loaded?)")
            raise refusal("ibv_get_device_list", number)
        try:
            addresses = [listed[index] for index in range(count.value)]
            yield {abi.Device.from_address(at).name.decode(errors="replace"): at for at in addresses if at}
        finally:
            self._function("ibv_free_device_list")(listed)

    def events(self, context: Any) -> Iterator[tuple[int, str]]:
        """Yield code and description of the asynchronous events that the device has reported since."""
        for _ in range(EVENTS):
            if not select.select([context.contents.async_fd], [], [], 0)[0]:
                return
            event = abi.AsyncEvent()
            with contextlib.suppress(VerbsError):
                self.call("ibv_get_async_event", context, ctypes.byref(event))
                words = self._function("ibv_event_type_str")(event.event_type)
                yield event.event_type, words.decode(errors="replace") if words else f"event {event.event_type}"
                self._function("ibv_ack_async_event")(ctypes.byref(event))
                continue
            return


def refusal(name: str, number: int) -> VerbsError:
    """Return the error of a verb that failed with this errno."""
    words = os.strerror(number) if number else "failed without a reason"
    return VerbsError("refused", f"{name}: {words}{hint(name, number)}", call=name, errno=number)


def hint(name: str, number: int) -> str:
    """Return what this error usually means, as a clause; empty if unknown."""
    registers = name.startswith("ibv_reg_")
    if number == errno.ENOMEM and (registers or name in ("ibv_create_cq", "ibv_create_qp")):
        return ", as happens at the limit of locked memory (ulimit -l) without CAP_IPC_LOCK"
    if number == errno.EFAULT and registers:
        return ", as happens with GPU memory that no peer memory module translates"
    if number in (errno.EOPNOTSUPP, errno.ENOSYS) and name == "ibv_reg_dmabuf_mr":
        return ", so the kernel or the NIC's driver does not take DMA-BUFs"
    if number in (errno.EACCES, errno.EPERM, errno.ENOENT) and name == "ibv_open_device":
        return ", so /dev/infiniband is not given to this process"
    if number in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH) and name == "ibv_modify_qp":
        return ": no path to the peer's GID was found (no route, or no answer to ARP or neighbour discovery)"
    if number == errno.EINVAL and name == "ibv_modify_qp":
        return ": the port does not support this: a path MTU above its own, a GID of another family, a service level"
    return ""
