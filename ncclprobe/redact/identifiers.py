"""Identifiers recognised by form, anywhere in a text: addresses, GUIDs, UUIDs, serials, paths of users' homes.

Text is searched by patterns; the few kernel files in which an address looks like any other number, by their format.

Names of hosts, pods and domains that appear only in free text are recognised by their form: a whole name in a domain
that is not public, a word such as ``gpu-node-0042``; and by the word before them: ``hostname:``, ``pod``,
``namespace``, Open MPI's ``[name:pid]``. A host whose name looks like any other word is not recognised.
"""

import json
import re
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise
from typing import Any

from ncclprobe.host.settings import SECRET
from ncclprobe.model import bounds
from ncclprobe.redact.pseudonyms import Pseudonyms
from ncclprobe.redact.public import is_everyones, is_public
from ncclprobe.redact.spellings import is_numbered, little

_ISSUED = re.compile(
    r"(?<![^\W_])(gh[oprsu]_|github_pat_|gl[a-z]{2,6}-|hf_|AKIA|ASIA|xox[abeprs]-|xapp-|hooks\.slack\.com/\w{1,16}/|sk-|npm_"
    r"|[prs]k_(?:live|test)_|whsec_|pypi-|dckr_(?:pat|oat)_|do[opr]_v1_|SG\.|AIza|ya29\.|hv[bs]\.|nvapi-|r8_|glsa_|lin_api_"
    r"|tskey-|eyJ|dapi(?=[0-9a-f]{32})|(?:local|pul)-(?=[0-9a-f]{40})|AGE-SECRET-KEY-1)[\w./-]{12,}"
)
"""Prefixes of tokens that GitHub, GitLab, Hugging Face, AWS, Slack, OpenAI, npm, Stripe, PyPI, Docker, DigitalOcean,
SendGrid, Google, Vault, NVIDIA, Replicate, Grafana, Linear, Tailscale, Databricks, Weights & Biases, Pulumi and age
issue, and of JSON Web Tokens.
"""

