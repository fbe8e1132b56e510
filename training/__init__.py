"""How the embedded models are made; see README.md in this folder."""
