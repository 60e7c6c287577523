"""What ACME adds to ncclprobe."""
