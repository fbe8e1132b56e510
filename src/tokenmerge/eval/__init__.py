"""From prompts to paired images, metrics, tables, figures and one page: `tokenmerge eval` and what it is made of."""
