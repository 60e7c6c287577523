"""From who could not reach whom, or was slow, to the one to blame. Pure."""
