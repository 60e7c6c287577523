"""Addresses, accounts and secrets as programs spell them: an address in any spelling is an address.

Everything here is recognised by its grammar, not by the program that wrote the line. Pseudonyms keep the spelling: a
MAC becomes another MAC, and an address has one pseudonym in all spellings.
"""

import re
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclprobe.redact.identifiers import Pseudonyms

_PRIVATE = r"(?:10|100|172|192)"
"""How addresses begin that sites give themselves: what else is joined by dashes or has a fifth number is a version."""
_SPELLED = re.compile(
    r"(?<![0-9A-Fa-f-])(?P<dashed>[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5})(?![0-9A-Fa-f-])"
    r"|(?<![\w.])(?=[0-9.]{0,13}[A-Fa-f])(?P<dotted>[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2})(?![\w.])"
    r"|(?<![^\W_])(?:(?<=enx)|(?<=wlx)|(?<=hwaddr=)|(?<=ether )|(?<=mac=)|(?<=mac )|(?<=MAC=)|(?<=MAC ))"
    r"(?P<mac>[0-9A-Fa-f]{12})(?!\w)"
    r"|enx(?P<named>[0-9a-f]{12})(?!\w)"
    r"|(?:(?<=wwn-0x)|(?<=eui\.)|(?<=guid=)|(?<=guid=0x)|(?<=GUID=0x)|(?<=0x)(?=[0-9a-f]{16}:\d{1,3}(?!\d))"
    r"|(?<![\w.+/=-])(?=[0-9]{0,15}[a-f])(?=[a-f]{0,15}[0-9])(?!ffff|0000))(?P<eui>[0-9a-fA-F]{16})(?!\w)"
    r"|(?<=0x)(?P<hex>(?:0[aA]|[aA][cC]1|[cC]0[aA]8)[0-9A-Fa-f]{4,6})(?!\w)"
    rf"|(?<![\d.])(?<!\d[-_])(?P<joined>{_PRIVATE}(?P<by>[-_])\d{{1,3}}(?P=by)\d{{1,3}}(?P=by)\d{{1,3}})(?![-_.]?\d)"
    rf"|(?<![\w.])(?P<tcpdump>{_PRIVATE}(?:\.\d{{1,3}}){{3}})(?=\.\d{{1,5}}(?![\w.]))"
    r"|(?<![\w.])(?P<arpa>\d{1,3}(?:\.\d{1,3}){3})(?=\.in-addr\.arpa)"
    r"|(?<![\w.])(?P<arpa6>[0-9a-f](?:\.[0-9a-f]){31})(?=\.ip6\.arpa)"
)

_OWNED = re.compile(
    r"(?<!\w)(?P<bucket>(?:s3a?|gs|gcs|oss|oci|cos|az|wasbs?|abfss?)://(?:[\w-]{1,64}@)?|arn:aws[\w-]{0,8}:s3:::)"
    r"(?P<name>[A-Za-z0-9][\w-]{1,62})"
    r"|(?<![\w.-])(?P<site>[a-z0-9][a-z0-9-]{2,62})(?=\.(?:s3(?:[.-][a-z0-9-]{1,30})?\.amazonaws|blob\.core\.windows"
    r"|storage\.googleapis)\.)"
    r"|(?<=:)(?P<remote>[\w-]{1,64}/[\w.-]{1,100})(?=\.git(?!\w))"
    r"|(?<!\w)(?P<host>(?:git@)?(?:github|gitlab)\.com[/:]|(?:git@)?bitbucket\.org[/:]|wandb\.ai/"
    r"|huggingface\.co/(?:datasets/|spaces/)?|(?:\w{1,4}\.)?gcr\.io/|[\w-]{1,32}\.pkg\.dev/)"
    r"(?P<owner>[A-Za-z0-9][\w.-]{0,62})(?P<repository>/[\w.-]{1,100})?"
    r"|(?P<arn>arn:aws[\w-]{0,8}:[\w-]{1,40}:[\w-]{0,20}:)(?P<account>\d{12})(?P<resource>:[\w.-]{1,64}[/:][\w./-]{1,128})?"
    r"|(?<!\d)(?P<registry>\d{12})(?=\.dkr\.ecr\.)(?P<region>\.dkr\.ecr\.[\w-]{1,32}\.amazonaws\.com/)(?P<image>[\w./-]{1,128})"
)
_PUBLIC_OWNERS = frozenset(
    ("nvidia", "pytorch", "openucx", "aws", "google", "microsoft", "huggingface", "facebookresearch", "meta-llama",
     "facebookincubator", "linux-rdma", "slurm", "schedmd", "kubernetes", "kubeflow", "ray-project", "vllm-project",
     "lightning-ai", "deepspeedai", "mellanox", "azure", "openai", "triton-lang", "docs", "blog", "api", "site")
)  # fmt: skip
"""Who publishes what all sites use."""

