"""How a value is changed and written out: the one place that says what kind of class value types are."""

from dataclasses import asdict, replace

__all__ = ["asdict", "replace"]
