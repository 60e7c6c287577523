"""What we predict for a case, what NCCL said, and where the two differ."""

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from oracle_cases import Case, World
from oracle_server import HOSTS

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address
from ncclprobe.facts.names import comm_id_host
from ncclprobe.facts.nccl_conf import LONGEST_FIELD, Settings, conf_paths, merge, parse_conf
from ncclprobe.facts.software import Version
from ncclprobe.model.values import Struct
from ncclprobe.nccl.interfaces import find_interfaces, forced_family, same_subnet
from ncclprobe.nccl.values import keeps_default, read_int

_USING = re.compile(r"Bootstrap ?: Using (\S+?):(\S+)<\d+>$", re.MULTILINE)
_REFUSALS = {
    "Bootstrap : no socket interface found": "no interface",
    "NET/Socket : No usable listening interface found": "no interface in the subnet",
    "Invalid NCCL_COMM_ID": "bad NCCL_COMM_ID",
}
_ECHO = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.*)")
_REPEATED = re.compile(r"(\w)\1{19,}")
_NUMBER = "NCCL_GDRCOPY_ENABLE"
_LONGEST_ECHO = 800  # one message holds 1023 characters with its head
_NAMES = {name: address for address, name in (line.split() for line in HOSTS.splitlines())}


class Difference(Struct, frozen=True):
    """One point on which NCCL and we differ: `what` is ``choice``, ``settings``, ``echo`` or ``number``."""

    what: str
    predicted: str
    said: str
    case: Case
    world: World

    def __str__(self) -> str:
        links = ", ".join(f"{link.name} {link.state} {' '.join(link.addresses)}" for link in self.world.links)
        files = "".join(f" {path}={text!r}" for path, text in self.case.files.items())
        where = f"{self.case.variables}{files} on [{links}{'' if self.world.lo else ', lo down'}]"
        text = f"{self.what}: predicted {self.predicted}, NCCL: {self.said}; {where}"
        return _REPEATED.sub(lambda match: f"{match[1]}…({len(match[0])})", text)


def judge(
    case: Case, world: World, addresses: Sequence[Address], answer: Mapping[str, Any], version: Version
) -> list[Difference]:
    """Every difference of one case; empty where we agree."""
    settings = effective(case, version)
    log = answer["log"]
    expected = {name: setting.value for name, setting in settings.effective.items()}
    pairs = [
        ("choice", predict(settings, world, addresses, version), heard(log)),
        ("settings", *_unlike(_defined(expected, version), _defined(answer["environ"], version))),
        ("echo", *_unlike(_echoed(settings), _heard_echo(log), common=True)),
        ("number", number(settings, version), heard_number(log)),
    ]
    return [Difference(what, ours, theirs, case, world) for what, ours, theirs in pairs if ours != theirs]


def effective(case: Case, version: Version) -> Settings:
    """What the variables and the files come to, by our reading."""
    paths = conf_paths(case.env, case.home(version >= (2, 30, 3)), version)
    return merge(
        Environment(case.env), [parse_conf(case.files[path], path, version) for path in paths if path in case.files]
    )


def predict(settings: Settings, world: World, addresses: Sequence[Address], version: Version) -> str:
    """``name:address`` of the bootstrap, or why there is none."""
    comm_id = settings.get("NCCL_COMM_ID")
    if comm_id is not None:
        remote = resolve(comm_id, {"lo", *(link.name for link in world.links)})
        if remote is None:
            return _REFUSALS["Invalid NCCL_COMM_ID"]
        near = next((each for each in addresses if same_subnet(each, remote, version)), None)
        return f"{near.name}:{near.address}" if near else "no interface in the subnet"
    found = find_interfaces(
        addresses,
        ifname=settings.get("NCCL_SOCKET_IFNAME") or "",
        family=forced_family(settings.get("NCCL_SOCKET_FAMILY") or ""),
        limit=1,
        version=version,
    ).interfaces
    return f"{found[0].name}:{found[0].address}" if found else "no interface"


def resolve(comm_id: str, names: set[str]) -> str | None:
    """The address in NCCL_COMM_ID by the hosts file of the server; None where NCCL takes it for invalid.

    A scope counts where `names` has it; if_nametoindex() makes 0, no scope, of any other.
    """
    try:
        host = comm_id_host(comm_id)
        text, _, scope = host.partition("%")
        address = ip_address(_NAMES.get(text, text))
    except ValueError:
        return None
    bracketed = comm_id.startswith("[")
    return f"{address}%{scope}" if bracketed and scope in names else str(address)


def heard(log: str) -> str:
    """What NCCL chose, or how it refused, out of its messages."""
    if match := _USING.search(log):
        return f"{match[1]}:{match[2]}"
    return next((short for text, short in _REFUSALS.items() if text in log), f"neither, but {log[-200:]!r}")


def number(settings: Settings, version: Version) -> str:
    """What becomes of the number that NCCL reads at its start."""
    text = settings.get(_NUMBER)
    reading = read_int(text or "", 0)
    if not text:
        return "not set"
    refused = reading.note == "overflow" or (reading.note == "word" and keeps_default(version))
    return "default" if refused else str(reading.value)


def heard_number(log: str) -> str:
    """The same from NCCL's messages."""
    if match := re.search(rf"{_NUMBER} set by environment to (-?\d+)\.", log):
        return match[1]
    # The name may be cut off with the message, whose level is INFO up to 2.31 and ATTN since.
    return "default" if re.search(r"NCCL (INFO|ATTN) Invalid value", log) else "not set"


def _echoed(settings: Settings) -> dict[str, str | None]:
    return {n: s.value for n, s in settings.effective.items() if n != _NUMBER and not n.startswith("NCCL_DEBUG")}


def _heard_echo(log: str) -> dict[str, str | None]:
    return {name: value for name, value in _ECHO.findall(log) if name != _NUMBER}


def _defined(variables: Mapping[str, str | None], version: Version) -> dict[str, str | None]:
    """`variables` but those whose name overflowed NCCL's buffer: src/misc/param.cc:29 (v2.21.5), mended in 2.23."""
    overflows = version < (2, 23)
    return {name: value for name, value in variables.items() if not (overflows and len(name) >= LONGEST_FIELD)}


def _unlike(ours: Mapping[str, str | None], theirs: Mapping[str, str | None], common: bool = False) -> tuple[str, str]:
    """The entries that differ, of each side; `common`: of `theirs` alone, and as far as a message holds them."""
    end = _LONGEST_ECHO if common else None
    names = {*theirs} if common else {*ours, *theirs}
    unlike = sorted(
        n for n in names if (ours.get(n) or "")[:end] != (theirs.get(n) or "")[:end] or (n in ours) != (n in theirs)
    )
    return _shown(ours, unlike), _shown(theirs, unlike)


def _shown(side: Mapping[str, str | None], names: Sequence[str]) -> str:
    return str({name[:40]: (side[name] or "")[:60] for name in names if name in side})
