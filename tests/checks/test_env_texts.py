"""Every variable of the table that says what it takes: a wrong value is found, and a right one is not."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.env.fixtures import TWO_NODES, gpus, having, linked, nccl, setting
from ncclprobe.checks.env.job import debug_file, torch_timeouts, visible
from ncclprobe.checks.env.transports import forced_algo
from ncclprobe.checks.env.values import (
    bool_word,
    debugging,
    number_text,
    overruled,
    range,
    retired_var,
    unknown_text,
    unknown_var,
)
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import NamedFiles, Settings
from ncclprobe.model.findings import Severity
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from ncclprobe.nccl.parameters import Parameter, table
from tests.checks.cases.env_values import bare
from tests.each_row import each_row

LOADED = replace(nccl(2, 30, 7), packages={"torch": "2.13.0+cu130"})
OF_LAUNCHERS = {"launch", "slurm", "mpi"}  # launch.* judges what they say of the job


def findings(settings: Settings) -> list[Any]:
    return [
        *unknown_var.run(settings, LOADED),
        *retired_var.run(settings, LOADED),
        *bool_word.run(settings, LOADED),
        *number_text.run(settings),
        *range.run(settings),
        *unknown_text.run(settings),
        *debugging.run(settings),
        *overruled.run(settings, LOADED),
        *forced_algo.run(settings, gpus(8), linked(8), TWO_NODES, LOADED),
    ]


def numbered(parameter: Parameter) -> bool:
    return parameter.type in ("bool", "int", "size") or (parameter.type == "enum" and parameter.low is not None)


def wrong(parameter: Parameter) -> Iterator[str]:
    """A word that it does not know, and the numbers beside its range."""
    if parameter.words or numbered(parameter):
        yield "nonesuch"
    if not parameter.words and numbered(parameter):
        if parameter.low is not None:
            yield str(parameter.low - 1)
        if parameter.high is not None:
            yield str(parameter.high + 1)


def right(parameter: Parameter) -> Iterator[str]:
    """Each of its words, and the ends of its range."""
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
    refused = [each for each in tried if [*unknown_text.run(setting(*each)), *range.run(setting(*each))]]
    assert refused == []


@each_row(
    ("name", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "maybe"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "maybe"),
        ("GLOO_DEVICE_TRANSPORT", "UDP"),
    ],
)
def test_what_torch_and_gloo_refuse_ends_the_process(name: str, value: str) -> None:
    (finding,) = unknown_text.run(setting(name, value))
    assert finding.severity is Severity.FAIL


def test_a_number_out_of_range_is_read_by_torch_and_does_not_end_it() -> None:
    (finding,) = unknown_text.run(setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "9"))
    assert finding.severity is Severity.WARN


REAL = {
    "vLLM": {"NCCL_CUMEM_ENABLE": "0", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "NCCL_NVLS_ENABLE": "0"},
    "DeepSpeed": {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_SOCKET_IFNAME": "=eth0"},
    "Megatron-LM": {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
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


@each_row(("value", "notes"), [("0", 1), ("1", 0), ("", 0)])
def test_nccls_ras_that_is_off_is_noted_for_what_attach_then_does_not_see(value: str, notes: int) -> None:
    found = list(torch_timeouts.run(setting("NCCL_RAS_ENABLE", value) if value else having()))
    assert [finding.severity for finding in found] == [Severity.NOTE] * notes


@each_row(("torch", "severity"), [("2.13.0", None), ("2.15.1+cu130", Severity.WARN), (None, Severity.NOTE)])
def test_what_torch_no_longer_reads_depends_on_the_torch_that_is_installed(
    torch: str | None, severity: Severity | None
) -> None:
    software = replace(LOADED, packages={"torch": torch} if torch else {})
    found = list(retired_var.run(setting("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"), software))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


@each_row(
    ("torch", "name", "said"),
    [
        ("2.6.0+cu124", "TORCH_NCCL_TRACE_BUFFER_SIZE", ""),
        ("2.9.1+cu128", "TORCH_NCCL_TRACE_BUFFER_SIZE", "is an old name that torch still reads; TORCH_FR_BUFFER_SIZE"),
        ("2.6.0+cu124", "TORCH_FR_BUFFER_SIZE", "is unknown to torch 2.6.0: it was added in 2.8.0"),
        ("2.9.1+cu128", "TORCH_FR_BUFFER_SIZE", ""),
        (None, "TORCH_FR_BUFFER_SIZE", ""),
    ],
)
def test_a_name_of_torchs_is_advised_only_where_the_installed_torch_reads_it(
    torch: str | None, name: str, said: str
) -> None:
    """torch 2.6 does not read TORCH_FR_…: who follows the advice has no flight record at all."""
    software = replace(LOADED, packages={"torch": torch} if torch else {})
    found = [finding.message for finding in retired_var.run(setting(name, "200"), software)]
    assert len(found) == bool(said)
    assert all(message.startswith(said) for message in found)


@each_row(
    ("name", "value", "said"),
    [
        ("NCCL_ALGO", "Ring,Tree", "excludes CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT from every"),
        ("NCCL_ALGO", "^PAT", "excludes PAT from every"),
        ("NCCL_PROTO", "^LL128", "excludes LL128 from every"),
        ("NCCL_PROTO", "LL128,Simple;allreduce:LL,Simple", "gives each collective its own list"),
        ("NCCL_PROTO", "LL128,Simple;allreduce:LL", "gives each collective its own list"),
    ],
)
def test_a_list_of_several_is_said_to_exclude_and_not_to_force(name: str, value: str, said: str) -> None:
    first, *_ = forced_algo.run(setting(name, value), gpus(8), bare(8), TWO_NODES, LOADED)
    assert first.severity is Severity.NOTE
    assert said in first.message
    assert "forces one" not in first.message


@each_row("value", ["Bogus", "LL", "^LL128", "^LL,LL128,Simple"])
@each_row("backend", ["nccl", "gloo"])
def test_what_is_wrong_with_protocols_is_not_mended_by_algorithms(value: str, backend: str) -> None:
    settings = setting("NCCL_PROTO", value)
    found = list(forced_algo.run(settings, gpus(8), bare(8), TWO_NODES, LOADED, Job(backend)))
    assert bool(found) is (backend == "nccl" or value == "Bogus")
    assert all("LL, LL128 and Simple" in each.remedy and "NCCL_ALGO" not in each.remedy for each in found)


def test_excluding_nvls_costs_something_only_where_there_is_nvls() -> None:
    without, with_it = (
        list(forced_algo.run(setting("NCCL_ALGO", "Ring,Tree"), gpus(8), links, TWO_NODES, LOADED))
        for links in (bare(8), linked(8))
    )
    assert [f.severity for f in (*without, *with_it)] == [Severity.NOTE, Severity.WARN]


@each_row("text", ["", " ", "-1", "NoDevFiles", "-1,0"])
def test_a_list_that_shows_no_gpu_fails_a_job_on_gpus_and_no_other(text: str) -> None:
    environment = Environment({"CUDA_VISIBLE_DEVICES": text})
    (finding,) = visible.run(environment, Absent("no launcher"), Absent("no driver"), Job())
    assert finding.severity is Severity.FAIL
    assert not list(visible.run(environment, Absent("no launcher"), gpus(8), Job("gloo")))


def test_what_begins_several_uuids_names_no_gpu() -> None:
    seen = gpus(2)  # GPU-0000 and GPU-0001
    for text, said in (
        ("GPU-000", ["names GPU-000, a prefix of several UUIDs: CUDA stops reading the list there"]),
        ("GPU-0001", []),
    ):
        found = visible.run(Environment({"CUDA_VISIBLE_DEVICES": text}), Absent("no launcher"), seen, Job())
        assert [each.message for each in found] == said


@each_row(
    ("name", "text", "severity"),
    [
        ("NCCL_BUFFSIZE", "8M", "FAIL"),
        ("NCCL_BUFFSIZE", "16MiB", "FAIL"),
        ("NCCL_P2P_NET_CHUNKSIZE", "512K", "FAIL"),
        ("NCCL_BUFFSIZE", "8388608 # 8 MiB", "WARN"),
        ("NCCL_IB_TIMEOUT", "22s", "WARN"),
        ("NCCL_NTHREADS", "256 threads", "WARN"),
    ],
)
def test_a_unit_that_leaves_a_few_bytes_fails_and_one_that_leaves_the_number_warns(
    name: str, text: str, severity: str
) -> None:
    assert [f.severity.name for f in number_text.run(setting(name, text))] == [severity]


@each_row(
    ("kind", "settings", "said"),
    [
        ("slurm", having(NCCL_DEBUG="INFO"), ["NCCL_DEBUG"]),
        ("pytorchjob", having(NCCL_DEBUG="WARN"), ["NCCL_DEBUG"]),
        ("slurm", having(NCCL_DEBUG="VERSION"), []),
        ("slurm", having(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/tmp/nccl.%h.%p"), []),
        ("torchrun", having(NCCL_DEBUG="INFO"), []),
    ],
)
def test_lines_that_a_killed_rank_would_lose_in_a_pipe_are_noted(
    kind: str, settings: Settings, said: list[str]
) -> None:
    found = [*debug_file.run(settings, NamedFiles(), Launch(kind, 0, 16, 0, 8, 2))]
    assert [each.subject for each in found] == said
    assert all(each.severity is Severity.NOTE for each in found)
