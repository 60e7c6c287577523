"""The process environment, through the allow-list that the host applies (docs/how/manners.md)."""

import json
from collections.abc import Mapping

from ncclprobe.errors import ParseError
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field


class Environment(Struct, frozen=True):
    """Variables by name. None: the name may be recorded, its value may not."""

    variables: Mapping[str, str | None] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """Return the value, or None where it is unset or withheld."""
        return self.variables.get(name)


def parse(text: str) -> Environment:
    """Return the host's answer: one JSON object of name to value or null. Raises ParseError."""
    try:
        variables = json.loads(text)
    except ValueError:
        raise ParseError(f"environment: not JSON: {text[:80]!r}") from None
    if not isinstance(variables, dict) or not all(isinstance(v, str | None) for v in variables.values()):
        raise ParseError(f"environment: not an object of texts: {text[:80]!r}")
    return Environment(variables)


@collector
def environment(host: Host) -> Environment:
    """Read this process's variables, as far as they may be recorded."""
    return parse(host.ask("env"))
