"""An image of two images, with a line over each and the prompt below."""

from __future__ import annotations

import textwrap

from PIL import Image, ImageDraw, ImageFont

MARGIN = 16
BACKGROUND, INK, FAINT = "white", "#1a1a1a", "#666666"
SMALLEST_PANEL = 320  # narrower images leave no room for their labels


def side_by_side(panels: list[tuple[Image.Image, str, str]], caption: str) -> Image.Image:
    """Panels of (image, title, remark) in a row over a caption. Images keep their pixels, small ones enlarged."""
    width, height = panels[0][0].size
    scale = max(1, -(-SMALLEST_PANEL // width))
    width, height = width * scale, height * scale
    size = max(14, width // 26)
    title_font, text_font = ImageFont.load_default(size * 1.15), ImageFont.load_default(size)
    line = round(size * 1.45)
    full = len(panels) * (width + MARGIN) + MARGIN
    lines = textwrap.wrap(caption, width=max(20, round((full - 2 * MARGIN) / (size * 0.55))))[:3]
    top = MARGIN + 2 * line
    sheet = Image.new("RGB", (full, top + height + MARGIN // 2 + line * len(lines) + MARGIN), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for index, (image, title, remark) in enumerate(panels):
        left = MARGIN + index * (width + MARGIN)
        draw.text((left, MARGIN // 2), title, INK, title_font)
        draw.text((left, MARGIN // 2 + line), remark, FAINT, text_font)
        sheet.paste(image.convert("RGB").resize((width, height), Image.Resampling.NEAREST), (left, top))
    for number, text in enumerate(lines):
        draw.text((MARGIN, top + height + MARGIN // 2 + number * line), text, FAINT, text_font)
    return sheet
