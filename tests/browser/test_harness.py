"""That the helpers see and do what they say, with plain widgets and an idle kernel."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from browser.pages import Front, Page

WIDGETS = """
import ipywidgets as w
label, button = w.Label("untouched"), w.Button(description="Touch")
off = w.Button(description="Touch it", disabled=True)
field, echo = w.Text(description="Your name"), w.Label("")
note = w.Textarea(placeholder="A note")
button.on_click(lambda _: setattr(label, "value", "touched"))
field.observe(lambda change: setattr(echo, "value", f"Hello, {change.new}!"), "value")
note.observe(lambda change: setattr(echo, "value", f"noted {change.new}"), "value")
w.VBox([button, off, label, field, note, echo])
"""

TEXTS = """
from IPython.display import HTML
HTML('''<div id="texts" style="background: #fff; color: #000">
<p style="color: #767676">just enough</p>
<p style="color: #777">grey</p>
<p style="color: rgba(0, 0, 0, 0.5)">pale</p>
<div style="background: #000"><p>black <b style="color: #fff">on black</b></p></div>
<div style="background: #fff; opacity: 0.5"><i style="opacity: 0.5">faint</i></div>
<p style="background: rgba(0, 0, 0, 0.8); color: #fff">veiled</p>
<p style="background: linear-gradient(#fff, rgb(68, 68, 68))">blended</p>
<p style="color: #949494; font-size: 24px">large</p>
<p style="color: color(srgb 0.6 0.6 0.6)">modern</p>
<button disabled style="background: #fff; color: #ccc">disabled</button>
<input placeholder="hint" style="background: #fff" class="faint-hint">
<style>.faint-hint::placeholder { color: #ccc; opacity: 1 }</style>
<p style="display: none; color: #fff">hidden</p>
<p style="visibility: hidden; color: #fff">hidden</p>
<p style="position: absolute; width: 1px; height: 1px; overflow: hidden; color: #fff">unseen</p>
</div>''')
"""

SIZES = """
from IPython.display import HTML
HTML('''<div id="sizes" style="width: 400px">
<p style="overflow: hidden; width: 100px; white-space: nowrap">cut at the right hand side</p>
<p style="overflow: hidden; height: 8px; font-size: 16px">cut below</p>
<p style="overflow: hidden; text-overflow: ellipsis; width: 60px; white-space: nowrap">
shortened with dots</p>
<p style="overflow: hidden">it fits</p>
<p style="overflow: auto; width: 100px; white-space: nowrap">can be scrolled to its end</p>
</div>''')
"""


def test_buttons_and_fields_reach_an_idle_kernel(open_page: Callable[..., Page], front: Front):
    page = open_page(WIDGETS, front=front)
    page.run(0)
    page.wait_text(0, "untouched")
    page.click(0, "Touch")
    page.wait_no_text(0, "untouched")
    page.wait_text(0, "touched")
    page.type(0, "Your name", "Ada Lovelace")
    page.wait_text(0, "Hello, Ada Lovelace!")
    page.type(0, "A note", "one\ntwo")
    page.wait_text(0, "noted one two")
    order = page.tab_order(page.button(0, "Touch"), 2)
    assert order == ["Touch", "Your name", "A note"]
    assert page.button(0, "Touch it").is_disabled()


def test_texts_that_are_hard_to_read_are_found(open_page: Callable[..., Page], front: Front):
    page = open_page(TEXTS, front=front)
    page.run(0)
    found = {c.text: c for c in page.contrasts("#texts", disabled=True)}
    ratios = {text: round(c.ratio, 2) for text, c in found.items()}
    assert ratios == {
        "just enough": 4.54,
        "grey": 4.48,
        "pale": pytest.approx(3.95, abs=0.03),
        "black": 1.0,
        "on black": 21.0,
        "faint": pytest.approx(1.8, abs=0.1),  # black at a quarter: #bfbfbf
        "veiled": pytest.approx(12.6, abs=0.1),
        "blended": pytest.approx(2.16, abs=0.05),  # black on its dark end
        "large": 3.03,
        "modern": pytest.approx(2.85, abs=0.02),
        "disabled": pytest.approx(1.61, abs=0.01),
        "hint": pytest.approx(1.61, abs=0.01),
    }
    assert page.worst_contrast("#texts").text == "black"
    assert found["large"].needed == 3.0
    bad = {c.text for c in page.contrasts("#texts") if c.ratio < c.needed}
    assert bad == {"grey", "pale", "black", "faint", "blended", "modern", "hint"}


def test_what_is_cut_off_or_scrolls_sideways_is_found(open_page: Callable[..., Page], front: Front):
    wide = 'HTML(\'<div id="wide" style="width: 3000px">wide</div>\')'
    page = open_page(SIZES, wide, front=front)
    page.run(0)
    assert [line.split('"')[1] for line in page.clipped("#sizes")] == [
        "cut at the right hand side",
        "cut below",
    ]
    assert len(page.clipped("#sizes", ellipsis=True)) == 3
    assert page.side_scrolls("#sizes") == []
    assert len(page.side_scrolls("#sizes", inside=True)) == 1
    page.run(1)
    assert page.side_scrolls("#wide")


def test_cells_run_in_order_stop_and_survive_in_the_file(
    open_page: Callable[..., Page], front: Front
):
    page = open_page("import time; print('be' + 'gun')", "time.sleep(60)", "'never'", front=front)
    page.run_all(wait=False)
    page.wait_text(0, "begun")
    assert page.running(1)
    assert page.running(2)
    page.stop()
    page.wait_text(1, "KeyboardInterrupt")
    page.run(1, wait=False)
    page.interrupt()
    page.wait_end(1)
    assert "never" not in page.text(2)
    page.run(2)
    page.wait_text(2, "never")
    assert "begun" in json.dumps(page.save()["cells"][0]["outputs"])
    page.reload()
    page.wait_text(0, "begun")
    other = page.second()
    other.wait_text(2, "never")
    other.close()
    again = page.reopen_without_kernel()
    again.wait_text(1, "KeyboardInterrupt")
    again.run(1)
    again.wait_text(1, "NameError")


def test_each_theme_is_shown_and_pictures_are_taken(open_page: Callable[..., Page], front: Front):
    light = open_page("print('text')", front=front)
    dark = open_page("print('text')", front=front, theme="dark", width=700)
    for page in (light, dark):
        page.run(0)
        page.wait_text(0, "text")
        assert page.shot(f"harness-{front}-{page.theme}").stat().st_size > 5000
    assert light.contrasts(0)[0].background == "#ffffff"
    assert dark.contrasts(0)[0].background < "#333333"
    assert dark.worst_contrast(0).ratio > 7
    light.reload()
    assert light.worst_contrast(0).background == "#ffffff"
