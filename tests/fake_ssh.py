"""An ssh that runs the command here: what a host does follows from its name. Tests put it in PATH as `ssh`."""

import os
import sys
import time
from pathlib import Path


def main() -> None:
    host, command = sys.argv[sys.argv.index("--") + 1 :]
    if log := os.environ.get("FAKE_SSH_LOG"):
        with Path(log).open("a") as file:
            file.write(" ".join((str(os.getpid()), *sys.argv)) + "\n")
    kind = host.partition("@")[2] or host
    if kind.startswith("down"):
        print(f"ssh: connect to host {host} port 22: No route to host", file=sys.stderr)
        sys.exit(255)
    if kind.startswith("hang"):
        time.sleep(1000)
    if kind.startswith("bare"):
        command = "exec python3 -S -m ncclprobe.session.ssh.there"
    if kind.startswith("old"):
        command = """printf 'ncclprobe-host {"version": "0.0.1"}\\n'; cat >/dev/null"""
    if kind.startswith("loud"):
        command = "yes"
    if kind.startswith("dies"):
        command = "kill -9 $$"
    print("Welcome: a login shell may print this", flush=True)
    os.chdir("/")
    os.execvp("sh", ["sh", "-c", command])


if __name__ == "__main__":
    main()
