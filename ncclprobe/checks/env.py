"""What the environment and NCCL's configuration files say, read as NCCL reads it."""

from collections.abc import Iterator

from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software
from ncclprobe.model import Absent, Finding, Setting, fail, note, warn
from ncclprobe.nccl.interfaces import find_interfaces, forced_family
from ncclprobe.nccl.parameters import Parameter, nearest, table
from ncclprobe.nccl.values import Reading, intent, read_int
from ncclprobe.registry import applies, check

_BIT_FIELDS = {"NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_SL", "NCCL_IB_TC"}  # mlx5_ifc.h: 5, 3, 4 and 8 bits
_NEWEST = "2.30.7"  # the newest NCCL that the table of parameters was read from


def setting(name: str, value: str) -> Settings:
    """Settings in which only `name` is set, for examples."""
    return Settings({name: Setting(name, value, "environment")})


LO_ADDRESS = Address("lo", "inet", "127.0.0.1", "255.0.0.0", running=True)
ETH0_ADDRESS = Address("eth0", "inet", "10.0.0.5", "255.255.255.0", running=True)
LO = Interface("lo", 1, frozenset({"up", "running", "loopback"}), 65536, addresses=(LO_ADDRESS,))
ETH0 = Interface("eth0", 2, frozenset({"up", "running"}), 1500, addresses=(ETH0_ADDRESS,))
PLAIN_HOST = Interfaces((LO, ETH0))
TWO_NODES = Launch("torchrun", 0, 16, 0, 8, 2)
NO_NCCL = Software({})


@applies
def ifname_set(settings: Settings) -> bool:
    """where NCCL_SOCKET_IFNAME is set."""
    return bool(settings.get("NCCL_SOCKET_IFNAME"))


def _seen(entry: Setting) -> str:
    """A setting as evidence: as it was written, and where."""
    return f"{entry.name}={entry.value} ({entry.origin})"


def _integers(settings: Settings) -> Iterator[tuple[Setting, Parameter, Reading]]:
    """The set variables that NCCL reads as an integer, with what it makes of their text."""
    for entry in settings.named("NCCL_"):
        parameter = table().get(entry.name)
        if parameter and parameter.is_integer and entry.value is not None:
            yield entry, parameter, read_int(entry.value, default=0)


@check(
    bad=[(setting("NCCL_IB_DISABLE", "true"),), (setting("NCCL_NVLS_ENABLE", "yes"),)],
    good=[(setting("NCCL_IB_DISABLE", "1"),), (setting("NCCL_DEBUG", "INFO"),), (setting("NCCL_IB_HCA", "mlx5"),)],
    required=True,
)
def bool_word(settings: Settings) -> Iterator[Finding]:
    """A word stands where NCCL reads a number.

    Why: NCCL reads integers with strtoll, to which every word is 0, without a message (src/misc/param.cc:95). So
    NCCL_IB_DISABLE=true leaves InfiniBand on, and NCCL_NVLS_ENABLE=yes turns NVLS off. torch's own switches are the
    opposite: they take words.
    Fix: write 1 or 0.
    """
    for entry, _, reading in _integers(settings):
        if reading.note != "word":
            continue
        meant = intent(entry.value or "")
        message = f"is {entry.value!r}, which NCCL reads as 0"
        if meant is False:
            yield note(entry.name, f"{message}, as was meant", evidence=_seen(entry))
        else:
            tell = fail if meant else warn
            contrary = ": the opposite of what it says" if meant else ""
            yield tell(entry.name, message + contrary, blame="job", action="fix-job", evidence=_seen(entry))


@check(
    bad=[(setting("NCCL_BUFFSIZE", "4M"),), (setting("NCCL_IB_TIMEOUT", "022"),)],
    good=[(setting("NCCL_BUFFSIZE", "4194304"),), (setting("NCCL_IB_TIMEOUT", "0x16"),)],
)
def number_text(settings: Settings) -> Iterator[Finding]:
    """A number is written in a way that NCCL reads as another one.

    Why: NCCL knows no suffixes, fractions or comments (4M is 4), takes a leading 0 for octal (010 is 8) and falls back
    to its default beyond 64 bits (src/misc/param.cc:95).
    Fix: write plain decimal digits: 4194304 for 4M.
    """
    for entry, parameter, reading in _integers(settings):
        if reading.note in ("tail", "octal", "overflow"):
            read_as = f"its default ({parameter.default})" if reading.note == "overflow" else str(reading.value)
            message = f"is {entry.value!r}, which NCCL reads as {read_as}"
            yield warn(entry.name, message, blame="job", action="fix-job", evidence=_seen(entry))


