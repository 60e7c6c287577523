"""A gate of a CI job: stop unless every captured node is fit. Usage: gate.py CAPTURE…"""

import sys

from ncclprobe import api


def main(captures: list[str]) -> int:
    """Print what fails, and return the exit code that the command would have."""
    report = api.doctor(captures)
    for finding in report.failures():
        print(f"{finding.severity} {finding.node} {finding.check} {finding.subject}: {finding.message}")
        print(f"    {finding.remedy}")
    print(report)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
