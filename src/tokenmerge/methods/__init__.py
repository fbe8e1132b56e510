"""One file per merging algorithm: a config, and how it turns tokens into operators."""
