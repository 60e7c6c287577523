"""Addresses, accounts and secrets in the spellings of different programs.

Everything here is recognised by its grammar, not by the program that wrote the line. Pseudonyms keep the spelling: a
MAC
becomes another MAC, and an address has one pseudonym in all spellings.
"""

import re
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise

from ncclprobe.redact.pseudonyms import Pseudonyms
from ncclprobe.redact.public import is_everyones, is_file, is_public, renamed

_PRIVATE = r"(?:10|100|172|192)"
"""First parts of addresses that sites assign themselves: other dash-joined numbers, or five numbers, are versions."""
_SPELLED = re.compile(
    r"(?i:guid)[\"']?[:=]?\s{0,16}(?:0[xX])?(?P<guid>[0-9A-Fa-f]{16})(?!\w)"
    r"|(?<![0-9A-Fa-f-])(?P<dashed>[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5})(?![0-9A-Fa-f-])"
    r"|(?<![\w.])(?=[0-9.]{0,13}[A-Fa-f])(?P<dotted>[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2})(?![\w.])"
    r"|(?<![^\W_])(?i:mac|hw|ll|ether)(?i:_?addr(?:ess)?)?[\"']?[ :=]{1,3}[\"']?(?P<mac>[0-9A-Fa-f]{12})(?!\w)"
    r"|(?<![\w.+/=-])(?=[0-9]{0,11}[a-f])(?=[a-f]{0,11}[0-9])(?P<short>[0-9a-f]{12})(?![\w-])"
    r"|(?:enx|wlx)(?P<named>[0-9a-f]{12})(?!\w)"
    r"|(?:(?<=wwn-0x)|(?<=eui\.)|(?<=\"[HSR]-)|(?<=0x)(?<!commId 0x)(?!0000|[Ff]{4})"
    r"|(?<![\w.+/=-])(?=[0-9]{0,15}[a-f])(?=[a-f]{0,15}[0-9])(?!ffff|0000))(?P<eui>[0-9a-fA-F]{16})(?!\w)"
    r"|(?<![\w:.-])(?=\w{0,32}[A-Fa-f:]\w{0,5})(?P<socket>[0-9A-F]{32}|[0-9A-F]{8}|[0-9a-f]{32}|[0-9a-f]{8})(?=:[0-9A-Fa-f]{4}(?![\w:.]))"
    r"|(?<![\w-])[a-z]{1,12}-(?P<cloud>[0-9a-f]{17})(?!\w)"
    r"|(?i:addr|ip)\w{0,8}[\"']?[ :=]{1,3}[\"']?(?P<bare>(?:0[aA]|[aA][cC]1|[cC]0[aA]8)[0-9A-Fa-f]{4,6})(?!\w)"
    r"|(?i:account)[ _-]?\w{0,6}[\"']?[ :=]{1,3}[\"']?(?P<payer>\d{12})(?!\w)"
    r"|(?<=addr=)(?P<whole>\d{8,10})(?!\w)"
    r"|(?<=0x)(?P<hex>(?:0[aA]|[aA][cC]1|[cC]0[aA]8)[0-9A-Fa-f]{4,6})(?!\w)"
    rf"|(?<![\d.])(?<!\d[-_])(?P<joined>{_PRIVATE}(?P<by>[-_])\d{{1,3}}(?P=by)\d{{1,3}}(?P=by)\d{{1,3}})(?![-_.]?\d)"
    rf"|(?<![\w.])(?P<tcpdump>{_PRIVATE}(?:\.\d{{1,3}}){{3}})(?=\.\d{{1,5}}(?![\w.]))"
    r"|(?<![\w.])(?P<arpa>\d{1,3}(?:\.\d{1,3}){3})(?=\.in-addr\.arpa)"
    r"|(?<![\w.])(?P<arpa6>[0-9a-f](?:\.[0-9a-f]){31})(?=\.ip6\.arpa)"
)

