"""Start ncclprobe on many hosts over the system's ssh: `here` connects to the hosts, `there` runs on each."""