_USER = r"[A-Za-z_][\w.-]{0,31}"
_HOST = r"[A-Za-z0-9][\w-]{0,62}"
_ASSIGNED = r"(?<![^\W_])(?i:(?:user|account)(?:[ _]?name|[ _]?id)?|logname|login)[\"']?={1,2}[\"']?"
LOGINS = re.compile(
    rf"/(?:home|Users)/({_USER})"
    rf"|{_ASSIGNED}({_USER})"
    r"|(?<![^\W_])(?i:user(?:[ _]?name|[ _]?id)?|login|account)[\"']?(?:\s{0,2}[:=]\s{0,2}|\s{1,2})"
    r"(?:[\"'`<](?=[\w.-]{3,32}[\"'`:>])|(?=[A-Za-z.-]{0,31}[\d_])"
    r"|(?:(?<=for user )|(?<=by user )|(?<=of user )|(?<=as user )|(?<=id user )|(?<=own user )|(?<=[:=] ))"
    r"(?=[A-Za-z.-]{3,32}(?:[,;)]|\s{0,2}$))"
    r"|(?=[A-Za-z.-]{3,32}\s{1,2}(?:may|can(?:not|'t)|lacks|(?:do|ha|i|wa)s no|not|over|exceed|reached))"
    rf")({_USER})"
    rf"|(?<![^\W_])(?:[ug]id|groups)=\d{{1,10}}\(({_USER})"
    rf"|(?<!\w)(?:ssh|scp|sftp|rsync|mosh)\s(?:[^\s@]{{1,80}}\s{{1,2}}){{0,8}}({_USER})@(?P<host>{_HOST})"
    r"|(?<!\w)(?:docker|podman|nerdctl|buildah|skopeo|oras)\s{1,2}login(?:\s{1,2}\S{1,80}){0,8}?\s{1,2}-u[ =]?"
    rf"({_USER})"
    rf"|(?<!\w)login\s{{1,4}}({_USER})\s{{1,4}}password\s"
    rf"|(?<!\w)ssh-(?:rsa|dss|ed25519) AAAA\S{{1,2000}} ({_USER})@(?P<of_key>{_HOST})"
    rf"|(?<![\w.+-])({_USER})@(?P<at>{_HOST})"
    r"(?='s password|:\s?(?:~|Permission denied)|:/[^\s$#]{0,80}[$#]\s|\s[^\s\]]{1,64}\][$#])"
)
"""Places in which a text names a user: a home, an assignment, the word after ``user`` with digits, in quotes or before
a verb, the output of ``id``, and logins.
"""
IDENTIFIER = re.compile(
    r"(?P<home>/(?:home|Users)/)(?P<user>[^/\s\"',;:]+)"
    r"|(?:(?<![0-9A-Fa-f])|(?<=pod))(?P<uuid>[0-9A-Fa-f]{8}(?P<dash>[-_])(?:[0-9A-Fa-f]{4}(?P=dash)){3}[0-9A-Fa-f]{12})"
    r"(?![0-9A-Fa-f])"
    r"|(?<![^\W_])(?:GPU|MIG)-(?P<short>[0-9A-Fa-f]{4,8}(?:-[0-9A-Fa-f]{1,12}){0,4})(?![\w-])"
    r"|(?<!\w)GID \d{1,3} \((?P<subnet>[0-9A-F]{1,16})/(?P<port>[0-9A-F]{1,16})\)"
    rf"|(?P<says>{_ASSIGNED})(?P<login>{_USER})(?P<of>@[A-Za-z][\w-]{{0,62}}(?:\.[\w-]{{1,63}}){{0,8}})?"
    r"|(?<![^\W_])(?i:serial)(?P<colon>(?:[ _]?(?i:number|no))?(?:\s{0,40}[:=]\s{0,8}|\s{1,4}is\s{1,4}))"
    r"(?P<serial>[^\s,;\"']+)"
    r"|(?<!\w)(?:(?i:board|s/?n|serial(?:[ _]?(?:number|no))?)[ :=#.]{1,4}(?=(?:[A-Z-]{0,8}\d){5})(?=[0-9A-Z-]{8})"
    r"|(?i:service|asset)[ _]?(?i:tag)[ :=#.]{1,4})(?P<number>(?=[A-Z-]{0,8}\d)[0-9A-Z-]{6,24})(?!\w)"
    rf"|(?P<secret>{SECRET.pattern})"
    r"|(?i:wandb)\W[^\n]{0,60}?(?<![0-9A-Fa-f])(?P<wandb>[0-9A-Fa-f]{40})(?![0-9A-Fa-f])"
    r"|(?<![\w.+-])(?P<person>[\w.+-]{1,64})@(?P<domain>[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){1,8})"
    r"|(?:(?<!\w)(?<!\w[.-])(?<!(?<!/)/)|(?<=Gids))(?!c10d?::)(?P<colons>[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:]*(?:(?:\.\d{1,3}){3}(?![\w.]))?)"
    r"|(?<![^\W_])(?<!\.)(?P<ipv4>\d{1,3}(?:\.\d{1,3}){3})"
    r"(?P<bits>/\d{1,2}(?!\w))?(?!\w|\.\w)"
    r"|(?<![0-9A-Fa-f])(?P<digits>[0-9A-Fa-f]{64}|[0-9A-Fa-f]{32})(?![0-9A-Fa-f])"
)
_VERSION_OF = re.compile(
    r"(?:\d-|\w==|(?i:version|release|firmware|fw|fw_ver|bios|driver|cudnn|cu\d\d|tensorrt|ofed|ofed_linux|hpcx|hcoll|ucx|ucc|nccl|doca|"
    r"openmpi|libfabric|cuda|torch|kernel|installer|mft|bmc|vbios|nvidia|rdma|core|dkms|plugin|sharp)[ =:/_-]{1,2}v?)$"
)
"""What precedes a four-part version, which looks like an address."""
LOGIN = re.compile(r"://[^\s/@:]{0,128}:[^\s/@]{1,256}@")
"""``https://user:password@host``: removed before any other search, which would split it."""

