"""The one door by which a golden is written."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-goldens",
        action="store_true",
        help="Write what the measuring runs of tests/measuring give now, instead of comparing. Read the difference.",
    )
