"""Turn a job's logs, whatever their form, into who failed and why. Pure; it holds no rules of its own.

A line passes each stop once. `read` finds the files that are logs. `reader` turns their lines into events, without
their prefixes (`prefix`) and with wrapped text joined (`paragraphs`). `ranks` assigns events to ranks, `outcome`
decides how the job ended, `lines` picks the lines that most likely explain it (`layers` names the layer of each),
`causes` picks the first verdict, and `timeline` orders what is shown. The rules are in :mod:`ncclprobe.checks.log`.
"""

SOURCE = "files"
