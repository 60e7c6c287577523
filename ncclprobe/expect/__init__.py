"""The expected performance of a healthy machine, and the source of each number."""