@check(
    bad=[(setting("NCCL_IB_TIMEOUT", "32"),), (setting("NCCL_IB_RETRY_CNT", "10"),)],
    good=[(setting("NCCL_IB_TIMEOUT", "22"),), (setting("NCCL_IB_TC", "-1"),), (setting("NCCL_IB_RETRY_CNT", "abc"),)],
    required=True,
)
def range(settings: Settings) -> Iterator[Finding]:
    """A number lies outside what its field can hold.

    Why: the NCCL_IB_ ones are bit fields of a queue pair (timeout 5 bits, retry count 3): the NIC rejects or wraps what
    does not fit, and NCCL does not look first. The others NCCL cuts down or ignores, at most with an INFO line.
    Fix: choose a value inside the range, or unset the variable.
    """
    for entry, parameter, reading in _integers(settings):
        low, high = parameter.low, parameter.high
        if reading.note in ("word", "overflow", "empty"):
            continue
        if (low is not None and reading.value < low) or (high is not None and reading.value > high):
            bounds = f"{'' if low is None else low}..{'' if high is None else high}"
            message = f"is {reading.value}, outside {bounds} ({parameter.source})"
            tell = fail if entry.name in _BIT_FIELDS else warn
            yield tell(entry.name, message, blame="job", action="fix-job", evidence=_seen(entry))


@check(
    bad=[(setting("NCCL_SOCKET_IFNAMES", "eth0"),), (setting("NCCL_DEBUG ", "INFO"),)],
    good=[(setting("NCCL_SOCKET_IFNAME", "eth0"),), (setting("HOME", "/home/me"),)],
    required=True,
)
def unknown_var(settings: Settings) -> Iterator[Finding]:
    """A variable looks like NCCL's, and NCCL does not read it.

    Why: NCCL ignores names that it does not know without a word, so a misspelt setting is no setting.
    Fix: correct the name, or unset it.
    """
    for entry in settings.named("NCCL_", "TORCH_NCCL_"):
        known = table().get(entry.name)
        if known and known.owner != "none":
            continue
        better = known.instead if known else nearest(entry.name)
        if better:
            message = f"is read by nothing; did you mean {better}?"
            yield warn(repr(entry.name).strip("'"), message, blame="job", action="fix-job", evidence=_seen(entry))
        else:
            message = f"is no variable of NCCL up to {_NEWEST}, nor of the plugins and frameworks we know"
            yield note(entry.name, message, evidence=_seen(entry))


@check(
    bad=[
        (setting("NCCL_SOCKET_IFNAME", "ens3"), PLAIN_HOST, Launch(), NO_NCCL),
        (setting("NCCL_SOCKET_IFNAME", "lo"), PLAIN_HOST, TWO_NODES, NO_NCCL),
        (setting("NCCL_SOCKET_IFNAME", "^lo,eth"), PLAIN_HOST, TWO_NODES, NO_NCCL),
    ],
    good=[
        (setting("NCCL_SOCKET_IFNAME", "eth"), PLAIN_HOST, TWO_NODES, NO_NCCL),
        (setting("NCCL_SOCKET_IFNAME", "^docker,lo"), PLAIN_HOST, TWO_NODES, NO_NCCL),
        (setting("NCCL_SOCKET_IFNAME", "lo"), PLAIN_HOST, Launch(nnodes=1), NO_NCCL),
    ],
    required=True,
    applies=ifname_set,
)
def ifname_match(
    settings: Settings, interfaces: Interfaces, launch: Launch, software: Software | Absent
) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME selects no interface that can reach the other nodes.

    Why: once the variable is set NCCL has no fallback: without a match it ends in "Bootstrap : no socket interface
    found" (src/misc/socket.cc:193, src/os/linux.cc:389), and over lo it reaches nobody.
    Fix: name an interface that is up and has an address, or exclude the others with one leading ^.
    """
    wanted = settings.get("NCCL_SOCKET_IFNAME") or ""
    origin = _seen(settings.effective["NCCL_SOCKET_IFNAME"])
    version = software.nccl_version if isinstance(software, Software) else None
    family = forced_family(settings.get("NCCL_SOCKET_FAMILY") or "")
    if len(wanted) == 1:
        yield note("NCCL_SOCKET_IFNAME", f"{wanted!r} is one character, which NCCL takes for not set", evidence=origin)
        return
    chosen = find_interfaces(interfaces.addresses, ifname=wanted, family=family, version=version).interfaces
    usable = [i.name for i in interfaces.all if i.running and i.addresses and not i.loopback]
    instead = f"this node has {', '.join(usable) or 'none that is up with an address'}"
    blamed = {"blame": "job", "action": "fix-job", "evidence": origin}
    if not chosen:
        yield fail("NCCL_SOCKET_IFNAME", f"{wanted!r} matches no interface; {instead}", **blamed)
    elif launch.several_nodes and {c.name for c in chosen} <= {i.name for i in interfaces.all if i.loopback}:
        yield fail("NCCL_SOCKET_IFNAME", f"{wanted!r} selects only loopback; {instead}", **blamed)
