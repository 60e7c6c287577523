"""The machine types that ACME builds, a .toml file each."""
