"""Roles that a text gives to a word: ``user: NAME``, ``node=NAME``, ``--account NAME``, ``"apiKey": "…"``, ``project
'NAME'``.

A key is split into words, however they are joined: ``created_by``, ``clusterName``, ``Job name``, ``JOB-NAME``.
"""

import re
from collections.abc import Iterator
from typing import Literal

from ncclprobe.redact.public import is_public

Role = Literal["user", "host", "name", "secret"]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS_OF: dict[Role, str] = {
    "user": "user users username usr login logname owner author submitter requester creator maintainer operator"
    " whoami principal assignee reporter committer approver uploader mailuser uid",
    "host": "host hostname hosts node nodename nodes server endpoint fqdn nodelist gateway filer switch bastion"
    " machine hostlist realm exechost submithost master headnode peer coordinator",
    "name": "account project bucket repository repo org organization organisation team tenant namespace pod container"
    " workspace entity experiment job run cluster partition queue reservation qos realm customer company department"
    " wckey jobname ns deployment statefulset configmap group site allocation sweep workflow subscription filesystem",
    "secret": "password passwd pwd pass passphrase secret apikey credential otp passcode authkey authtoken accesskey"
    " secretkey privatekey",
}
_ROLES: dict[str, Role] = {word: role for role, words in _WORDS_OF.items() for word in words.split()}
_DONE = _set(
    "created submitted owned started launched run requested reported modified updated authored opened killed cancelled"
    " canceled triggered approved locked uploaded held deleted drained"
)
"""Participles before ``by``: a user follows."""
_OF_KEYS = _set("api access private secret auth client shared license encryption signing master webhook")
_OF_TOKENS = _set("api access auth id refresh session bearer private deploy bot app user secret security")
_FILLERS = _set("name names id ids list")
"""Words that may end a key, and say nothing of what it names."""
_EMPTY = _set("none null nil true false yes no unknown empty missing unset redacted n/a na")
_OF_ADDRESSES = _set("master server head node host rdzv leader remote peer store coordinator rendezvous main")

_VERBS = _set("run group site sweep allocation switch users hosts nodes")
"""Nouns that are only a word of a sentence, unless something is assigned to them."""

_VALUE = r"[A-Za-z0-9_][\w.+/~!$%*#&?@-]{0,255}(?:\[[\d,-]{1,200}\][\w.-]{0,63})?"
_ASSIGNED = re.compile(
    r"(?<![\w/@])(?P<key>[A-Za-z][\w.-]{0,60}(?: [A-Za-z]{2,12})?)"
    r"(?:[\"']?\s{0,24}(?:[:=]{1,2}|=>)(?![:/=])\s{0,4}|>)"
    rf"(?P<quote>[\"'`<({{\[]{{0,2}})(?P<value>{_VALUE}(?:,{_VALUE}){{0,63}})"
)
_OPTION = re.compile(rf"(?<![\w-])--(?P<key>[a-z][\w-]{{1,40}})[ =]{{1,3}}(?P<quote>[\"'`]?)(?P<value>{_VALUE})")
_NOUNS = "|".join(
    sorted((word for word, role in _ROLES.items() if role != "secret" and word not in _VERBS), key=len, reverse=True)
)
_PROSE = re.compile(
    rf"(?<![\w-])(?P<key>(?i:{_NOUNS}))(?: (?:name|id|is|was|called|named)){{0,2}}\s{{1,2}}(?P<quote>[\"'<]?)"
    rf"(?P<value>{_VALUE})"
)

_AFTER_USER = re.compile(
    r"\s{0,4}(?:$|\n|:(?=\s|$)|\s(?:on|from|by|in|at|of|has|is|was|may|can|cannot|does|did|lacks|exceeds?)(?!\w))"
)
_AFTER_HOST = re.compile(r" port \d| (?:has|is|was|may|can|cannot|does|did|died|failed|went|left|ran|down|not)(?!\w)")

_FURTHER_NAMES = re.compile(r" ([A-Z][\w'-]{1,30})")
_OF_VERBS = ("s", "ed", "ing", "ly")
_NEXT_WORD = re.compile(r" [a-z]{1,20}(?![\w:=/])")


def role_of(key: str) -> Role | None:
    """Return the role that a key gives to its value."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", key)]
    while len(words) > 1 and words[-1] in _FILLERS:
        words.pop()
    *_, before, last = ("", *words)
    if last == "by":
        return "user" if before in _DONE else None
    if last in ("addr", "address"):
        return "host" if before in _OF_ADDRESSES else None
    if last in ("key", "token"):
        return "secret" if before in (_OF_KEYS if last == "key" else _OF_TOKENS) else None
    return _ROLES.get(last) or next(
        (role for word, role in _ROLES.items() if len(word) > 3 and last.endswith(word)), None
    )


def is_own(value: str) -> bool:
    """Return whether a word has a part that is not a public word."""
    return not all(part in _ROLES or is_public(part) for part in re.findall(r"[a-z]{2,}", value.lower()))


def names(text: str) -> Iterator[tuple[Role, str]]:
    """Yield the users, hosts and other names that a text declares, without secrets."""
    for pattern in (_ASSIGNED, _OPTION, _PROSE):
        for match in pattern.finditer(text):
            role, value = role_of(match["key"]), match["value"].rstrip(".:!?/")
            if role in (None, "secret") or value.lower() in _EMPTY or not is_own(value):
                continue
            if not (match["quote"] or re.search(r"[\d_-]", value)) and _is_of_a_sentence(match, role):
                continue
            yield from ((role, part) for part in _parts(role, value) if len(part) > 2 and is_own(part))
            if role == "user" and match.re is _ASSIGNED and value[0].isupper():  # a person: the rest of the name
                yield from ((role, word) for word in _FURTHER_NAMES.findall(text, match.end(), match.end() + 60))


def _is_of_a_sentence(match: "re.Match[str]", role: Role | None) -> bool:
    """Return whether a value without digits, quotes and dashes may be the next word of a sentence."""
    if match.re is _PROSE:
        after = {"user": _AFTER_USER, "host": _AFTER_HOST}.get(str(role))
        named = bool(after and after.match(match.string, match.end()))
        return not named or match["value"].rstrip(".").endswith(_OF_VERBS)
    return ": " in match[0] and bool(_NEXT_WORD.match(match.string, match.end()))


def _parts(role: Role, value: str) -> list[str]:
    if role == "host":
        return [part.partition("/")[0].rpartition("@")[2] for part in re.split(r",(?![^\[]*\])", value)]
    parts = re.split(r"[,/]" if role == "name" else ",", value)
    return [part.partition("@")[0] for part in parts]


def without_secrets(text: str) -> str:
    """Remove the values that a key calls secret."""

    def cut(match: "re.Match[str]") -> str:
        value = match["value"]
        said = match["key"].lower().endswith("pass") and "=" not in match[0]  # a verb, or the result of a test
        if role_of(match["key"]) != "secret" or value.lower() in _EMPTY or value.isdigit() or said:
            return match[0]
        return f"{match[0][: match.start('value') - match.start()]}…"

    return _OPTION.sub(cut, _ASSIGNED.sub(cut, text))
