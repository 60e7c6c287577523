"""The commands: one module each, named as the command is."""
