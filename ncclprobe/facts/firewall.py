"""Whether packets are filtered on this node, as far as it lets us see.

Needs CAP_NET_ADMIN (root): both nftables, with what iptables-nft made of it, and the list of iptables' own tables. The
command is not started without. Other users learn nothing, which is not that there is no firewall.
"""

import json
from typing import Any

from ncclprobe.errors import Denied, Missing, ParseError
from ncclprobe.facts.field import attempt
from ncclprobe.facts.process import Process
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

LEGACY = {"ipv4": "/proc/net/ip_tables_names", "ipv6": "/proc/net/ip6_tables_names"}


class Chain(Struct, frozen=True):
    """One base chain of nftables: where it sits (``inet/filter/input``), its hook, and what happens without a rule."""

    name: str
    hook: str
    policy: str = "accept"


class Firewall(Struct, frozen=True):
    """What filters. `chains` are nftables' base chains, `legacy` the tables iptables has loaded, as ``ipv4/filter``.

    That there is a chain says no more than that packets are filtered: its rules are not read. A policy of ``drop``
    closes every port that no rule opens.
    """

    chains: tuple[Chain, ...] | Absent
    legacy: tuple[str, ...] | Absent


@collector
def firewall(host: Host, process: Process) -> Firewall:
    """Read one command and two files. Needs CAP_NET_ADMIN (root)."""
    if "net_admin" not in process.capabilities:
        raise Denied("firewall: only root (CAP_NET_ADMIN) may see the rules")
    legacy = attempt(lambda: _legacy(host))
    return Firewall(attempt(lambda: chains(host.ask("run", "nft", "-j", "list", "chains"))), legacy)


def _legacy(host: Host) -> tuple[str, ...]:
    found: list[str] = []
    for family, path in LEGACY.items():
        try:
            found += [f"{family}/{table}" for table in host.ask("read", path).split()]
        except Missing:  # the module is not loaded: no table of its
            continue
    return tuple(found)


def chains(text: str) -> tuple[Chain, ...]:
    """Return the base chains of ``nft -j list chains`` (libnftables-json(5)). Raises ParseError."""
    try:
        items = json.loads(text)["nftables"]
        found = [item["chain"] for item in items if "chain" in item]
        return tuple(_chain(row) for row in found if "hook" in row)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ParseError(f"nft -j list chains: {text[:80]!r}") from None


def _chain(row: dict[str, Any]) -> Chain:
    name = "/".join(str(row[key]) for key in ("family", "table", "name"))
    return Chain(name, str(row["hook"]), str(row.get("policy", "accept")))