_OWNED = re.compile(
    r"(?<!\w)(?P<bucket>(?:s3a?|gs|gcs|oss|oci|cos|az|wasbs?|abfss?)://(?:[\w-]{1,64}@)?|arn:aws[\w-]{0,8}:s3:::)"
    r"(?P<name>[A-Za-z0-9][\w-]{1,62})(?P<key>(?:/[\w.=-]{1,100}){0,16})"
    r"|(?<![\w.-])(?P<site>[a-z0-9][a-z0-9-]{2,62})(?=\.(?:s3(?:[.-][a-z0-9-]{1,30})?\.amazonaws|blob\.core\.windows"
    r"|storage\.googleapis"
    r"|(?<!hooks\.)(?<!api\.)(?<!app\.)(?<!files\.)(?<!www\.)(?<!docs\.)(?:slack|azurecr|wandb))\.)"
    r"|(?<=:)(?P<remote>[\w-]{1,64}/[\w.-]{1,100})(?=\.git(?!\w))"
    r"|(?<!\w)(?P<host>(?:git@)?(?:github|gitlab)\.com[/:]|(?:git@)?bitbucket\.org[/:]|wandb\.ai/|(?:www\.)?comet\.com/"
    r"|huggingface\.co/(?:api/)?(?:datasets/|spaces/|models/)?|(?:[\w-]{1,20}\.)?(?:gcr|ghcr|quay|docker|nvcr)\.io/|[\w-]{1,32}\.pkg\.dev/"
    r"|(?:s3(?:[.-][a-z0-9-]{1,30})?\.amazonaws|storage\.googleapis)\.com/|access denied for "
    r"|(?:project|entity|workspace|repository|image)[ =:]{1,2}[\"']?"
    r"(?!(?:[\w-]{1,20}\.)?(?:gcr|ghcr|quay|docker|nvcr)\.io/)(?=[\w.-]{1,63}/))"
    r"(?P<owner>[A-Za-z0-9][\w.-]{0,62})(?P<repository>/[\w.-]{1,100}(?:/runs)?(?:/(?=[a-z]{0,12}\d)[a-z0-9]{8,32}(?!\w))?)?"
    r"|(?<![\w/])(?P<tree>(?:projects|organizations|subscriptions)(?:/[\w.-]{1,63}){1,16})"
    r"|(?<=//)(?P<server>[^\s/]{1,255}/)(?P<way>[\w./~-]{1,255})(?=\.git(?!\w))"
    r"|(?:(?<![\w./-])|(?<=://))(?P<site_of>(?:[a-z0-9-]{1,63}\.){1,4}[a-z]{2,12}(?::\d{1,5})?)(?P<within>(?:/[a-z0-9][a-z0-9._-]{1,63}){2,4})(?=[:@\s]|$)"
    r"|(?P<arn>arn:aws[\w-]{0,8}:[\w-]{1,40}:[\w-]{0,20}:)(?P<account>\d{12})(?P<resource>:[\w.-]{1,64}[/:][\w./-]{1,128})?"
    r"|(?<!\d)(?P<registry>\d{12})(?=\.dkr\.ecr\.)(?P<region>\.dkr\.ecr\.[\w-]{1,32}\.amazonaws\.com/)(?P<image>[\w./-]{1,128})"
)
_PUBLISHERS = (
    "nvidia pytorch openucx aws google microsoft huggingface facebookresearch meta-llama facebookincubator library"
    " prometheus coreweave rocm grafana jupyter linux-rdma slurm schedmd kubernetes kubeflow ray-project vllm-project"
    " lightning-ai deepspeedai mellanox azure openai triton-lang docs blog api site nim hpc"
)
_PUBLIC_OWNERS = frozenset(_PUBLISHERS.split())
"""Publishers of what all sites use."""

