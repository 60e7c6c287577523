"""The rules: one module per id prefix, each rule a pure function from facts to findings.

A check never looks at the machine. Its docstring is its explanation: what the problem is, why it matters, how to fix
it; its decorator holds an example that triggers it and one that does not, and both run as tests.
"""

from ncclprobe.facts.system import System
from ncclprobe.model.fleet import Every
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent


@applies
def several(nodes: Every[System | Absent]) -> bool:
    """where several nodes were looked at."""
    return len(nodes) > 1
