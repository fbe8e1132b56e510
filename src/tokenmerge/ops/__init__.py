"""Pure tensor maths on torch alone: regions, selection, merging."""
