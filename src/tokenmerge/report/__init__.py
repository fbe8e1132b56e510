"""What `explain()` and the support table show."""