_WORDS = r"(?:\s{1,4}(?!-[AGJNP][\s=])\S{1,80}|\s{1,4}-[AGJNP]\s{1,4}\d{1,6}(?!\S)){0,16}\s{1,4}"
_JOB = re.compile(
    r"(?<!\w)((?:SLURM|SBATCH)_(?:JOB_)?(?:NAME|ACCOUNT|RESERVATION)=|--(?:job-name|account|reservation)[= ]"
    rf"|(?:#SBATCH|srun|sbatch|salloc){_WORDS}-[AJ][= ]{{1,4}}|(?:#PBS|qsub){_WORDS}-[ANP][= ]{{1,4}}"
    rf"|(?:#BSUB|bsub){_WORDS}-[GJP][= ]{{1,4}}"
    r"|login\s{1,4}[^\s,;:]{1,64}\s{1,4}password\s{1,4}"
    r"|(?:docker|podman|nerdctl|buildah|skopeo|oras)\s{1,2}login(?:\s{1,2}\S{1,80}){0,8}?\s{1,2}-p[ =]?)"
    r"[^\s,;\"']+"
)
_RUN = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_=-]{20,}")
_KEY = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?:\s{0,4}(?:Proc-Type|DEK-Info): \S{1,80}){0,2}"
    r"(?:(?:\s|\\[nr]){0,8}[A-Za-z0-9+/=]{16,80})*(?:(?:\s|\\[nr]){1,8}[A-Za-z0-9+/=]{1,80}(?=(?:\s|\\[nr]){0,8}-----END))?"
)
"""A private key in PEM: its head, which may be shown, and its body, whose lines a text may join."""
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_LIKE_CHANCE = 0.42
"""Share of places in a run of letters and digits that change between capitals, small letters and digits: 0.6 in a
random one,
less than 0.4 in names of functions, machines and devices.
"""

_SOCKET = re.compile(r"\b(?:[0-9A-F]{32}|[0-9A-F]{8})(?=:[0-9A-F]{4}\b)")
_ROUTE4 = re.compile(r"(\S{1,64}\t)([0-9A-F]{8})\t([0-9A-F]{8})(\t(?:\w{1,10}\t){4})([0-9A-F]{8})")
_ROUTE6 = re.compile(r"([0-9a-f]{32}) ([0-9a-f]{2}) ([0-9a-f]{32}) ([0-9a-f]{2}) ([0-9a-f]{32})\b")
_CLOUD_TAG = "7783-7084-3265-9085-8269-3286-77"  # of every machine at Azure: how the cloud is known


def without_keys(text: str) -> str:
    """Remove keys and tokens, recognised by their issuer's prefix or by looking random, and job names."""
    named = _JOB.sub(r"\1…", SECRET.sub(r"\1…", LOGIN.sub("://…@", _KEY.sub(r"\1 …", text))))
    return _RUN.sub(_mask_random, _ISSUED.sub(r"\1…", named))


def _mask_random(match: "re.Match[str]") -> str:
    return "…" if _is_random(match[0]) else "/".join(map(_unless_random, match[0].split("/")))


def _unless_random(part: str) -> str:
    return "…" if _is_random(part) else part


def _is_random(run: str) -> bool:
    if _UUID.search(run):
        return False
    kinds = ["A" if each.isupper() else "a" if each.islower() else "0" for each in run if each.isalnum()]
    changes = sum(one != other for one, other in pairwise(kinds))
    return len({*kinds}) == 3 and len(kinds) >= 20 and kinds.count("0") > 1 and changes >= _LIKE_CHANCE * len(kinds)


