"""The healthy lab under every launcher: nothing above a note, and exit code 0."""

from .matrix import Codes, Launcher, Row, Setup

HAND_COUNTS = (2, 4, 8, 16)
TITLES: dict[Launcher, str] = {
    "hand": "by hand",
    "srun": "under srun",
    "mpirun": "under mpirun",
    "torchrun": "under torchrun, static rendezvous",
    "c10d": "under torchrun, c10d rendezvous",
}


def nothing(setup: Setup) -> None:
    """No fault."""


def _row(launcher: Launcher, nics: int = 1, six: bool = False, gpus: bool = False) -> Row:
    shape = [TITLES[launcher], f"{nics} card{'s' * (nics > 1)}", f"IPv{6 if six else 4} only", "GPUs" * gpus]
    return Row(
        f"healthy: {', '.join(filter(None, shape))}",
        nothing,
        (),
        Codes(0, 0, 0),
        hosts=HAND_COUNTS if not (six or gpus) or launcher == "hand" else (2, 8),
        deadline_s=200.0,
        nics=nics,
        family=6 if six else 4,
        gpus=gpus,
        launcher=launcher,
        timed=True,
        timeout_s=180.0,
    )


HEALTHY = (
    *(_row(launcher, nics) for launcher in TITLES for nics in (1, 2)),
    *(_row(launcher, 2, six=True) for launcher in TITLES),
    _row("hand", 2, gpus=True),
)
