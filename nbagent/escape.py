"""Text of models and tools made harmless: for a terminal (`clean`) and for HTML (`escape`)."""

from __future__ import annotations

import html
import re

__all__ = ["clean", "escape"]

# Terminal sequences, in their 7-bit and 8-bit forms: CSI (colours, cursor), the string commands
# with their payload (OSC links and titles, DCS, SOS, PM, APC), and two-character escapes. That
# quantifiers are possessive and no payload runs over the next introducer keeps it linear. A string command without its end loses only its introducer:
# otherwise one unclosed escape would hide all that follows from the person who reads.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*+[0-~]"
)

_DIRECTION = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_TABLE: dict[int, str | None] = {
    **{point: None for point in (*range(0x20), *range(0x7F, 0xA0)) if point not in (0x09, 0x0A)},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    0x0D: "\n",
    0x2028: "\n",
    0x2029: "\n",
    0x00: "\u2400",  # the picture of NUL
    **{point: f"\u27e8U+{point:04X}\u27e9" for point in _DIRECTION},
}


def clean(text: str) -> str:
    r"""The text without terminal sequences and control characters; what may deceive is shown.

    Line breaks and tabs stay; a carriage return is a line break. NUL becomes its picture, each mark
    that changes the direction of writing its code point, half a surrogate pair U+FFFD.

    Examples
    --------
    >>> clean("\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link \u202ecod")
    'red link ⟨U+202E⟩cod'
    """
    if text.isascii() and text.isprintable():
        return text
    return _SEQUENCE.sub("", text.replace("\r\n", "\n")).translate(_TABLE)


def escape(text: str) -> str:
    """The text for HTML, also inside of a quoted attribute: `clean`, then escaped.

    Examples
    --------
    >>> escape('<img src=x onerror="alert(1)">')
    '&lt;img src=x onerror=&quot;alert(1)&quot;&gt;'
    """
    return html.escape(clean(text))
