"""What the checks of the environment say of NCCL's choices, in their words."""

from collections.abc import Iterable

import pytest

from ncclprobe.checks.env.fixtures import (
    ALONE,
    LINK_LOCAL,
    NO_NCCL,
    ONE_NODE,
    TWO_NODES,
    USUAL,
    V1,
    V2,
    fabric,
    hcas,
    nccl,
    port,
    roce,
    setting,
)
from ncclprobe.checks.env.hcas import gid_index, hca_down, hca_prefix
from ncclprobe.checks.env.values import default_of
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.parameters import table
from tests.each_row import each_row


def said(findings: Iterable[Finding]) -> list[tuple[Severity, str, str]]:
    return [(f.severity, f.subject, f.message) for f in findings]


def test_a_prefix_names_what_it_catches() -> None:
    machine = fabric(*(port(f"mlx5_{n}") for n in (0, 1, 10, 11)))
    (found,) = said(hca_prefix.run(setting("NCCL_IB_HCA", "mlx5_1"), machine))
    assert found == (Severity.WARN, "NCCL_IB_HCA", "mlx5_1 also selects mlx5_10, mlx5_11")


def test_the_default_of_an_old_version_is_named_with_the_index_to_use() -> None:
    found = list(gid_index.run(Settings(), fabric(roce("mlx5_3", *USUAL)), TWO_NODES, nccl(2, 20, 5)))
    assert said(found) == [
        (
            Severity.FAIL,
            "mlx5_3:1",
            "GID 0, chosen by NCCL 2.20.5, which does not search for one, is link-local RoCE v1; "
            "index 3 is RoCE v2 over IPv4",
        )
    ]
    assert found[0].seen == "/sys/class/infiniband/mlx5_3/ports/1/gids/0"


def test_one_index_for_all_ports_is_judged_port_by_port() -> None:
    short = roce("mlx5_4", (LINK_LOCAL, V1), (LINK_LOCAL, V2), ("::ffff:10.0.0.2", V2))
    machine = fabric(roce("mlx5_3", *USUAL), short)
    found = gid_index.run(setting("NCCL_IB_GID_INDEX", "3"), machine, ALONE, NO_NCCL)
    assert [(f.severity, f.subject) for f in found] == [(Severity.FAIL, "mlx5_4:1")]


def test_no_gid_table_at_all_is_not_fine() -> None:
    machine = fabric(port("mlx5_3", link_layer="Ethernet", gids=Absent("permission denied", "Denied")))
    with pytest.raises(Unlearned, match="mlx5_3:1"):
        list(gid_index.run(Settings(), machine, ONE_NODE, NO_NCCL))


def test_some_gid_tables_that_were_not_read_are_named() -> None:
    machine = fabric(roce("a", *USUAL), port("b", link_layer="Ethernet", gids=Absent("permission denied", "Denied")))
    assert [(f.severity, f.subject) for f in gid_index.run(Settings(), machine, TWO_NODES, NO_NCCL)] == [
        (Severity.NOTE, "b:1")
    ]


def test_ports_of_which_no_state_is_known_are_not_fine() -> None:
    machine = fabric(port("mlx5_0", state=Absent("permission denied", "Denied")))
    with pytest.raises(Unlearned, match="mlx5_0:1"):
        list(hca_down.run(setting("NCCL_IB_HCA", "mlx5_0"), machine, NO_NCCL))


def test_a_port_that_is_down_is_the_links_fault_and_not_the_jobs() -> None:
    machine = fabric(*hcas(2).ports, port("mlx5_7", state="DOWN", physical="Polling"))
    (found,) = hca_down.run(setting("NCCL_IB_HCA", "=mlx5_0,mlx5_7"), machine, NO_NCCL)
    assert (found.blame, found.action, found.subject) == ("link", "repair", "mlx5_7:1")


@each_row(
    ("name", "version", "default"),
    [
        ("NCCL_IB_TIMEOUT", None, 20),
        ("NCCL_IB_TIMEOUT", (2, 30, 7), 20),
        ("NCCL_IB_TIMEOUT", (2, 21, 5), 18),
        ("NCCL_IB_TIMEOUT", (2, 12, 0), 14),
        ("NCCL_IB_TIMEOUT", (2, 1, 0), None),
        ("NCCL_IB_SL", None, None),
        ("NCCL_CUMEM_ENABLE", (2, 18, 3), 0),
        ("NCCL_CUMEM_ENABLE", (2, 29, 7), -2),
        ("NCCL_BUFFSIZE", None, 4194304),
        ("NCCL_MIN_CTAS", None, None),
    ],
)
def test_defaults_go_by_the_version(name: str, version: tuple[int, int, int] | None, default: int | None) -> None:
    assert default_of(table()[name], version) == default
