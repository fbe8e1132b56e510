"""The page behind `tokenmerge serve`. Needs the extra `web`; nothing here is imported by anything else."""
