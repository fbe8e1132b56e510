"""What a generation would take on a GPU, from the kernels that a configuration really launches."""
