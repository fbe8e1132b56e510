"""How the page looks: system fonts only, so that nothing is fetched; light and dark as the system has it."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
MONOSPACE = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
STYLE = Path(__file__).with_name("page.css")


def theme() -> gr.themes.Base:
    """Plain labels, and small print dark enough to read."""
    return gr.themes.Soft(
        primary_hue="indigo",
        secondary_hue="indigo",
        neutral_hue="slate",
        radius_size="md",
        font=FONTS,
        font_mono=MONOSPACE,
    ).set(
        block_title_background_fill="none",
        block_title_background_fill_dark="none",
        block_title_padding="0",
        block_title_text_color="*body_text_color",
        block_title_text_color_dark="*body_text_color",
        block_title_text_weight="600",
        block_label_background_fill="*neutral_100",
        block_label_background_fill_dark="*neutral_700",
        block_label_text_color="*body_text_color",
        block_label_text_color_dark="*body_text_color",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_border_width="1px",
        block_border_width_dark="1px",
        input_border_width="1px",
        input_border_width_dark="1px",
    )
