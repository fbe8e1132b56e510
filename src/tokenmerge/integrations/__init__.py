"""What other hosts need to use tokenmerge."""
