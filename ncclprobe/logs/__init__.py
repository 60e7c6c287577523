"""What a job said: from lines of any form to who failed and why. Pure, and knows no rule of its own.

A line passes each stop once: `read` finds the files that are logs, `reader` makes events of their lines (without what
stands before them, `prefix`, and with what was wrapped, `paragraphs`), `ranks` says whose they are, `outcome` how the
job ended, `lines` which of them most likely say why (of which layer each is: `layers`), `causes` which verdict stands
first, `timeline` in which order it is shown. The rules stand in :mod:`ncclprobe.checks.log`.
"""

SOURCE = "files"
