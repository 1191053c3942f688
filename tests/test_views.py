"""Terminal, page, figure and notebook: what is shown, at its true width, and nothing injected."""

from __future__ import annotations

import io
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import eyeline
from eyeline.glossary import TABLE, Phrases, language
from eyeline.views.commands import next_commands, quoted
from eyeline.views.figure import fan, figure, heatmap
from eyeline.views.labels import printable, shorten
from eyeline.views.notebook import reading_html, weights_html
from eyeline.views.page import fragment, page
from eyeline.views.shading import Grid
from eyeline.views.terminal import screen, show
from tests.looks import made_up

HOSTILE = ("[CLS]", "</script><b>x", "a<b<c", '"', "&amp;", "\x1b[31m", "it's", "[SEP]")
CHINESE = ("[CLS]", "注", "意", "力", "🙂", "👩‍👩‍👧", "软检索", "[SEP]")
PLAIN = ("[CLS]", "The", "keys", "are", "heavy", "[SEP]")
LONG = tuple(f"word{i}" for i in range(8000))


def prose(text: str) -> list[str]:
    """The lines of a screen but for its commands, which are never broken."""
    return [line for line in text.splitlines() if not line.startswith("  eyeline look")]


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("words", [PLAIN, CHINESE, HOSTILE, LONG], ids=["en", "zh", "bad", "long"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_line_is_wider_than_the_screen(words, width, lang):
    text = screen(made_up(words, lang=lang), width)
    assert max(map(cell_len, prose(text))) <= width


@pytest.mark.parametrize("heads", [1, 12, 16, 32, 64])
def test_overviews_of_any_width_fit(heads):
    look = made_up(PLAIN, heads=heads, overview=tuple((0.5,) * heads for _ in range(2)), head=0)
    assert max(map(cell_len, prose(screen(look)))) <= 80


@pytest.mark.parametrize("words", [PLAIN, CHINESE], ids=["en", "zh"])
def test_map_columns_stand_under_each_other(words):
    lines = screen(made_up(words, glances=())).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  0 ") or line[:3] == " 0 ")
    label = 3 + max(map(cell_len, words))
    for line, word in zip(lines[first:], words):
        assert line[3:].startswith(word)
        cells = line.split(word, 1)[1]
        pad = label - 3 - cell_len(word) + 1
        assert cells[:pad] == " " * pad
        assert set(cells[pad:]) <= set(" ·░▒▓█")


def test_screen_is_plain_where_it_is_piped():
    text = screen(made_up(HOSTILE))
    assert "\x1b" not in text
    assert "�[31m" in text


@pytest.mark.parametrize("text", ["one\ntwo", "\x1b[31m'", "a\\b\x07", "it's 5$!", "plain"])
def test_commands_carry_any_text(text):
    done = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(text)}"], capture_output=True, check=True
    )
    assert done.stdout.decode() == text
    assert quoted(text).isprintable()


def test_ascii_screen_is_ascii():
    file = io.StringIO()
    show(made_up(CHINESE, lang="zh"), Console(file=file, width=80), encoding="ascii")
    text = file.getvalue()
    assert text.isascii()
    assert "Where the attention goes" in text  # no Chinese there, so English
    assert "->" in text
    assert "@" in text


def coloured(look, **options) -> str:
    file = io.StringIO()
    options = {"width": 80, "force_terminal": True, "color_system": "truecolor"} | options
    show(look, Console(file=file, **options), encoding="utf-8")
    return file.getvalue()


def test_special_columns_are_dimmed_and_named():
    look = made_up(PLAIN)
    text = coloured(look)
    assert "[SEP] 50%, [CLS] 12%" in text
    row = next(line for line in text.splitlines() if " The " in line and "1 " in line)
    assert re.search(r"\x1b\[2m[ ·░▒▓█]{2}\x1b", row), "the first column is dim"
    assert "38;2;" in row, "the others are coloured"


def test_no_colour_where_none_is_wanted():
    assert "38;2;" not in coloured(made_up(PLAIN), no_color=True)


def test_screen_tells_what_it_must():
    text = screen(made_up(PLAIN, unknown=(False, True, True, False, False, False)))
    for told in (
        "2 layers × 3 heads · 6 tokens, 6 words · 0.25 s",
        "(2×3×6×6, 864 B) was never stored",
        "does not know 2 of the 4 words (50%)",
        "--model smollm2",
        "special tokens    50%",
        "other words       25%",
        "[▓75]",
        "L0 H2 leads",
        "“The” (word 1) in L0 H2",
        "The → keys             0.50  L1 H2",
    ):
        assert told in text, told


def test_repeated_words_carry_their_numbers():
    words = ("[CLS]", "the", "key", "the", "door", "[SEP]")
    text = screen(made_up(words))
    assert "the(3)" in text
    assert "key(2)" not in text


def test_long_map_is_pooled_to_the_screen():
    look = made_up(LONG)
    text = screen(look)
    assert "8000 words drawn as 32 cells" in text
    grid = Grid.of(look)
    coarse = grid.coarser()
    assert len(coarse) == 32
    assert coarse.values[0][0] == pytest.approx(
        sum(grid.values[i][j] for i in (0, 1) for j in (0, 1)) / 2
    )
    assert [sum(row) for row in coarse.values] == pytest.approx([1.0] * 32)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("words", [PLAIN, HOSTILE, CHINESE, LONG], ids=["en", "bad", "zh", "long"])
