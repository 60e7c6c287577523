"""Fleets that never were: a leaf-and-spine fabric whose flows share links, with faults planted or none.

`fabric` says what a set of flows gets, `faults` what is broken, `noise` what measuring adds, `fleet` puts them together
behind the call that a real measurement has. Test support: it shows what localising can and cannot see, and every
number it gives comes from a seed.
"""
