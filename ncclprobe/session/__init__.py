"""The surroundings of a measurement: the ranks' identities and rendezvous, lost ranks, and the record of rows."""
