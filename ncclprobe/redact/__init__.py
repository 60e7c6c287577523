"""Pseudonyms for names, addresses and serial numbers in captures and reports."""