_LOGGED_IN = re.compile(r"(?i:logged in as:?\s{1,2})([\w.-]{2,64})(?:\s\(([\w.-]{2,64})\))?")
_LISTED = re.compile(
    r"^[bcdlps-][rwxsStT-]{9}[.+@]?\s{1,8}\d{1,9}\s{1,8}([\w.-]{2,32})\s{1,8}([\w.-]{2,32})\s", re.MULTILINE
)
_TILDE = re.compile(r"(?<![\w/~:.])~([A-Za-z_][\w.-]{1,31})(?=[/\s:,;'\"]|$)", re.MULTILINE)
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]{1,2}Users[\\/]{1,2}([^\s\\/\"',;:]{2,64})")
_ENCODED = re.compile(r"(?<![\w.+-])([\w.+-]{1,64})%40([A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){1,8})")
_COLUMN = re.compile(r"(?<!\w)(?:USER|ACCOUNT)\s{1,8}([a-z][\w.-]{2,31})(?!\w)")
_HEADS = ("USER", "ACCOUNT")

_CALLED = re.compile(
    r"(?<![\w-])(?i:resolve|lookup|connect(?:ed|ing)? to|unreachable:?|no route to|lost|ssh|ping)\s{1,2}"
    r"(?=[A-Za-z-]{0,40}\d)([A-Za-z][\w-]{1,62}(?:\.[A-Za-z][\w-]{0,62}){1,6})(?![\w(]|\.\w)"
)
_RACK = re.compile(
    r"(?<![\w.-])(?!e[nt]|ib|ro|rd|wl)(?=[a-z]{1,3}\d{0,2}0\d|[a-z]\d\d)([a-z]{1,3}\d{2,4}(?:[a-z]{1,2}\d{2,3}){2,3})(?![\w-])"
)
_RAIL = re.compile(r"(?<![\w.-])([a-z]{2,20}\d{1,5}[a-z]?)-(?:ib|eth|hsn|roce|bmc|ipmi|mgmt)\d{0,2}(?![\w-])")
_DEVICE = re.compile(r"(?:mlx|bnxt|efa|rank|gpu|nic|node|eth|ib|cuda|local|proc|worker)\d{0,3}")

_SAYS_SECRET = re.compile(
    r"(?i)(?<![^\W_])((?:api[ _-]?)?(?:key|token|secret)[\"']?[ :=]{1,3}[\"']?)([A-Za-z0-9][\w+/=-]{15,256})"
)
_PASSWORD = re.compile(
    r"(?i)(?<![^\W_])((?:password|passwd|passphrase)\s{0,2}[\"'])([^\s\"']{4,128})(?=[\"'])"
    r"|(?<![^\W_])(pwd\s?=\s?)(?![/~.$]|[a-z]:[\\/])([^\s;&\"']{3,128})"
)


def without_secrets(text: str) -> str:
    """Return `text` without what a word before it calls a key or password, and what looks like one."""
    kept = _PASSWORD.sub(lambda match: f"{match[1] or match[3]}…", text)
    return _SAYS_SECRET.sub(lambda match: f"{match[1]}…" if _drawn(match[2]) else match[0], kept)


def _drawn(run: str) -> bool:
    """Return whether a part of a word was drawn at random: letters and digits, or cases, take turns in it."""
    for part in re.split(r"[_/.-]", run):
        kinds = ["A" if each.isupper() else "a" if each.islower() else "0" for each in part]
        turns = sum(one != other for one, other in pairwise(kinds))
        if len(part) >= 16 and len({*kinds}) > 1 and turns >= len(part) // 5:
            return True
    return False


def users(text: str) -> Iterator[str]:
    """Yield the users whom a text names by form: in a home, a listing, a table, after ``~``, in a mail."""
    for pattern in (_WINDOWS, _TILDE, _LISTED, _LOGGED_IN, _COLUMN):
        for match in pattern.finditer(text):
            yield from filter(None, match.groups())
    lines = text.split("\n")
    for at, line in enumerate(lines):
        heads = line.split()
        if len(heads) > 2 and any(head in heads for head in _HEADS) and all(head.isupper() for head in heads):
            yield from _of_table(heads, lines[at + 1 : at + 1000])


def _of_table(heads: list[str], lines: list[str]) -> Iterator[str]:
    """Yield the words below USER and ACCOUNT, as long as rows have as many words."""
    for words in (line.split() for line in lines):
        if len(words) < len(heads):
            return
        yield from (words[heads.index(head)] for head in _HEADS if head in heads)


def hosts_by_form(text: str) -> Iterator[str]:
    """Yield hosts that a verb names, and names of a rack's place or of a host's rail."""
    yield from (match[1] for match in _CALLED.finditer(text))
    yield from (match[1] for match in _RACK.finditer(text))
    yield from (match[1] for match in _RAIL.finditer(text) if not _DEVICE.fullmatch(match[1]))


def owners(text: str) -> Iterator[str]:
    """Yield who owns a repository that a text names: the name may appear elsewhere too."""
    found = (match["owner"] for match in _OWNED.finditer(text) if match["owner"])
    return (name for name in found if name.lower() not in _PUBLIC_OWNERS)


class Spellings:
    """Replaces addresses in their spellings, and who owns a bucket, a repository or an account."""

    def __init__(self, new: "Pseudonyms") -> None:
        self._new = new
        self._of: dict[str, Callable[[str], str]] = {
            "dashed": lambda text: _as(text, "-".join(_pairs(self._mac(text.replace("-", ""))))),
            "dotted": lambda text: _as(text, ".".join(re.findall("....", self._mac(text.replace(".", ""))))),
            "mac": lambda text: _as(text, self._mac(text)),
            "named": self._mac,
            "eui": lambda text: _as(text, f"{new.eui64(int(text, 16)):016x}"),
            "hex": lambda text: _as(text, f"{int(new.ipv4(IPv4Address(int(text, 16)))):08x}"),
            "joined": self._joined,
            "tcpdump": self._dotted,
            "arpa": lambda text: ".".join(reversed(self._dotted(".".join(reversed(text.split(".")))).split("."))),
            "arpa6": self._arpa6,
        }

    def text(self, text: str) -> str:
        """Return `text` with each of them replaced."""
        mail = _ENCODED.sub(lambda match: f"{self._new.user(match[1])}%40{self._new.host(match[2])}", text)
        return _SPELLED.sub(self._spelled, _OWNED.sub(self._owned, mail))

    def _spelled(self, match: "re.Match[str]") -> str:
        kind = next(name for name in self._of if match[name])
        start = match.start(kind) - match.start()
        return match[0][:start] + self._of[kind](match[kind]) + match[0][start + len(match[kind]) :]

    def _mac(self, digits: str) -> str:
        return f"{self._new.mac(int(digits, 16)):012x}"

    def _joined(self, text: str) -> str:
        by = "-" if "-" in text else "_"
        return self._dotted(text.replace(by, ".")).replace(".", by)

    def _dotted(self, text: str) -> str:
        try:
            return str(self._new.ipv4(IPv4Address(text)))
        except ValueError:
            return text

    def _arpa6(self, text: str) -> str:
        address = IPv6Address(int(text.replace(".", "")[::-1], 16))
        return ".".join(reversed(f"{int(self._new.ipv6(address)):032x}"))

    def _owned(self, match: "re.Match[str]") -> str:
        name = self._new.name
        if match["bucket"]:
            head = re.sub(r"//[\w-]+@", lambda user: f"//{name(user[0][2:-1])}@", match["bucket"])
            return head + name(match["name"])
        if match["site"] or match["remote"]:
            return "/".join(map(name, match[0].split("/")))
        if match["owner"]:
            if match["owner"].lower() in _PUBLIC_OWNERS:
                return match[0]
            repository = f"/{name(match['repository'][1:])}" if match["repository"] else ""
            return match["host"].removeprefix("git@") + name(match["owner"]) + repository
        if match["account"]:
            kind, by, what = (
                re.split(r"([/:])", match["resource"][1:], maxsplit=1) if match["resource"] else ("", "", "")
            )
            return f"{match['arn']}{self._new.digits(match['account'])}" + (f":{kind}{by}{name(what)}" if kind else "")
        return self._new.digits(match["registry"]) + match["region"] + name(match["image"])


def _pairs(digits: str) -> list[str]:
    return re.findall("..", digits)


def _as(value: str, new: str) -> str:
    """Return `new` in capitals if `value` is."""
    return new.upper() if value.upper() == value and value.lower() != value else new