class Identifiers:
    """Replaces identifiers under one key; `user` replaces the name of a user found in a path."""

    def __init__(self, pseudonyms: Pseudonyms, user: Callable[[str], str]) -> None:
        self._new = pseudonyms
        self._user = user

    def text(self, text: str) -> str:
        """Replace every identifier in `text`, but no name."""
        return IDENTIFIER.sub(self.one, text)

    def one(self, match: "re.Match[str]") -> str:
        """Return the pseudonym of what IDENTIFIER matched."""
        value, kind = match[0], match.lastgroup
        if kind == "user":
            return match["home"] + self._user(match["user"])
        if kind in ("login", "of"):
            domain = match["of"] and f"@{self._new.host(match['of'][1:])}"
            return match["says"] + self._user(match["login"]) + (domain or "")
        if kind == "uuid":
            return self._new.uuid(value)
        if kind == "short":
            return value[:4] + self._new.uuid(match["short"])
        if kind == "port":
            return self._printed_gid(match)
        if kind == "secret":
            return SECRET.sub(r"\1…", value)
        if kind == "wandb":
            return value[:-40] + "…"
        if kind == "domain":
            return f"{self._user(match['person'])}@{self._new.host(match['domain'])}"
        if kind == "number":
            return value[: -len(match["number"])] + self.serial(match["number"])
        if kind == "serial":
            return value[: -len(match["serial"])] + self.serial(match["serial"])
        if kind == "colons":
            return self._replace_hex_groups(value)
        if kind in ("ipv4", "bits"):
            version = _VERSION_OF.search(match.string[max(0, match.start() - 24) : match.start()])
            return value if version else self._ipv4(match["ipv4"], match["bits"] or "")
        return self._new.digits(value) if len(set(value)) > 1 else value

    def serial(self, text: str) -> str:
        """Replace a serial number, but not a text that means there is none."""
        word = text.strip()
        identifying = any(map(str.isdigit, word)) and word.strip("0") and word != _CLOUD_TAG
        return text.replace(word, self._new.serial(word)) if identifying and not word.startswith("serial-") else text

    def _printed_gid(self, match: "re.Match[str]") -> str:
        """Replace a GID as NCCL prints it: two numbers, in this processor's byte order."""
        halves = (bytes.fromhex(match[name].zfill(16))[::-1] for name in ("subnet", "port"))
        new = self._new.ipv6(IPv6Address(b"".join(halves))).packed
        subnet, port = (int.from_bytes(new[at : at + 8], "little") for at in (0, 8))
        return f"{match[0].partition('(')[0]}({subnet:X}/{port:X})"

    def _replace_hex_groups(self, value: str) -> str:
        """Replace groups of hexadecimal digits: an IPv6 address, a GID, a MAC, a GUID; keep a PCI address."""
        body = value.rstrip(":") if value.endswith(":") and not value.endswith("::") else value
        renamed = self._groups(body) if len(body) < 64 else ""
        if renamed:
            return renamed + value[len(body) :]
        head, _, tail = value.rpartition(":")
        if "." in tail:
            return f"{head}:{self.text(tail)}"
        port = self._groups(head) if tail.isdecimal() and len(value) < 64 else ""
        return f"{port}:{tail}" if port else value

    def _groups(self, value: str) -> str:
        groups = value.split(":")
        sizes, digits = [len(group) for group in groups], "".join(groups)
        if sizes == [4] * 4:
            return _match_case(value, _grouped(f"{self._new.eui64(int(digits, 16)):016x}", 4))
        if sizes == [2] * 6 or (len(sizes) == 6 and {*sizes} == {1, 2} and not digits.isdecimal()):
            digits = "".join(group.zfill(2) for group in groups)
            return _match_case(value, _grouped(f"{self._new.mac(int(digits, 16)):012x}", 2))
        if sizes == [2] * 8:
            return _match_case(value, _grouped(f"{self._new.eui64(int(digits, 16)):016x}", 2))
        if sizes == [2] * 20:  # IPoIB: flags and queue pair, then the GID
            gid = self._new.ipv6(IPv6Address(int(digits[8:], 16)))
            return _match_case(value, _grouped(f"{digits[:8]}{int(gid):032x}", 2))
        try:
            address = IPv6Address(value)
        except ValueError:
            return ""
        return self._ipv6(address, value)

    def _ipv6(self, address: IPv6Address, value: str) -> str:
        new = self._new.ipv6(address)
        if new == address:
            return value
        if "." in value:
            return f"{value.rpartition(':')[0]}:{IPv4Address(int(new) & 0xFFFF_FFFF)}"
        return _match_case(value, new.exploded if len(value) == 39 else str(new))

    def _ipv4(self, value: str, bits: str) -> str:
        try:
            address = IPv4Address(value)
        except ValueError:
            return value + bits
        new, host_bits = self._new.ipv4(address), 32 - min(32, int(bits[1:] or 32))
        if bits and not int(address) & (1 << host_bits) - 1:  # a network, not an address in it
            new = IPv4Address(int(new) >> host_bits << host_bits)
        return f"{new}{bits}"

    def route(self, line: str) -> str:
        """Replace a row of /proc/net/route or ipv6_route: networks stay networks."""
        if match := _ROUTE4.match(line):
            ours = int(self.words(match[2]), 16) & int(match[5], 16)  # both in the same order of bytes
            return f"{match[1]}{ours:08X}\t{self.words(match[3])}{line[match.end(3) :]}"
        if match := _ROUTE6.match(line):
            network, source = (self._network(match[at], match[at + 1]) for at in (1, 3))
            gateway = self._network(match[5], "80")
            return f"{network} {match[2]} {source} {match[4]} {gateway}{line[match.end(5) :]}"
        return self.text(line)

    def _network(self, digits: str, length: str) -> str:
        spare = 128 - min(128, int(length, 16))
        return f"{int(self._new.ipv6(IPv6Address(int(digits, 16)))) >> spare << spare:032x}"

    def words(self, digits: str) -> str:
        """Replace an address that is one or four little-endian 32-bit numbers."""
        return little(self._new, digits)

    def config_space(self, value: str) -> str:
        """Replace the Device Serial Number (capability 3), often a NIC's MAC, of a configuration space."""
        seen = structure(value)
        try:
            data = bytearray(seen["length"] if 0x100 < seen["length"] <= 4096 else 0)
            for place, digits in seen["rows"].items():
                data[int(place, 16) : int(place, 16) + 16] = bytes.fromhex(digits)
        except (KeyError, TypeError, ValueError, AttributeError):
            return value
        for at in _capabilities(bytes(data), 3):
            serial = self._new.eui64(int.from_bytes(data[at + 4 : at + 12], "little"))
            data[at + 4 : at + 12] = serial.to_bytes(8, "little")
            starts = (start for start in range(0, len(data), 16) if any(data[start : start + 16]))
            rows = {f"{start:#05x}": data[start : start + 16].hex() for start in starts}
            value = json.dumps({**seen, "rows": rows})
        return value

    def sockets(self, value: str) -> str:
        """Replace the addresses of /proc/net/tcp or tcp6."""
        return _SOCKET.sub(lambda match: self.words(match[0]), value)

    def cluster(self, value: str) -> str:
        """Replace the cluster's UUID, a list of octets, of NVML's fabric information; zeros (no cluster) stay."""
        seen = structure(value)
        try:
            digits = bytes(list(seen["clusterUuid"])).hex()
            new = list(bytes.fromhex(self._new.uuid(digits))) if len(digits) == 32 else seen["clusterUuid"]
        except (KeyError, TypeError, ValueError):
            return value
        return json.dumps({**seen, "clusterUuid": new})


