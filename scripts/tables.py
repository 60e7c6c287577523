"""Tables in Markdown, for the scripts that write reports."""

from collections.abc import Iterable, Iterator, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of a markdown table, and an empty one."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "--|" * len(head)
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"{len(row)} cells below {len(head)} headings: {row}")
        yield "| " + " | ".join(str(cell).replace("|", r"\|").replace("\n", " ") for cell in row) + " |"
    yield ""
