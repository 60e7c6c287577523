"""Start ncclprobe on many hosts over the system's ssh: `here` calls the hosts, `there` is what runs on each."""
