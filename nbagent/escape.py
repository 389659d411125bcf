"""Text of models and tools made harmless: to read (`clean`), to judge (`visible`), HTML (`escape`)."""

from __future__ import annotations

import html
import re

__all__ = ["TOKEN", "clean", "escape", "visible"]

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


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with nothing left out: for questions, where what is shown must be what is so.

    Control characters become their pictures (`␛` for ESC); all else that has no form of its own
    becomes `<U+200B>`: format, zero-width and direction marks, spaces other than the common one,
    fillers, private and unassigned characters, half surrogate pairs. So does what looks like one of
    these marks, therefore each text is shown in one way only and can be read back.

    Parameters
    ----------
    lines
        Line breaks stay, for a layout that marks each line.

    Examples
    --------
    >>> visible("ls \x1b]0; rm -rf ~ #\x07 docs\u200b")
    'ls ␛]0; rm -rf ~ #␇ docs<U+200B>'
    >>> visible("␛ <U+200B>")
    '<U+241B> <U+003C>U+200B>'
    """
    if "<" in text:
        text = _LOOKS_LIKE_A_MARK.sub("<U+003C>", text)
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_LINES if lines else _MARKS)


TOKEN = re.compile(r"<U\+[0-9A-F]{4,6}>|.", re.DOTALL)
"""What stands for one character in the result of `visible`."""

_LOOKS_LIKE_A_MARK = re.compile(r"<(?=U\+[0-9A-F]+>)", re.IGNORECASE)

# No `str.isprintable` knows these: letters, marks and symbols that are drawn as nothing or as space.
# Source: https://www.unicode.org/Public/16.0.0/ucd/DerivedCoreProperties.txt
# (Default_Ignorable_Code_Point), 2025-01-10; U+2800 and U+1D159 are blank by design.
_BLANK = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180F, 0x2800, 0x3164, 0xFFA0, 0x1D159}
    | {*range(0x180B, 0x180E), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
)


class _Marks(dict[int, str]):
    """The visible form of each code point, made on first use."""

    def __missing__(self, point: int) -> str:
        char = chr(point)
        if point < 0x20 or point == 0x7F:
            form = chr(0x2400 + point if point < 0x20 else 0x2421)
        elif char.isprintable() and point not in _BLANK and not 0x2400 <= point <= 0x2421:
            form = char
        else:
            form = f"<U+{point:04X}>"
        self[point] = form
        return form


_MARKS, _LINES = _Marks(), _Marks({0x0A: "\n"})
