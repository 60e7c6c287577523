"""What a healthy machine does, and where each such number comes from."""
