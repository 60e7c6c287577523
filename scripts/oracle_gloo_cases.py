"""The networks, host names and variables that `scripts/oracle_gloo.py` asks torch about."""

from random import Random
from typing import Any

SWITCHES = 3
_NAMES = (("eth0", "ens3", "eth0"), ("ib0", "eth1", "bond0"), ("docker0", "eth2", "cni0"))


def world(draw: Random, cases: int) -> dict[str, Any]:
    """Return one network of one to four nodes, and as many cases."""
    count = draw.choice([1, 2, 2, 2, 3, 3, 4])
    alike = [draw.choice(names) for names in _NAMES] if draw.random() < 0.7 else None
    nodes = [_node(draw, number, alike) for number in range(count)]
    return {"nodes": nodes, "cases": [{"ranks": _ranks(draw, nodes)} for _ in range(cases)]}


def _node(draw: Random, number: int, names: list[str] | None) -> dict[str, Any]:
    links = [_link(draw, number, switch, names) for switch in range(SWITCHES) if switch == 0 or draw.random() < 0.5]
    if draw.random() < 0.2:
        alone = {"name": "virbr0", "switch": None, "state": "up", "addresses": ["172.17.0.1/16"]}
        links.append(alone)  # the same on every node, as docker's
    return {"links": links, "lo": draw.random() < 0.95}


def _link(draw: Random, number: int, switch: int, names: list[str] | None) -> dict[str, Any]:
    """Return a link whose addresses tell its switch and node: 10.1.0.4/24 and fd01::4/64 are of node 3 on switch 1."""
    name = names[switch] if names else draw.choice(_NAMES[switch])
    four, six = f"10.{switch}.0.{number + 1}/24", f"fd{switch:02x}::{number + 1}/64"
    addresses = draw.choice([[four]] * 6 + [[four, six]] * 5 + [[six], []])
    if draw.random() < 0.15:
        addresses = [*addresses, f"192.168.{switch}.{number + 1}/24 label {name}:1"]
    if draw.random() < 0.15:
        addresses = [*addresses, f"fe80::{number + 1}/64"]
    if draw.random() < 0.1:
        addresses = addresses[::-1]
    state = draw.choice(["up"] * 14 + ["nocarrier", "down"])
    return {"name": name, "switch": switch, "state": state, "addresses": addresses}


def _ranks(draw: Random, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each node has: healthy names on most, so that many groups come up."""
    of_all = draw.random()
    common = _ifname(draw, nodes[0]) if of_all < 0.35 else None
    style = draw.choice(["four"] * 5 + ["six", "mixed"])
    ill = draw.choice([(), (), (), (draw.randrange(len(nodes)),), (draw.randrange(len(nodes)),), range(len(nodes))])
    ranks: list[dict[str, Any]] = []
    for number, node in enumerate(nodes):
        own = _ifname(draw, node) if 0.35 <= of_all < 0.5 and draw.random() < 0.6 else common
        env = {} if own is None else {"GLOO_SOCKET_IFNAME": own}
        if draw.random() < 0.03:
            env["GLOO_DEVICE_TRANSPORT"] = "TCP"
        hostname = (
            f"node{number}"
            if draw.random() < 0.97
            else draw.choice(["x" * 63, "x" * 64, "a.b", f"10.0.0.{number + 1}"])
        )
        ranks.append(
            {"hostname": hostname, "hosts": _hosts(draw, hostname, number, node, style, number in ill), "env": env}
        )
    if draw.random() < 0.1:
        for rank in ranks:
            rank["env"]["TORCH_GLOO_LAZY_INIT"] = "1"
    return ranks


def _ifname(draw: Random, node: dict[str, Any]) -> str:
    names = [link["name"] for link in node["links"]]
    labels = [a.split()[-1] for link in node["links"] for a in link["addresses"] if "label" in a]
    name = draw.choice(names)
    odd = ["lo", "eth", f"^{name}", f"={name}", "e", "", ",", ",,", f"{name},", f",{name}", f"{name}, {name}", "eth9"]
    lists = [",".join(draw.sample(names, min(2, len(names)))), f"{name},{name}", f"{name},lo"]
    return str(draw.choice([name] * 10 + [names[0]] * 4 + labels + lists + [draw.choice(odd)]))


def _hosts(draw: Random, hostname: str, number: int, node: dict[str, Any], style: str, ill: bool) -> str:
    """Return an /etc/hosts: the host's own name is right, or on an `ill` node mostly Debian's, stale or nowhere."""
    own = [a.split("/")[0] for link in node["links"] for a in link["addresses"]]
    kind = {"four": [a for a in own if ":" not in a], "six": [a for a in own if ":" in a], "mixed": own}[style] or own
    strange = ["127.0.1.1", "127.0.0.1", "::1", "192.0.2.9", f"10.0.0.{(number + 1) % 4 + 1}", "0.0.0.0", "::"]
    strange += ["224.0.0.1", "10.0.0.255", "255.255.255.255", "127.5.6.7", "fe80::1%eth0", "no address", "fd00::99"]
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for _ in range(draw.choice([1, 1, 2, 0]) if ill else draw.choice([1, 1, 1, 2])):
        right = kind and (not ill or draw.random() < 0.25)
        address = draw.choice(kind) if right else draw.choice(["127.0.1.1", draw.choice(strange)])
        lines.append(f"{address} {hostname}")
    draw.shuffle(lines)
    return "\n".join(lines) + "\n"
