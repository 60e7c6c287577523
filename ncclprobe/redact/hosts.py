"""Names of hosts, pods and domains that nothing but free text tells.

By their form: a whole name in a domain that is not everyone's, a word such as ``gpu-node-0042``. By what stands before
them: ``hostname:``, ``pod``, ``namespace``, Open MPI's ``[name:pid]``. A host called like any other word is not known.
"""

import re
from collections.abc import Iterator

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})"
_WORD = re.compile(r"(?<![\w./-])[a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,30}){0,6}(?![\w-])")
_WHOLE = re.compile(rf"(?:(?<![\w./-])|(?<=://))({_LABEL}(?:\.{_LABEL}){{1,8}})(?![\w-]|\.\w|\()")
_MAIL = re.compile(rf"(?<![\w.+-])[\w.+-]{{1,64}}@([A-Za-z][\w-]{{0,62}}(?:\.{_LABEL}){{1,8}})(?<!\.service)")
_SAID = re.compile(
    rf"(?<![\w-])(?i:host(?:_?name)?|node_?name|machine)[\"']?\s{{0,12}}[:=]\s{{0,4}}[\"']?({_LABEL})(?![\w(-])"
    rf"|^\[({_LABEL}):\d{{3,8}}\](?=\s|$)",
    re.MULTILINE,
)
_POD = re.compile(
    r"(?<![\w-])(?:[Pp]od|[Nn]amespace)[\"']?(?:/|\s{0,2}[:=]\s{0,2}|\s)[\"']?([a-z0-9]{1,40}(?:-[a-z0-9]{1,40}){1,12})"
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
"""Words of programs end so as well (``encoder.net``): a name is one where its first label is a host's."""
_EVERYONES_DOMAINS = (
    "amazon.com amazonaws.com amd.com anaconda.com anaconda.org apache.org azure.com broadcom.com cloudflare.com"
    " debian.org docker.com example.com example.net example.org fedoraproject.org github.com githubusercontent.com"
    " gitlab.com gmail.com gnu.org google.com googleapis.com huggingface.co ibm.com ingest.sentry.io intel.com"
    " k8s.io kernel.org kubernetes.io mellanox.com microsoft.com mozilla.org nvidia.com open-mpi.org openai.com"
    " oracle.com oraclecloud.com pypi.org python.org pythonhosted.org pytorch.org readthedocs.io redhat.com schedmd.com"
    " slack.com stackoverflow.com ubuntu.com wandb.ai windows.net cluster.local svc.cluster.local ec2.internal"
    " compute.internal google.internal metadata.google.internal"
)
_EVERYONES = frozenset(_EVERYONES_DOMAINS.split())


def hosts(text: str) -> Iterator[str]:
    """Yield the names of hosts that `text` tells, whole or short."""
    for match in _WHOLE.finditer(text):
        if _is_host(match[1]):
            yield match[1]
    for match in _SAID.finditer(text):
        name = match[1] or match[2]
        if "-" in name.strip("-") and any(map(str.isdigit, name)) and not _is_known(name.lower()):
            yield name
    for match in _WORD.finditer(text):
        if _looks_like_host(match[0]):
            yield match[0]


def pods(text: str) -> Iterator[str]:
    """Yield the names of pods and their namespaces."""
    return (match[1] for match in _POD.finditer(text) if not match[1].startswith("kube-"))


def mail_domains(text: str) -> Iterator[str]:
    """Yield the domains of mail addresses, without those of everyone."""
    return (match[1] for match in _MAIL.finditer(text) if not _is_everyones(match[1].lower()))


def _is_host(name: str) -> bool:
    first, *_, last = name.lower().split(".")
    if _is_everyones(name.lower()) or "." not in name:
        return False
    if last in _SITES_OWN:
        return name.count(".") > 1
    return last in _OTHERS and name.count(".") > 1 and ("-" in first or _looks_like_host(first))


def _is_everyones(name: str) -> bool:
    labels = name.split(".")
    return any(".".join(labels[at:]) in _EVERYONES for at in range(len(labels)))


def _looks_like_host(word: str) -> bool:
    """Return whether a word has the form ``gpu-node-0042``: a machine's, and a number that is no device's."""
    numbered = _NUMBERED.fullmatch(word.rpartition("-")[2])
    return bool(numbered and _OF_MACHINES.search(word)) and not _is_known(word)


def _is_known(word: str) -> bool:
    return bool(_PSEUDONYM.fullmatch(word) or _NUMBERED_THING.fullmatch(word))
