"""Checks of ACME's nodes. Their ids begin with ``site-acme``, by the name of the entry point."""

from collections.abc import Iterator

from ncclprobe.site import Every, Finding, Memory, System, check, fail, warn

LEAST_GIB = 64
KERNELS = ("5.15.", "6.8.")
"""Those that our image is built with."""


def _memory(gib: int) -> Memory:
    return Memory(total_bytes=gib << 30, available_bytes=gib << 29)


@check(
    bad=lambda: [(_memory(LEAST_GIB // 2),)],
    good=lambda: [(_memory(LEAST_GIB),)],
    required=True,
)
def host_memory(memory: Memory) -> Iterator[Finding]:
    """The node has less memory than we buy.

    Right: the node has the memory that we buy.
    Why: the firmware silently drops a module that fails its training at boot, and the data loaders are then killed.
    Fix: reseat the modules that `dmidecode -t memory` does not list, and drain the node until then.
    """
    gib = memory.total_bytes / (1 << 30)
    if gib < LEAST_GIB * 0.95:  # firmware and kernel keep some
        yield fail(
            "memory",
            f"{gib:.0f} GiB are there, and we buy {LEAST_GIB}",
            blame="node",
            action="repair",
            evidence="/proc/meminfo",
        )


def _nodes(*kernels: str) -> Every[System]:
    return Every({f"n{n}": System(f"n{n}", kernel, "x86_64", "", None) for n, kernel in enumerate(kernels)})


@check(
    bad=lambda: [(_nodes("5.15.0-91", "6.11.0-8"),)],
    good=lambda: [(_nodes("5.15.0-91", "6.8.0-45"),)],
)
def kernel(nodes: Every[System]) -> Iterator[Finding]:
    """A node runs a kernel that is not of our image.

    Right: every node runs a kernel of our image.
    Why: our drivers are built for these kernels, and another one was installed by hand or by an update.
    Fix: reinstall the node from the current image.
    """
    for node, system in nodes.items():
        if not system.kernel.startswith(KERNELS):
            yield warn(
                node,
                f"runs {system.kernel}; our image has {' or '.join(f'{each}*' for each in KERNELS)}",
                blame="image",
                action="fix-image",
                evidence="uname",
                nodes=(node,),
            )
