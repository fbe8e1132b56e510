"""What every tool needs once: loading, generating, comparing, timing."""
