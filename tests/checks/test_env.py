"""Every variable of the table that says what it takes: a wrong value is found, and a right one is not."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.env.fixtures import NO_NCCL, TWO_NODES, gpus, having, linked, setting
from ncclprobe.checks.env.transports import forced_algo
from ncclprobe.checks.env.values import (
    bool_word,
    debugging,
    default_of,
    number_text,
    overruled,
    retired_var,
    unknown_text,
    unknown_var,
)
from ncclprobe.checks.env.values import range as in_range
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import Severity
from ncclprobe.model.report import Setting
from ncclprobe.nccl.parameters import Parameter, table
from tests.checks.cases.env import torch
from tests.each_row import each_row

LOADED = torch("2.13.0+cu130")
OF_LAUNCHERS = {"launch", "slurm", "mpi"}  # launch.* judges what they say of the job


def findings(settings: Settings) -> list[Any]:
    return [
        *unknown_var.run(settings, LOADED), *retired_var.run(settings, LOADED), *bool_word.run(settings, LOADED),
        *number_text.run(settings), *in_range.run(settings), *unknown_text.run(settings), *debugging.run(settings),
        *overruled.run(settings, LOADED), *forced_algo.run(settings, gpus(8), linked(8), TWO_NODES, LOADED),
    ]  # fmt: skip


def numbered(parameter: Parameter) -> bool:
    return parameter.type in ("bool", "int", "size") or (parameter.type == "enum" and parameter.low is not None)


def wrong(parameter: Parameter) -> Iterator[str]:
    """Yield a word that it does not know, and the numbers beside its range."""
    if parameter.words or numbered(parameter):
        yield "nonesuch"
    if not parameter.words and numbered(parameter):
        if parameter.low is not None:
            yield str(parameter.low - 1)
        if parameter.high is not None:
            yield str(parameter.high + 1)


def right(parameter: Parameter) -> Iterator[str]:
    """Yield each of its words, and the ends of its range."""
    yield from parameter.words
    if not parameter.words and numbered(parameter):
        yield from (str(end) for end in (parameter.low, parameter.high) if end is not None)


ROWS = [row for row in table().values() if row.is_read and row.owner not in OF_LAUNCHERS]


def test_a_wrong_value_is_found() -> None:
    def told(row: Parameter, value: str) -> set[Severity]:
        plugins_words = row.words and row.owner not in ("nccl", "torch", "gloo", "nvshmem", "ucx")
        found = {finding.severity for finding in findings(setting(row.name, value))}
        return found & ({Severity.NOTE} if plugins_words else {Severity.WARN, Severity.FAIL})

    tried = [(row, value) for row in ROWS for value in wrong(row)]
    assert len(tried) > 1000
    assert [f"{row.name}={value}" for row, value in tried if not told(row, value)] == []


def test_a_right_value_is_none_that_a_reader_does_not_know() -> None:
    tried = [(row.name, value) for row in ROWS for value in right(row)]
    assert len(tried) > 500
    refused = [each for each in tried if [*unknown_text.run(setting(*each)), *in_range.run(setting(*each))]]
    assert refused == []


REAL = {
    "vLLM": {"NCCL_CUMEM_ENABLE": "0", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "NCCL_NVLS_ENABLE": "0"},
    "DeepSpeed": {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_SOCKET_IFNAME": "=eth0"},
    "NeMo": {"NCCL_P2P_NET_CHUNKSIZE": "2097152", "TORCH_NCCL_HIGH_PRIORITY": "1", "NCCL_GRAPH_REGISTER": "0"},
    "Ray Train": {"NCCL_SOCKET_IFNAME": "^lo,docker,veth", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
    "EFA": {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "NCCL_SOCKET_IFNAME": "^docker,lo"},
    "TCPXO": {"NCCL_FASTRAK_CTRL_DEV": "eth0", "NCCL_FASTRAK_USE_SNAP": "1", "NCCL_FASTRAK_USE_LLCM": "1"},
    "InfiniBand": {"NCCL_IB_HCA": "mlx5", "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "0"},
    "RoCE": {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106", "NCCL_IB_SL": "3", "NCCL_IB_TIMEOUT": "22"},
    "Slurm with UCX": {"UCX_TLS": "rc,cuda_copy", "UCX_NET_DEVICES": "mlx5_0:1", "UCX_LOG_LEVEL": "warn"},
    "debugging": {"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
    "GB200": {"NCCL_MNNVL_ENABLE": "1", "NCCL_NET_GDR_C2C": "1", "NVSHMEM_BOOTSTRAP": "UID", "NCCL_CUMEM_ENABLE": "1"},
}  # fmt: skip


@each_row("variables", REAL.values(), ids=REAL)
def test_of_a_real_setup_nothing_worse_than_a_note_is_said(variables: dict[str, str]) -> None:
    assert [finding for finding in findings(having(**variables)) if finding.severity is not Severity.NOTE] == []


def test_thousands_of_strange_names_are_not_all_compared() -> None:
    names = [f"NCCL_STRANGE_{n:05}" for n in range(5000)]
    settings = Settings({name: Setting(name, None, f"/etc/nccl.conf:{n}") for n, name in enumerate(names, start=1)})
    found = list(unknown_var.run(settings, NO_NCCL))
    assert len(found) == 101
    assert {f.severity for f in found[1:]} == {Severity.WARN}
    assert "and 4900 more names up to NCCL_STRANGE_04999" in found[0].message


@each_row(
    ("name", "version", "default"),
    [
        ("NCCL_IB_TIMEOUT", None, 20), ("NCCL_IB_TIMEOUT", (2, 30, 7), 20), ("NCCL_IB_TIMEOUT", (2, 21, 5), 18),
        ("NCCL_IB_TIMEOUT", (2, 12, 0), 14), ("NCCL_IB_TIMEOUT", (2, 1, 0), None), ("NCCL_IB_SL", None, None),
        ("NCCL_CUMEM_ENABLE", (2, 18, 3), 0), ("NCCL_CUMEM_ENABLE", (2, 29, 7), -2), ("NCCL_BUFFSIZE", None, 4194304),
        ("NCCL_MIN_CTAS", None, None),
    ],
)  # fmt: skip
def test_defaults_go_by_the_version(name: str, version: tuple[int, int, int] | None, default: int | None) -> None:
    assert default_of(table()[name], version) == default
