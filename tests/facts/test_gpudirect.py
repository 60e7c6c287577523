"""What GPUDirect needs of the kernel, from the files NCCL looks at and those that tell of DMA-BUF."""

from typing import Any

from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts import driver
from ncclprobe.facts.driver import PATHS, VERSION, GpuDirect
from ncclprobe.facts.field import attempt
from ncclprobe.facts.machine import System
from ncclprobe.host import Question
from ncclprobe.model.errors import Denied, Missing
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
LINUX = System("n0", "6.8.0-45-generic", "x86_64", "Ubuntu", None)
NONE: dict[Question, Any] = {
    **{("read", path): Missing("not there") for path in PATHS},
    ("read", VERSION): Missing("not there"),
}


def read(said: dict[Question, Any], system: System | Absent = LINUX) -> GpuDirect:
    host = answers(NONE | said)
    seen = driver.gpudirect.run(host, system, attempt(lambda: driver.driver.run(host)))
    assert isinstance(seen, GpuDirect)
    return seen


def test_a_machine_without_any_of_it_is_known_to_have_none() -> None:
    seen = read({})
    assert seen == GpuDirect(peer_memory={}, kernel=(6, 8), driver=None)
    assert seen.dma_buf is False


@each_row("path", PATHS)
def test_each_of_the_three_paths_counts(path: str) -> None:
    assert read({("read", path): "1.3-0\n"}).peer_memory == {path: "1.3-0"}


def test_a_module_nobody_may_look_for_is_unknown() -> None:
    assert read({("read", PATHS[1]): Denied("no")}).peer_memory == Absent("no", "Denied")


@each_row(
    ("text", "kernel", "works"),
    [(OPEN, "6.8.0", True), (CLOSED, "6.8.0", False), (OPEN, "4.18.0-513.el8", None), (OPEN, "5.12.0-rc1", True)],
)
def test_dma_buf_takes_the_open_driver_and_a_kernel_that_has_it(text: str, kernel: str, works: bool | None) -> None:
    system = System("n0", kernel, "x86_64", "", None)
    assert read({("read", VERSION): text}, system).dma_buf is works


def test_a_driver_that_cannot_be_read_leaves_dma_buf_unknown() -> None:
    assert read({("read", VERSION): Denied("no")}).dma_buf is None
    assert read({("read", VERSION): OPEN}, Absent("no")).dma_buf is None


def test_it_is_learned_even_where_the_system_is_not() -> None:
    facts = collect(answers(NONE), [driver.gpudirect])
    assert isinstance(facts[GpuDirect], GpuDirect)
