"""Bounds on all outside input: files of users and other programs, answers of machines, messages, variables.

Their authors control length, counts and numbers. Input beyond a bound is refused in one line, or left out and counted,
before it costs time or memory. NCCL's own limits are kept beside NCCL's rules.
"""

# Files that users name.
CAPTURE_BYTES = 256 << 20
"""A capture; one of a node with 8 GPUs is below 1 MiB."""
CAPTURE_RANKS = 1024
"""Ranks of one node in its capture. Nodes have up to 16 GPUs, each with at most 8 MIG devices, and gloo runs up to 4
ranks per processor.
"""
LIKES = 8
"""Captures that one capture refers to, and the length of a chain of references."""
RUN_LOG_BYTES = 256 << 20
REPORT_BYTES = 256 << 20
REPORT_PARTS = 5_000_000
"""Lists and objects of a report: reading one takes 60 bytes and more. Ours have one per 120 bytes, or fewer."""
REPORT_DIGITS, REPORT_DECIMAL = 20, 1e60
"""Digits of a whole number in a report, and the largest decimal: products of larger ones overflow."""
SHOWN_CAPTURES = 512
"""Captures whose answers are kept during judging, to quote in findings: 0.1 MB each."""
SERIES_REPORTS = 400
"""Reports of one series: one per day for a year. Each is read whole, and only what a series needs is kept."""
FLEET_REPORTS = 100_000
"""Reports added to a store at once. Only the rows of each are held in memory, not the whole report."""
FLEET_FAULTS, FLEET_NUMBERS = 200, 512
"""Findings and numbers of one node kept from one report."""
FLEET_NODES = 200_000
"""Nodes of a store; all of them are shown."""
FLEET_EVIDENCE = 400
"""Characters of the reason for a node's state."""
FLEET_TEXT = 16 << 20
"""Bytes of one text in a store."""
FLEET_SINCE_S = 946_684_800.0
"""A report dated before the year 2000 was written on a machine that had lost its time."""
FLEET_AHEAD_S = 300.0
"""A report dated further in the future than this was written on a machine with a wrong clock."""
RUN_FILE_BYTES = 64 << 20
"""A file of runs: a report to compare or to keep, output of nccl-tests, a baseline."""
BASELINES = 1000
"""Baselines of one folder."""
NCCL_TESTS_ROWS = 100_000
"""Rows in one nccl-tests file, ranks in its header, and lines that name what was measured."""
NCCL_TESTS_LINE = 1024
"""Characters of a possible nccl-tests line."""
EXPECT_BYTES = 1 << 20
"""A file of --expect."""
CONFIG_BYTES = 1 << 20
"""An ncclprobe.toml."""
ENTRY_POINTS_BYTES = 1 << 20
"""The entry_points.txt of an installed distribution."""
SITE_FILES, SITE_FILE_BYTES = 100, 1 << 20
"""Files in a site's folder of checks, and the largest of them."""
SITE_LOAD_S, SITE_EXAMPLES_S, SITE_CHECK_S, SITE_FINDINGS = 10.0, 30.0, 5.0, 1000
"""Seconds for importing a site's checks, for one check's examples, and for one check; findings of one on a node."""
TOML_CHARACTERS, TOML_LINE, TOML_ENTRIES, TOML_NUMBER = 1 << 20, 4096, 1000, 1e15
"""Characters of a TOML file and of one line in it (tomllib takes minutes for a dotted key of thousands of parts),
entries of a list, and the largest number.
"""
TOPO_BYTES = 16 << 20
"""A saved topology matrix."""
TOPO_DEVICES, TOPO_NAME = 128, 64
"""Devices of a matrix that is judged, and characters of a name: machines have up to 16 GPUs and some 30 NICs."""

# Numbers that were measured elsewhere.
LEAST_TIME_US, MOST_TIME_US = 1e-6, 1e15
"""A call takes longer than a picosecond and less than 30 years; rates divide by its time."""
LEAST_GBPS, MOST_GBPS = 1e-9, 1e9
"""A comparable rate: from one byte per second to a billion GB/s."""
BYTES = 1 << 62
"""Size of a message, and the number of its elements."""

# Numbers of a job.
JOB_RANKS = 1 << 20
NODE_RANKS = 4096
"""Ranks that a launcher claims to have started on one node; each gets a slot."""
HOST_NAMES = 65_536
"""Nodes of a job, and names that one host list expands to."""
SSH_HOSTS, SSH_AT_ONCE = 1024, 32
"""Hosts of --hosts, each with its own ssh, and how many of these may connect at the same time."""
CREDENTIAL_BYTES = 8 << 10
"""A credential of munge."""
SSH_LINES_BYTES, KEPT_BYTES = 1 << 20, 64 << 20
"""What one of these hosts may print apart from its report and captures; and its captures."""

