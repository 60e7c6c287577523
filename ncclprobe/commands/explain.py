"""``ncclprobe explain ID``: one check in full, or one variable."""

from collections.abc import Sequence

from ncclprobe.commands import arguments
from ncclprobe.engine.entries import entry


def main(argv: Sequence[str]) -> int:
    """Print the explanation. Raises UsageError for an id that does not exist, naming the nearest one."""
    parser = arguments.Parser(
        "explain",
        "Explain a check: the problem, why it matters, how it is decided and how to fix it; or a variable of NCCL.",
    )
    help_ = "Explain this check, such as env.bool-word (see `ncclprobe checks`), or variable, such as NCCL_IB_TIMEOUT."
    parser.add_argument("id", metavar="ID", help=help_)
    print("\n".join(entry(parser.parse_args(argv).id)))
    return 0
