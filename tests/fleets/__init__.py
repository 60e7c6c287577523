"""Fleets that never were, from seeds or recorded pairs: they show what localising can and cannot see."""