def structure(text: str) -> Any:
    """Parse JSON text; None if it is not JSON, is nested too deeply, or is only a number."""
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = [value]
    for _ in range(bounds.JSON_LEVELS):
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())]
        if not level:
            return value
    return None


def _capabilities(data: bytes, wanted: int) -> list[int]:
    """Return the offsets of the extended capabilities with this id (PCI Express Base Specification, 7.6.3)."""
    found, seen, at = [], set(), 0x100
    while at >= 0x100 and at + 16 <= len(data) and at not in seen:
        seen.add(at)
        header = int.from_bytes(data[at : at + 4], "little")
        if header & 0xFFFF == wanted:
            found.append(at)
        at = header >> 20 & 0xFFC
    return found


def _grouped(digits: str, size: int) -> str:
    return ":".join(digits[at : at + size] for at in range(0, len(digits), size))


def _match_case(value: str, new: str) -> str:
    """Return `new` in capitals if `value` is."""
    return new.upper() if value.upper() == value and value.lower() != value else new


_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})"
_WORD = re.compile(r"(?<![\w./-])[a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,30}){0,6}(?![\w-])")
_WHOLE = re.compile(
    rf"(?:(?<![\w./-])(?:_[a-z]{{1,20}}\.){{0,2}}|(?<=://))({_LABEL}(?:\.{_LABEL}){{1,8}})(?![\w-]|\.\w|\()"
)
_MAIL = re.compile(rf"(?<![\w.+-])[\w.+-]{{1,64}}@([A-Za-z][\w-]{{0,62}}(?:\.{_LABEL}){{1,8}})(?<!\.service)")
_SAID = re.compile(
    rf"(?<![\w-])(?i:host(?:_?name)?|node_?name|machine)[\"']?\s{{0,12}}[:=]\s{{0,4}}[\"']?({_LABEL})(?![\w(-])"
    rf"|^\[({_LABEL}):\d{{3,8}}\](?=\s|$)",
    re.MULTILINE,
)
_MACHINE = r"(?:node|host|compute|gpunode|dgx|hgx|gpu|nid|cn|worker|blade|rack|login|head|trainer)"
_NUMBERED = re.compile(rf"(?:\d{{3,8}}|0\d{{1,7}}|{_MACHINE}(?:\d{{3,8}}|0\d{{1,7}}))")
_OF_MACHINES = re.compile(rf"(?:^|-){_MACHINE}(?:\d{{0,8}}(?:-|$))")
_PSEUDONYM = re.compile(r"(?:host|user|name|serial)-[0-9a-f]{8,12}")
_NUMBERED_THING = re.compile(r"(?:rank|local|default|cuda|gpu|cpu|proc|stage|epoch|step|mlx|eth|ib)[\d_-]*")

