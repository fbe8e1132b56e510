"""The experiment most tests run: the tiny random pipeline at 128 px, two steps, four prompts."""

PROMPTS = ["a lighthouse at night", "a red <b>bicycle</b> & a cat", "three apples, a pear", "a ship in a storm"]

EXPERIMENT = """
name = "small"
fewer_steps = []
ratios = [0.5]

[model]
name = "tiny-random"
threads = 1

[prompts]
file = "prompts.txt"

[seeds]
values = [7]

[image]
width = 128
height = 128
steps = 2
guidance = 2.0

[timing]
warmup = 1
warmup_steps = 1

[[variants]]
name = "ToMA"
method = "toma"

[[variants]]
name = "LB"
method = "lower-bound"
ratios = [0.25, 0.5]
"""
