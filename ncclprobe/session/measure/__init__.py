"""Everything that a rank measures besides the collective itself, and how rank 0 records it."""
