"""Reading on from a literal text in a line: linear in its length, whatever the line holds."""


def between(text: str, start: str, end: str = "") -> str:
    """Return what follows the first `start`, up to `end` or, where `end` is not there or empty, to the end.

    Empty where `start` is not in the text.
    """
    _, found, rest = text.partition(start)
    if not found:
        return ""
    return rest.partition(end)[0] if end else rest


def number(text: str, most: int = 12) -> int | None:
    """Return the number that a text begins with, of `most` digits at most; None: it begins with none."""
    sign, digits = ("-", text[1:]) if text[:1] == "-" else ("", text)
    length = 0
    while length < min(len(digits), most) and digits[length] in "0123456789":
        length += 1
    return int(sign + digits[:length]) if length else None


def address_of(text: str) -> str:
    """Return the address or host name of ``10.0.0.7<43211>``, ``[10.0.0.7]:43211`` or ``node7.example<52123>``, with an
    IPv6 scope.
    """
    bare = text.strip().partition("<")[0]
    return bare[1:].partition("]")[0] if bare.startswith("[") else bare.strip("[]")