_LOGGED_IN = re.compile(r"(?i:logged in as:?\s{1,2})([\w.-]{2,64})(?:\s\(([\w.-]{2,64})\))?")
_LISTED = re.compile(
    r"^[bcdlps-][rwxsStT-]{9}[.+@]?\s{1,8}\d{1,9}\s{1,8}([\w.-]{2,32})\s{1,8}([\w.-]{2,32})\s", re.MULTILINE
)
_TILDE = re.compile(r"(?<![\w/~:.])~([A-Za-z_][\w.-]{1,31})(?=[/\s:,;'\"]|$)", re.MULTILINE)
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]{1,2}Users[\\/]{1,2}([^\s\\/\"',;:]{2,64})")
_ENCODED = re.compile(r"(?<![\w.+-])([\w.+-]{1,64})%40([A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){1,8})")
_PERSON = re.compile(
    r"(?P<name>(?:[^\W\d_][\w.'-]{0,30},?\s){1,4}|\"[^\"\n@]{2,60}\"\s)(?=[<(][\w.+-]{1,64}@[\w-]{1,63}\.)"
)
"""A person's name before their address."""
_LOGS_IN = re.compile(
    r"(?:publickey|password|session opened|session closed|user) for (?:invalid )?(?:user )?"
    r"([a-z_][\w.-]{2,31})(?= from| by|\()"
    r"|(?<!\S)([a-z_][\w.-]{2,31})(?= is not in the sudoers| \(uid[ =]\d)"
    r"|(?:(?:authenticating|invalid|unknown) user|(?:owned|submitted|launched) by) "
    r"([a-z_][\w.-]{2,31})"
    r"|(?<!\S)([a-z_][\w.-]{2,31})(?=\s{1,9}(?:pts/\d|tty\w))|^([a-z_][\w.-]{2,31})\+?(?=\s{1,12}\d{1,8}\s{1,6}\d{1,4}\.\d\s)"
    r"|(?<!\w)(?:chown\s{1,2}(?:-\w{1,4}\s{1,2})?|su\s(?:-[lm]?\s{1,2})?)([a-z_][\w.-]{2,31})(?=[:\s]|$)"
    r"|sudo: {1,9}([a-z_][\w.-]{2,31}) :"
    r"|(?<!\w)(?:mysql\w{0,8}|psql|runuser|sudo|su|ssh|kinit|mongosh?)(?:\s{1,2}\S{1,80}){0,8}?\s{1,2}-[uUl][ =]?"
    r"([A-Za-z_][\w.-]{2,31})(?!\w)"
)
_HEADS = {
    **dict.fromkeys(("user", "account", "owner", "group", "login"), "user"),
    **dict.fromkeys(("jobname", "name", "partition", "queue", "namespace", "reservation", "pod", "cluster"), "name"),
    **dict.fromkeys(("nodelist", "node", "host", "hostname", "from"), "host"),
}
"""Role of the cells below a column heading. `name` counts below headings of jobs, pods and users."""
_OF_NAMES = {"user", "account", "jobid", "ready", "namespace", "partition"}
_RANGE = re.compile(r"(?<![\w.-])[a-z][a-z0-9-]{1,40}\[\d{1,6}[,-][\d,-]{1,200}\]")
_PREFIXED = re.compile(
    r"^(?:\[[^\]\n]{1,40}\] ?)?([A-Za-z][\w.-]{1,62}):\d{1,8}:\d{1,8} \["
    r"|^(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
    r" ((?=[A-Za-z-]{0,60}\d)[A-Za-z][\w.-]{1,62}|[A-Za-z][\w.-]{1,62}(?= kernel:| [\w./-]{1,40}\[\d{1,8}\]:))"
    r" [\w./()-]{1,40}(?:\[\d{1,8}\])?:",
    re.MULTILINE,
)
"""A host before a line of NCCL, and before one of syslog."""
_IN_CLUSTER = re.compile(r"(?<![\w.-])((?:[a-z0-9-]{1,63}\.){1,4})(?=(?:svc|pod)(?:\.cluster\.local|(?![\w.-])))")
_DESCRIBED = re.compile(r";([A-Za-z][\w-]{1,62}):\w{2,16}/U\d")
"""A switch in its node description."""
_RESOURCE = re.compile(
    r"(?<![\w/.-])(?:pod|service|svc|deploy(?:ment)?|statefulset|daemonset|job|mpijob|pytorchjob|configmap|secret|pvc)s?/"
    r"([a-z][a-z0-9-]{2,62})(?![\w/.])|(?i:job(?:id)?) \d{1,12} \(([A-Za-z][\w.-]{2,62})\)"
)
_IN_NAMESPACE = re.compile(r"(?<!\w)(?:kubectl|helm)(?:\s\S{1,80}){0,6}?\s-n[ =]?([a-z][a-z0-9-]{2,62})")
_FILE_SYSTEM = re.compile(r"(?<![\w-])([A-Za-z][\w]{1,15})-(?:OST|MDT|MGS)[0-9a-f]{4}")

_BARE = r"[A-Za-z][A-Za-z0-9-]{1,62}(?![\w-])(?:\.[A-Za-z][A-Za-z0-9-]{0,62}){0,6}"
_SENTENCE_ENDS = r"(?::\s|[.,;]?\s{0,2}$|[.,;]\s)"
_CALLED = re.compile(
    r"(?<![\w-])(?i:resolv(?:e|ing)|lookup|unreachable|route to|connect(?:ion|ed|ing)? (?:to|with)|unknown|lost|ssh"
    r"|ping|contact(?: with)?|reach|mount|(?P<sure>(?:getaddrinfo|gethostbyname|unknownhostexception)(?=\W)|name"
    r" resolution|not known|(?:closed|reset|refused) by|verification failed for|out for"
    r"|permanently added|lost connection (?:to|with)|disconnect(?:ed)? from|slurmctld on"
    r"|(?:ranks?|code|task|StepId)[ =][\w.-]{1,16} on))[\s:(\"'\[]{1,4}"
    r"(?P<noun>(?:(?i:to|the|remote|host(?:_?name)?|node|server|address|peer|store at)[\s:\"'\[]{1,3}){1,2})?"
    rf"(?P<dotted>(?=[A-Za-z-]{{0,40}}\d[\w-]{{0,40}}\.\w))?(?P<host>{_BARE})"
    rf"(?=[\"'\])>]|:[/\d]| port \d| on [\d\[]|(?(noun){_SENTENCE_ENDS}|(?(sure){_SENTENCE_ENDS}"
    rf"|(?(dotted){_SENTENCE_ENDS}|(?!)))))",
    re.MULTILINE,
)
"""Words whose object is a host."""
_SPEAKS = re.compile(
    rf"(?:(?<![\w./:@-])|(?<=://))({_BARE}):(?= ?(?:(?i:name or service not|temporary failure in name|unknown host"
    r"|host is down|no route to|connection (?:refused|timed out|reset|closed)|permission denied \(|tasks? \d"
    r"|not responding|ssh:|ssh exited)|\[20\d\d-)|(?:\d{4,5}|22|443|80)(?![\w.]))"
    r"|(?<!\w)(?:scp|rsync|sshfs|sftp|(?:nfs|mount)(?:\.\w{1,8})?)(?:[ :]{1,2}[^\s:]{1,80}){0,12}?[ :]{1,2}"
    rf"({_BARE}):(?=/)"
    rf"|^\[({_BARE})(?=:\d{{3,8}}\](?:\s|$)|\]\[\[\d)|^({_BARE})(?= slots=\d)|(?i:rank \d{{1,6}} )\(({_BARE})\)"
    rf"|(?<=\w@)({_BARE})(?=[:\s)]|$)|(?<= ON )({_BARE})(?= CANCELLED)"
    rf"|(?:^|[$;&+] )ssh\s{{1,2}}(?:-\w\s?\S{{0,80}}\s{{1,2}}){{0,8}}({_BARE})(?=\s|$)"
    rf"|(?<=://)({_BARE})(?=/\w|:\d)",
    re.MULTILINE,
)
"""A host, or a file on it, before a message about it."""
_LISTED_HOSTS = re.compile(
    r"(?<!\w)(?:mpirun|mpiexec|prun|pdsh|clush|srun|sbatch|salloc|deepspeed|pbsdsh)\s(?:\S{1,80}\s{1,2}){0,12}?"
    rf"(?:-H|-w|--?hosts?)[\s=]{{1,2}}({_BARE}(?::\d{{1,4}})?(?:,{_BARE}(?::\d{{1,4}})?){{0,999}})"
)
_NUMBERED = re.compile(
    r"(?:(?<![\w./@%$-])|(?<=//)|(?<=node/)|(?<=nodes/))"
    r"(?=[a-z-]{2,40}\d)(?![a-z]{2,12}-(?:gov-)?(?:north|south|east|west|central)[a-z]{0,5}-?\d)"
    r"(?!e[nt]|ib|ro|rd|wl|ve|dgx|hgx|float|u?int\d|[0-9a-f-]{1,64}(?![\w-]))"
    r"([a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,30}){0,6})(?![\w(-]|/(?!\d)|\.\w)"
    r"|(?:host|cluster)(?:\(s\))? <(?:\d{1,4}\*)?([A-Za-z][\w.-]{1,62})>"
)
_RACK = re.compile(
    r"(?<![\w.-])(?!e[nt]|ib|ro|rd|wl)(?=[a-z]{1,3}\d{0,2}0\d|[a-z]\d\d)([a-z]{1,3}\d{2,4}(?:[a-z]{1,2}\d{2,3}){2,3})(?![\w-])"
)
_DEVICE = re.compile(r"(?:mlx|bnxt|efa|rank|gpu|nic|node|eth|ib|cuda|local|proc|worker|master|numa|v)[\d_-]{0,4}")

_SAYS_SECRET = re.compile(
    r"(?i)(?<![^\W_])((?:api[ _-]?)?(?:key(?:_id)?|token|secret|pass(?:word|wd|phrase)|pwd)[\"']?[ :=]{1,3}[\"']?)"
    r"([A-Za-z0-9][\w+/=-]{15,256})"
)
_PASSWORD = re.compile(
    r"(?i)(?<![^\W_])((?:password|passwd|passphrase)\s{0,2}[\"'])([^\s\"']{4,128})(?=[\"'])"
    r"|(?<![^\W_])(pwd\s?=\s?)(?![/~.$]|[a-z]:[\\/])([^\s;&\"']{3,128})"
)


def without_secrets(text: str) -> str:
    """Remove what the word before it calls a key or password, and what looks like one."""
    kept = _PASSWORD.sub(lambda match: f"{match[1] or match[3]}…", text)
    return _SAYS_SECRET.sub(lambda match: f"{match[1]}…" if _looks_random(match[2]) else match[0], kept)


def _looks_random(run: str) -> bool:
    """Return whether a part of a word looks random: letters and digits, or cases, alternate in it."""
    for part in re.split(r"[_/.-]", run):
        kinds = ["A" if each.isupper() else "a" if each.islower() else "0" for each in part]
        turns = sum(one != other for one, other in pairwise(kinds))
        if len(part) >= 16 and turns >= len(part) // 5:
            return True
    return False


def users(text: str) -> Iterator[str]:
    """Yield the users that a text names by form: in a home, a listing, a table, after ``~``, in a mail."""
    for pattern in (_WINDOWS, _TILDE, _LISTED, _LOGGED_IN, _LOGS_IN):
        for match in pattern.finditer(text):
            yield from (name for name in match.groups() if name and not (pattern is _LOGS_IN and is_public(name)))
    yield from (word for kind, word in _tables(text) if kind == "user")


def _tables(text: str) -> Iterator[tuple[str, str]]:
    """Yield the cells below headings of tables, as squeue, sacct and ps print them, with their role."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        by = "|" if line.count("|") > 1 else None
        heads = line.lower().split(by)
        kinds = {column: _HEADS[head.strip()] for column, head in enumerate(heads) if head.strip() in _HEADS}
        if not _OF_NAMES & {head.strip() for head in heads}:
            kinds = {column: kind for column, kind in kinds.items() if heads[column].strip() != "name"}
        if len(heads) > 2 and kinds and sum(word.strip()[:1].isupper() for word in line.split(by)) * 2 > len(heads):
            for words in (each.split(by) for each in lines[at + 1 : at + 1000]):
                if len(words) < len(heads):
                    break
                cells = ((kind, words[column].strip()) for column, kind in kinds.items())
                yield from (
                    (kind, cell) for kind, cell in cells if not all(map(is_public, re.findall("[a-z]{2,}", cell)))
                )


def names_by_form(text: str) -> Iterator[str]:
    """Yield names of jobs and of file systems."""
    yield from (match[1] for pattern in (_FILE_SYSTEM, _IN_NAMESPACE) for match in pattern.finditer(text))
    found = (match[1] or match[2] for match in _RESOURCE.finditer(text))
    yield from (name for name in found if not is_all_public(name))
    yield from (word for kind, word in _tables(text) if kind == "name")


def listed_nodes(text: str) -> Iterator[str]:
    """Yield node lists in Slurm's notation."""
    yield from (
        match[0] for match in _RANGE.finditer(text) if not all(map(is_public, re.findall("[a-z]{2,40}", match[0])))
    )
    yield from (word for kind, word in _tables(text) if kind == "host")


def hosts_by_form(text: str) -> Iterator[str]:
    """Yield hosts after a verb or noun or at the start of a line, and names of a rack's place or of a host's rail."""
    placed = [match["host"] for match in _CALLED.finditer(text)] + [
        match[match.lastindex or 0] for match in _SPEAKS.finditer(text)
    ]
    for match in _LISTED_HOSTS.finditer(text):
        placed += [name.partition(":")[0] for name in match[1].split(",")]
    yield from (name for name in placed if not (is_everyones(name.lower()) or is_all_public(name) or is_file(name)))
    yield from (match[2] or match[1] for match in _NUMBERED.finditer(text) if match[2] or is_numbered(match[1]))
    yield from (match[1] or match[2] for match in _PREFIXED.finditer(text))
    yield from (match[1] for match in _DESCRIBED.finditer(text))
    for match in _IN_CLUSTER.finditer(text):
        yield from (label for label in match[1].strip(".").split(".") if not _DEVICE.fullmatch(label))
    yield from (match[1] for match in _RACK.finditer(text))


def is_all_public(name: str) -> bool:
    """Return whether each word of letters in `name` is public."""
    return all(map(is_public, re.findall(r"[a-z]{2,63}", name.lower())))


def is_numbered(word: str) -> bool:
    """Return whether a word ends with a serial number of things, and has letters that no public word has."""
    own = [part for part in word.split("-") if not is_public(part)]
    letters = re.findall(r"[a-z]{2,31}", " ".join(own))
    return bool(re.search(r"(?:\d\d[ac-z]?|-[a-z]{0,8}\d|\d[a-z0-9]*-[a-z0-9]+)$", word)) and not all(
        map(is_public, letters)
    )


def owners(text: str) -> Iterator[str]:
    """Yield the owners of repositories that a text names: the name may appear elsewhere too."""
    found = (match["owner"] for match in _OWNED.finditer(text) if match["owner"])
    return (name for name in found if name.lower() not in _PUBLIC_OWNERS)


class Spellings:
    """Replaces addresses in all spellings, and the owners of buckets, repositories and accounts."""

    def __init__(self, new: Pseudonyms) -> None:
        self._new = new
        self._of: dict[str, Callable[[str], str]] = {
            "dashed": lambda text: _match_case(text, "-".join(_pairs(self._mac(text.replace("-", ""))))),
            "dotted": lambda text: _match_case(text, ".".join(re.findall("....", self._mac(text.replace(".", ""))))),
            "mac": lambda text: _match_case(text, self._mac(text)),
            "named": self._mac,
            "short": self._mac,
            "guid": self._eui,
            "eui": self._eui,
            "hex": lambda text: _match_case(text, f"{int(new.ipv4(IPv4Address(int(text, 16)))):08x}"),
            "bare": lambda text: _match_case(text, f"{int(new.ipv4(IPv4Address(int(text, 16)))):08x}"),
            "socket": lambda text: _match_case(text, little(new, text).lower()),
            "whole": lambda text: str(int(new.ipv4(IPv4Address(int(text) & 0xFFFF_FFFF)))),
            "cloud": new.digits,
            "payer": new.digits,
            "joined": self._joined,
            "tcpdump": self._dotted,
            "arpa": lambda text: ".".join(reversed(self._dotted(".".join(reversed(text.split(".")))).split("."))),
            "arpa6": self._arpa6,
        }

    def text(self, text: str) -> str:
        """Replace each of them in `text`."""
        text = _PERSON.sub(self._person, text)
        mail = _ENCODED.sub(lambda match: f"{self._new.user(match[1])}%40{self._new.host(match[2])}", text)
        return _SPELLED.sub(self._spelled, _OWNED.sub(self._owned, mail))

    def _spelled(self, match: "re.Match[str]") -> str:
        kind = next(name for name in self._of if match[name])
        start = match.start(kind) - match.start()
        return match[0][:start] + self._of[kind](match[kind]) + match[0][start + len(match[kind]) :]

    def _person(self, match: "re.Match[str]") -> str:
        """Replace the words from the first capitalised one."""
        words = match["name"].split()
        first = next((at for at, word in enumerate(words) if word.strip('"')[:1].isupper()), -1)
        return " ".join([*words[:first], self._new.user(" ".join(words[first:])), ""]) if first >= 0 else match[0]

    def _eui(self, digits: str) -> str:
        return _match_case(digits, f"{self._new.eui64(int(digits, 16)):016x}")

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
            return head + name(match["name"]) + renamed(match["key"], name)
        if match["site"] or match["remote"]:
            return "/".join(map(name, match[0].split("/")))
        if match["owner"]:
            if match["owner"].lower() in _PUBLIC_OWNERS:
                return match[0]
            parts = match["repository"].split("/")[1:] if match["repository"] else []
            repository = "".join(f"/{part if part == 'runs' else name(part)}" for part in parts)
            return match["host"].removeprefix("git@") + name(match["owner"]) + repository
        if match["way"]:
            return match["server"] + "/".join(map(name, match["way"].split("/")))
        if match["within"]:
            public = is_everyones(match["site_of"].partition(":")[0])
            return match[0] if public else match["site_of"] + renamed(match["within"], name)
        if match["tree"]:
            parts = match["tree"].split("/")
            return "/".join(part if at % 2 == 0 or part in parts[0::2] else name(part) for at, part in enumerate(parts))
        if match["account"]:
            kind, by, what = (
                re.split(r"([/:])", match["resource"][1:], maxsplit=1) if match["resource"] else ("", "", "")
            )
            return f"{match['arn']}{self._new.digits(match['account'])}" + (f":{kind}{by}{name(what)}" if kind else "")
        return self._new.digits(match["registry"]) + match["region"] + name(match["image"])


def little(pseudonyms: Pseudonyms, digits: str) -> str:
    """Replace an address as in /proc/net/tcp: one or four 32-bit numbers in this processor's byte order."""
    value = int(_swap_bytes(digits), 16)
    new = pseudonyms.ipv4(IPv4Address(value)) if len(digits) == 8 else pseudonyms.ipv6(IPv6Address(value))
    return _swap_bytes(f"{int(new):0{len(digits)}X}")


def _swap_bytes(digits: str) -> str:
    """Reverse the byte order of 32-bit numbers in hexadecimal."""
    words = (digits[at : at + 8] for at in range(0, len(digits), 8))
    return "".join(bytes.fromhex(word)[::-1].hex().upper() for word in words)


def _pairs(digits: str) -> list[str]:
    return re.findall("..", digits)


def _match_case(value: str, new: str) -> str:
    """Return `new` in capitals if `value` is."""
    return new.upper() if value.upper() == value and value.lower() != value else new