def test_page_is_self_contained_and_small(words, lang):
    text = page(made_up(words, lang=lang, text=" ".join(words)))
    assert len(text.encode()) < 300_000
    assert not re.search(r"<script|<link|<img|@import|url\(|(src|href)=", text)
    assert "prefers-color-scheme" in text
    tags = re.findall(r"</?([a-z0-9]+)", text.split("</style>")[-1])
    assert "b" not in set(tags) or "<b>x" not in text
    assert "</script>" not in text


def test_pages_of_endless_words_stay_small():
    word = "x" * 5000
    assert len(page(made_up(("[CLS]", *[word] * 60, "[SEP]"))).encode()) < 300_000


def test_page_shows_hostile_words_as_text():
    text = page(made_up(HOSTILE))
    assert "&lt;/script&gt;&lt;b&gt;x" in text
    assert "a&lt;b&lt;c" in text
    assert "&amp;amp;" in text
    assert "\x1b" not in text


def test_page_marks_the_drawn_head_and_names_cells():
    text = fragment(made_up(PLAIN))
    assert re.search(r'class="s\d+ on">75<', text)
    assert re.search(r'title="The → keys 0\.\d\d"', text)


@pytest.mark.parametrize("words", [PLAIN, HOSTILE, CHINESE, LONG], ids=["en", "bad", "zh", "long"])
@pytest.mark.parametrize("draw", [fan, heatmap], ids=["fan", "map"])
def test_figures_are_xml_without_markup_of_the_text(words, draw):
    text = draw(made_up(words))
    tree = ElementTree.fromstring(text)
    names = {element.tag.split("}")[1] for element in tree.iter()}
    assert names <= {"svg", "title", "rect", "path", "text"}
    assert len(text) < 150_000


def test_fan_names_the_weights_it_draws():
    shown = [e.text for e in ElementTree.fromstring(fan(made_up(PLAIN))).iter() if e.text]
    assert {"0.30", "0.20", "0.15", "The", "keys"} <= set(shown)


def test_figure_follows_the_token():
    assert "“The” looks at" in figure(made_up(PLAIN))
    assert figure(made_up(PLAIN, fan=None)) == heatmap(made_up(PLAIN))


def test_the_map_is_on_a_square_root_scale():
    grid = Grid((0, 1, 2), (1, 1), ((0.25, 0.75), (1.0, 0.0)), (False, False))
    assert [shade for _, _, shade, _ in grid.shades()] == pytest.approx([0.5, 0.75**0.5, 1, 0])


def test_commands_name_a_word_only_where_that_finds_it():
    words = ("[CLS]", "the", "door", "the", "?", "[SEP]")
    look = made_up(words)
    for unit, argument in ((1, "the"), (3, "3"), (4, "4")):
        chosen = look.fan.__class__(unit, (), (), (unit,))
        commands = [c for c, _ in next_commands(made_up(words, fan=chosen), "eyeline look")]
        assert any(f"--token {argument} " in command for command in commands)


def test_phrases_are_whole_in_both_languages():
    for key, (english, chinese) in TABLE.items():
        assert set(re.findall(r"{\w+}", english)) == set(re.findall(r"{\w+}", chinese)), key


def test_language_is_the_locales(monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert language() == "zh"
    monkeypatch.setenv("LC_ALL", "C")
    assert language() == "en"
    assert language("zh") == "zh"
    assert Phrases("zh")("weights") == "注意力权重"


def test_labels_are_safe_and_short():
    assert printable("a\u202eb\x00") == "a�b�"
    assert printable("👩‍👩‍👧") == "👩‍👩‍👧"
    assert cell_len(shorten("注意力机制", 6)) <= 6


def test_weights_in_a_notebook():
    weights = eyeline.weights(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    text = weights_html(weights)
    assert text.count("<td") == 25
    assert ">0.2<" in text
    assert "[1, 2, 5, 5]" in text
    large = eyeline.weights(torch.zeros(9000, 4), torch.zeros(9000, 4))
    assert weights_html(large).count("<td") == 32 * 32
    assert weights_html(eyeline.weights(torch.zeros(0, 4), torch.zeros(3, 4))).count("<td") == 0


def test_readings_in_a_notebook():
    weights = eyeline.weights(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    text = reading_html(eyeline.entropy(weights))
    assert text.count("<td") == 10
    assert ">1.61<" in text  # ln 5
    assert "nats" in text
    wide = reading_html(eyeline.received(eyeline.weights(torch.zeros(99, 4), torch.zeros(999, 4))))
    assert wide.count("<td") == 32


def test_what_notebooks_show_survives_nbconvert():
    nbformat = pytest.importorskip("nbformat")
    from nbconvert import HTMLExporter

    weights = eyeline.weights(torch.zeros(5, 4), torch.zeros(5, 4))
    shown = [
        weights_html(weights),
        reading_html(eyeline.entropy(weights)),
        fragment(made_up(PLAIN)),
    ]
    outputs = [nbformat.v4.new_output("display_data", {"text/html": html}) for html in shown]
    cell = nbformat.v4.new_code_cell("look", outputs=outputs)
    body, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    left = cells_of(body)
    for html in shown:
        wanted = cells_of(html)
        assert wanted
        assert all(cell in left for cell in wanted)
        assert "<script" not in html
    assert ".eyeline .s20{" in body


def cells_of(html: str) -> list[tuple[str, dict[str, object]]]:
    """Text and attributes of every cell of the tables in a page."""
    from bs4 import BeautifulSoup

    return [(cell.text, dict(cell.attrs)) for cell in BeautifulSoup(html, "html.parser")("td")]
