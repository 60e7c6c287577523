"""Text from outside may be a hundred thousand times the same: a reader passes over it a bounded number of times.

No time is asserted: a reader whose work grows with the square of the length runs into the deadline of every test.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from ncclprobe.facts.names import comm_id_host
from ncclprobe.facts.nccl_conf import parse_conf
from ncclprobe.host.pasted_job import described
from ncclprobe.host.pasted_scripts import scripts
from ncclprobe.host.settings import recorded, sanitised
from ncclprobe.nccl.algorithms import ALGORITHMS, parse_pin
from ncclprobe.nccl.hcas import MAX_INTERFACES, address_range, parse_selector
from ncclprobe.nccl.log import read
from ncclprobe.nccl.values import read_int, read_level
from ncclprobe.redact.redactor import Redactor
from tests.each_row import each_row

LENGTH = 1 << 17
UNITS = (
    "a", "a:", ":", "@", "a@", "a:a@", "://", "0", "0:", "-", "a-", "a.", ".", "/", "a/", "=", ",", "a,", " ", "[", "%",
    "\n", "\t:", "_a", "mpirun ", "srun torchrun ",
)  # fmt: skip
READERS: dict[str, Callable[[str], Any]] = {
    "a value": sanitised, "a recorded value": lambda text: recorded("NCCL_SOCKET_IFNAME", text),
    "a configuration file": lambda text: parse_conf(text, "/etc/nccl.conf"),
    "a list of interfaces": lambda text: parse_selector(text, MAX_INTERFACES),
    "an integer": lambda text: read_int(text, 0), "a level": read_level,
    "NCCL_ALGO": lambda text: parse_pin(text, ALGORITHMS, None),
    "an address range": lambda text: address_range(text, "inet"), "NCCL_COMM_ID": comm_id_host,
    "text that is redacted": lambda text: Redactor("key").text(text), "a log of NCCL": read,
    "what a paste names": lambda text: described([text]), "a script": lambda text: scripts([text]),
}  # fmt: skip


@pytest.mark.timeout(300)
@each_row("unit", UNITS)
@each_row("reader", READERS.values(), ids=READERS)
@pytest.mark.slow
@pytest.mark.every_time
def test_a_long_text_of_one_pattern_is_read(reader: Callable[[str], Any], unit: str) -> None:
    with contextlib.suppress(ValueError):  # refused is read
        reader(unit * (LENGTH // len(unit)) + "!")


def test_a_value_is_cut_before_anything_looks_at_it() -> None:
    assert len(recorded("NCCL_SOCKET_IFNAME", "a:" * 5000)) == 4096
    assert len(recorded("LD_LIBRARY_PATH", "/a:" * 5000)) == 15000
