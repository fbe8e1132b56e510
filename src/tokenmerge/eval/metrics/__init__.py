"""How far an image is from its unmerged twin, from real images, and from its prompt."""
