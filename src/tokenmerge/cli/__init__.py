"""The `tokenmerge` command: one file per command, each with `add_parser` and `run`."""
