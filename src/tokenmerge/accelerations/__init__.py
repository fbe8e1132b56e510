"""Ways to make a pipeline generate faster: our methods, fewer steps, and the caches of others. Each can be removed."""
