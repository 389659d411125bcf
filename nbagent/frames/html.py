"""What all HTML views share; text of models and tools gets into them by `escape` only."""

from __future__ import annotations

__all__ = ["CELL", "SHORT", "block"]

SHORT = "white-space:pre-wrap;text-align:left;vertical-align:top"
"""Style of a cell whose words stay whole."""

CELL = f"{SHORT};overflow-wrap:anywhere"
"""Style of a cell whose text wraps wherever it must, and keeps its own line breaks."""


def block(html: str) -> str:
    """A view's HTML, in which no front-end takes text between dollar signs for a formula.

    Source: `ignoreHtmlClass` of MathJax 3 and later is mathjax_ignore (JupyterLab, Notebook 7), of
    MathJax 2 tex2jax_ignore (nbconvert): https://docs.mathjax.org/en/latest/options/document.html,
    2026-12.
    """
    return f'<div class="mathjax_ignore tex2jax_ignore" style="line-height:1.4">{html}</div>'
