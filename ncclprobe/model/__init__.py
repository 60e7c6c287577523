"""Nouns: frozen value types that every other room shares. They know nothing of machines, torch or formats."""
