"""What a user can ask for: options, their values and their checks."""