_SITES_OWN_ENDINGS = "com org edu gov mil internal local lan corp intra"
_SITES_OWN = frozenset(_SITES_OWN_ENDINGS.split())
_OTHER_ENDINGS = "net io ai cloud eu de fr ch uk jp cn kr nl se fi dk at be es au ca ru br sg tw"
_OTHERS = frozenset(_OTHER_ENDINGS.split())
"""Endings that program words share with domains (``encoder.net``): a name only if its first label is a host's."""


def hosts(text: str) -> Iterator[str]:
    """Yield the host names in `text`, qualified or short."""
    for match in _WHOLE.finditer(text):
        after, before = text[match.end() : match.end() + 2], text[match.start(1) - 2 : match.start(1)]
        if _is_host(match[1], port=after[:1] == ":", called=bool(re.match(r":\d", after)) or before == "//"):
            yield match[1]
    for match in _SAID.finditer(text):
        name = match[1] or match[2]
        if "-" in name.strip("-") and any(map(str.isdigit, name)) and not _is_known(name.lower()):
            yield name
    for match in _WORD.finditer(text):
        if _looks_like_host(match[0]):
            yield match[0]


def mail_domains(text: str) -> Iterator[str]:
    """Yield the domains of mail addresses, except public ones."""
    return (match[1] for match in _MAIL.finditer(text) if not is_everyones(match[1].lower()))


def _is_host(name: str, *, port: bool, called: bool) -> bool:
    first, *_, last = name.lower().split(".")
    if is_everyones(name.lower()):
        return False
    if last in _SITES_OWN:
        return name.count(".") > 1
    numbered = bool(re.search("[a-z][a-z-]{0,40}[0-9]", first))
    named = "-" in first or _looks_like_host(first) or is_numbered(first) or (numbered and (port or last != "net"))
    own = last != "net" and not is_public(name.lower().split(".")[-2])
    if last not in _OTHERS:
        return name.count(".") > 1 and last.isalpha() and (is_numbered(first) or (called and own))
    return name.count(".") > 1 and (named or own)


def _looks_like_host(word: str) -> bool:
    """Return whether a word has the form ``gpu-node-0042``: a machine's, with a number that is not a device's."""
    numbered = _NUMBERED.fullmatch(word.rpartition("-")[2])
    return bool(numbered and _OF_MACHINES.search(word)) and not _is_known(word)


def _is_known(word: str) -> bool:
    return bool(_PSEUDONYM.fullmatch(word) or _NUMBERED_THING.fullmatch(word))