# Answers of a machine.
ANSWER_BYTES = 16 << 20
"""One file, or the output of one command."""
VALUE_CHARACTERS, PATH_CHARACTERS = 4096, 65536
"""Characters kept of a variable's value and of a search path; modules of clusters make long paths."""
NVML_ANSWER_BYTES = 1 << 20
"""A hundred times the longest answer: every field of 36 links, all refused."""
NVLINKS = 64
"""Links of one GPU: NVML_NVLINK_MAX_LINKS is 36 so far."""
NVML_DEVICES = 1024
"""GPUs of one node, each asked a hundred questions: nodes have up to 16."""
KERNEL_LINES = 2000
"""Lines of the kernel log that are kept, newest first."""
KERNEL_LINE = 1000
"""Characters that are read of one such line."""
LD_CACHE_BYTES = 16 << 20
"""Bytes of the dynamic loader's cache: a few hundred for each library, and systems have some thousands."""
ELF_STRING, ELF_TABLE = 1 << 14, 1 << 20
"""Bytes of a name in a library, and of a table of its parts."""
DATA_PATHS, LISTED_ENTRIES = 16, 10_000
"""Arguments of --path, and listed entries of one folder: every node queries the same file server."""
ELF_VERSIONS, ELF_CONTENT_BYTES = 4096, 64 << 20
"""Versions of symbols of a library, and bytes of its symbols, their names and its constants: NCCL's are below 1 MiB."""
ELF_TEXTS, ELF_TEXT = 16, 64
"""Texts that are searched for among a library's constants, and characters of one."""
NEEDED_LIBRARIES = 64
"""Libraries that one library needs directly."""
IMEX_NODES = 4096
"""Addresses of an IMEX domain; racks have 18 or 36."""
SHM_SEGMENTS = 64
"""NCCL's segments in /dev/shm that are examined one by one."""
IMEX_CHANNELS = 16
"""IMEX channels that are listed; a domain may have 2048."""
CGROUP_LEVELS = 16
FIREWALL_CHAINS = 32
"""Chains whose rules are read, with one command each."""
JSON_LEVELS = 64
"""Nesting of lists and objects in JSON within a capture that is redacted."""
LISTED_NUMBERS = 65_536
"""Numbers that a list such as ``0-3,8`` expands to: processors, NUMA nodes."""

JOB_THREADS, JOB_CHILDREN, JOB_FILES = 512, 128, 4096
"""Per running rank: threads whose children are looked up, these children, and open files."""
JOB_STACKS = 64
"""Ranks of one node whose stacks are read."""
JOB_DUMP_BYTES = 24 << 20
"""Bytes of one rank's flight records from torch's pipe: 2,000 calls with stacks are some 2 MiB."""
JOB_CONNECTIONS = 1024
"""TCP connections of a node's ranks; those that a thread waits on come first."""

# Other processes.
MESSAGE_BYTES = 64 << 20
"""The largest JSON text of one message: a capture of a node with 8 GPUs is below 1 MiB."""
WHOLE_DIGITS = 18
"""Digits of a whole number in a message: fits 64 bits, as do all counters of the kernel that are passed on."""
SENT_CAPTURE_CHARACTERS = 8 << 20
"""A capture between nodes; a node with 8 GPUs, 8 NICs and as many ranks has less than one million."""
HELLO_BYTES = 64 << 10
NAME_CHARACTERS = 255
"""Characters of a node's name, as in DNS."""
SAMPLES_BYTES = 4 << 20
PLAN_BYTES = 4 << 20
"""A plan; 2,048 nodes with their names and 22 calls in each of two roles are below 100 KiB."""
SIBLING_BYTES = 4 << 20
"""Data that another rank of this node hands over."""
TROUBLES = 256
"""Failed callers that rank 0 reports."""
STORE_NOTE_BYTES = 64 << 10
STORE_VALUE_BYTES = 8 << 20
"""A value in torch's TCPStore, which drops the connection above this (seen with torch 2.13)."""
RESOLVED_ADDRESSES = 8
"""Addresses of rank 0's name that are tried."""
LISTENERS = 21
"""Addresses of a node: NCCL uses up to 16 interfaces (MAX_IFS), gloo is tried on up to 4, plus the default interface.
"""
LISTENER_CHARACTERS = 64
"""Characters of an interface's name or an address."""
STREAM_BYTES = 64 << 20
"""Bytes of a stream that measures a path."""
RAIL_PORTS, RAIL_ROWS = 64, 100_000
"""RDMA ports of a node that NCCL uses (MAX_IB_DEVS is 32), and tests of them in one run."""
RAIL_MESSAGE_BYTES = 1 << 20
"""Bytes of one rail end's report: 10,000 round trips and 4,096 times of chains are a third of this."""
MEETING_SHARE = 0.5
"""Share of --timeout: the longest wait for other nodes, whatever --wait is."""
