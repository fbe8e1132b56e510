"""What the page says: under each control, what it does to speed and to the image."""

from __future__ import annotations

TITLE = "tokenmerge"
INTRO = (
    "Neighbouring patches of an image often say the same thing, and denoising steps often change little. Here patches "
    "are merged and steps are skipped. See how much faster that is, and what it does to the image."
)

PROMPT = "What to generate. A longer prompt takes no longer."
SEED = "Which noise to start from. The same seed gives the same image; speed does not change."
STEPS = "Denoising steps. More take longer and make cleaner images; merging saves its share of each."
SIZE = "Width x height in pixels, such as 512 x 512 or 768 x 512. Merging saves more on larger images."
GUIDANCE = "How strictly to follow the prompt. Empty: the model's own. 1 or less runs the model once a step, not twice."
MODEL = "An embedded model, the folder of a diffusers model, or a hub id such as org/model (which is downloaded)."
PRESETS = {
    "quality": "Closest to the unmerged image.",
    "balanced": "What is recommended: much faster, and hard to tell apart.",
    "fast": "Fastest of the three; look at the image before you rely on it.",
    "my own": "The settings under Merging in detail.",
}
METHOD = "How tokens are chosen and merged."
RATIO = "Fraction of tokens merged away. More is faster and blurs more."
TILE = "Side of a tile in tokens. tile-mean keeps one token of each tile: 2 is closer to the unmerged image, 4 faster."
REGION = "Where destinations are selected. Tiles keep most of the image; global assignment is slowest."
SCOPE = "How often tokens are merged. Site: around each part, keeps most detail. Stack: once for many blocks, fastest."
PARTS = "What runs on fewer tokens. All three are fastest; self-attention alone is safest."
SELECT = "Destinations are selected again after this many steps. More is faster; the selection grows stale."

INSIDE = (
    "Generates the image described on the Compare tab twice more and watches every block: which tokens are merged, "
    "how much each counts, and where the time goes."
)
BLOCK = "A transformer block. The first and last ones see the finest grid of tokens."
STEP = "Early steps settle the layout, late ones the detail."
TOKEN = "Click a token in the image above, or give its row and column."
MERGES = "Tokens in one outline are merged into the dot, and shown in their mean colour. The rest are left alone."
WEIGHT_MAP = "The framed token is the chosen one; the dot is the destination it reads from; colour is merge weight."
CLUSTERS = "Tokens that the block takes for alike (k-means of its hidden states), in their colours in the image."
OVERLAP = (
    "If destinations were selected at every step, how many would be those of the first step of their ten? Where the "
    "line stays high, choosing rarely costs nothing."
)
STAGES = "Seconds of the whole image. Merging pays when what it saves in attention and MLP exceeds what it costs."

SWEEP = (
    "Generates the image described on the Compare tab with each method at each ratio, one at a time, and unmerged "
    "before each method, to compare times with. Fewer steps and caches show what else could be had for the time."
)
SWEEP_METHODS = "One image per ratio. What has no ratio, such as presets and caches, generates one image."
SWEEP_RATIOS = "Fraction of tokens merged away; of fewer-steps the fraction of steps left out. More is faster."

DIVIDER = "Drag it here or in the image: unmerged on its left, merged on its right."
EXAMPLE_RESULT = (
    "An example from the package: “{prompt}”, {steps} steps of {model} on {device}, {threads}, took "
    "{unmerged:.1f} s unmerged and {merged:.1f} s merged, {speedup:.1f}x, {closeness}. Press Compare for your own."
)
NO_RESULT = "Press Compare, and both images appear here with a divider between them."
EXAMPLES = (
    ("red apple", 0),
    ("red heart", 1),
    ("smiling face with sunglasses", 2),
    ("hot dog", 3),
)
