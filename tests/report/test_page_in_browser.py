"""The page of a report in Chromium: controls, keyboard, contrast, and hostile texts that stay texts.

Needs playwright and the system's Chromium (`apt-get install chromium`), which SPARSENMT_BROWSER may name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.report.page.html_page import write_report_page
from tests.report.sample_document import HOSTILE, sample_document

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = os.environ.get("SPARSENMT_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]

FOCUSABLE = "a[href], button, input, select, summary, [tabindex='0']"
# Every text with the colours that it is drawn in: of the nearest background that is not transparent.
CONTRASTS = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts(colour).slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const found = getComputedStyle(each).backgroundColor;
      if ((parts(found)[3] ?? 1) === 1) return found;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !element.checkVisibility() || element.closest("script, desc, title")) continue;
    const style = getComputedStyle(element);
    const colour = element.closest("svg") ? style.fill : style.color;
    const [low, high] = [luminance(colour), luminance(ground(element))].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), `${element.outerHTML.slice(0, 80)}: ${text.slice(0, 40)}`]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report_page(sample_document(), path)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as program:
        # The sandbox of Chromium needs rights that containers do not give; the page is our own.
        started = program.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The opened page; at the end there was no error, and no request but the one for the file."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    told: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: told.append(message.text))
    opened.on("pageerror", lambda error: told.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(address)
    opened.wait_for_selector(".map tbody td")
    yield opened
    opened.close()
    assert (told, requests) == ([], [address])


def column(page: Any, table: str, number: int) -> list[str]:
    cells: list[str] = page.locator(f"{table} >> tbody tr > *:nth-child({number})").all_text_contents()
    return cells


def test_hostile_texts_are_shown_and_run_nothing(page: Any) -> None:
    assert page.evaluate("document.body.dataset.hacked") is None
    assert page.locator("img, iframe, object").count() == 0
    shown = page.inner_text("main")
    for text in HOSTILE[:4]:
        assert text in shown
    assert r"\x00 \x1b[31m \x7f \udcff" in shown


def test_the_policy_stops_scripts_and_connections(browser: Any, address: str) -> None:
    """Also what got into the page by a mistake of its templates would neither run nor call anybody."""
    page = browser.new_page()
    page.goto(address)
    requests: list[str] = []
    page.on("requestfinished", lambda request: requests.append(request.url))
    stopped = page.evaluate(
        """async () => {
          const stopped = [];
          document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
          const add = (html) => document.body.append(document.createRange().createContextualFragment(html));
          add("<script>document.body.dataset.hacked = 1</script>");
          add("<p style='color: red' onclick='0'>x</p>");
          add("<img src='https://example.org/x.png'>");
          try { await fetch("https://example.org/"); } catch {}
          await new Promise((resolve) => setTimeout(resolve, 200));
          return stopped;
        }"""
    )
    assert page.evaluate("document.body.dataset.hacked") is None
    assert {"script-src-elem", "style-src-attr", "img-src", "connect-src"} <= set(stopped)
    assert not requests
    page.close()


def test_tables_are_sorted_by_their_columns(page: Any) -> None:
    table = "#scores table.sortable >> nth=0"
    button = page.locator(f"{table} >> th button", has_text="difference")
    assert column(page, table, 4) == ["-", "-0.21", "-30.70"]
    for order, values in (("ascending", ["-30.70", "-0.21", "-"]), ("descending", ["-0.21", "-30.70", "-"])):
        button.press("Enter")
        assert column(page, table, 4) == values  # what was not measured stands last
        assert page.locator(f"{table} >> th[aria-sort]").all_text_contents() == ["difference"]
        assert page.locator(f"{table} >> th[aria-sort]").get_attribute("aria-sort") == order
    page.click(f"{table} >> th button >> text=model")
    assert column(page, table, 1) == ["dense", "entmax-1.5", "l0drop-0.3"]


def test_compared_sentences_are_sorted_with_their_texts(page: Any) -> None:
    rows = "#differences .compared tbody"
    first = page.text_content(f"{rows} >> nth=0")
    page.click("#differences th button >> text=line")
    assert page.text_content(f"{rows} >> nth=0") == first  # line 1 differs most
    page.click("#differences th button >> text=line")
    assert page.text_content(f"{rows} >> nth=-1") == first


def test_sentences_are_searched_and_filtered(page: Any) -> None:
    items, status = "#kept_words .item:visible", "#kept_words [role=status]"
    everything = page.locator(items).count()
    assert page.inner_text(status) == f"{everything} of {everything} sentences"
    page.fill("#kept_words .search", "<SCRIPT>")
    assert page.locator(items).count() == 2
    page.fill("#kept_words .search", "")
    page.select_option("#kept_words .tag", "VERB")
    shown = page.locator(items).count()
    assert 0 < shown < everything
    assert page.inner_text(status).startswith(f"{shown} of {everything} sentences; of ")
    tags = page.eval_on_selector_all("#kept_words .chosen", "words => words.map(word => word.dataset.t.split(',')[0])")
    assert set(tags) == {"VERB"}
    page.select_option("#kept_words .tag", "")
    page.check("#kept_words .only-dropped")
    assert page.locator(items).count() == page.locator("#kept_words .item:has(s)").count()


def test_tags_are_shown_to_pointer_and_keyboard(page: Any) -> None:
    line = page.locator("#kept_words .words").nth(2)
    tag = "element => getComputedStyle(element, '::after').content"
    line.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    word = line.locator("> *").nth(1)
    assert word.evaluate("element => element === document.activeElement")
    assert word.get_attribute("data-t") in word.evaluate(tag)
    page.locator("#kept_words .show-tags").check()
    assert line.locator("> *").first.get_attribute("data-t") in line.locator("> *").first.evaluate(tag)


def test_keyboard_reaches_every_control(page: Any) -> None:
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    page.wait_for_selector(".heads button")
    page.evaluate(
        """(selector) => {
          window.left = new Set([...document.querySelectorAll(selector)].filter((each) => each.checkVisibility()));
        }""",
        FOCUSABLE,
    )
    unseen = []
    for _ in range(page.evaluate("left.size") + 20):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
              const focused = document.activeElement;
              left.delete(focused);
              return [focused.outerHTML.slice(0, 80), getComputedStyle(focused).outlineStyle];
            }"""
        )
        if outline == "none" and not name.startswith("<body"):
            unseen.append(name)
    assert page.evaluate("[...left].map(e => e.outerHTML.slice(0, 120))") == []
    assert unseen == []


def test_skip_link_leads_to_the_content(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def test_maps_follow_the_choices(page: Any) -> None:
    place = "#attention"
    page.select_option(f"{place} .line", "9")
    page.select_option(f"{place} .model", label="l0drop-0.3")
    page.select_option(f"{place} .site", "cross")
    page.select_option(f"{place} .layer", "2")
    page.select_option(f"{place} .head", "3")
    page.wait_for_function("document.querySelector('#attention .map-caption').textContent.includes('layer 2, head 3')")
    caption = page.inner_text(f"{place} .map-caption")
    for part in ("Line 9, l0drop-0.3, cross-attention", "role: previous token", "alpha 1.700", "are exactly 0"):
        assert part in caption
    assert page.locator(f"{place} thead th.stand-in").inner_text() == "[stand-in]"
    gone = page.locator(f"{place} thead th.gone").count()
    assert gone > 0
    assert page.locator(f"{place} td.gone:not(.zero)").count() == 0  # dropped columns have no weight
    assert page.locator(f"{place} td.zero").count() == page.locator(f"{place} td:not(.corner):text-is('')").count()
    tokens = page.locator(f"{place} tbody tr").count()
    page.check(f"{place} .merged")
    page.wait_for_function(f"document.querySelectorAll('#attention tbody tr').length < {tokens}")
    names = page.locator(f"{place} tbody th").all_inner_texts()
    assert "▁colourful" in names or "▁building" in names


def test_rows_of_a_merged_map_keep_their_sum(page: Any) -> None:
    page.select_option("#attention .line", "9")
    page.wait_for_timeout(200)
    totals = page.evaluate(
        """async () => {
          const view = new AttentionView(document.querySelector(".attention"));
          const sums = (values) => values.map((line) => line.reduce((a, b) => a + b, 0));
          await view.draw();
          const apart = sums(view.values);
          view.mergeBox.checked = true;
          await view.draw();
          return [apart, sums(view.values)];
        }"""
    )
    for values in totals:
        assert all(abs(value - 100) < 8 for value in values)  # percents are rounded
    assert len(totals[1]) < len(totals[0])


def test_cells_are_read_with_the_arrow_keys(page: Any) -> None:
    page.focus("#attention tbody td[tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    names = page.locator("#attention tbody th").all_inner_texts()
    assert page.inner_text("#attention .readout").startswith(f"{names[1]} → ")
    assert page.locator("#attention tbody td[tabindex='0']").count() == 1


def test_small_pictures_choose_the_head(page: Any) -> None:
    page.click("#attention summary")
    page.click("#attention .heads button >> nth=6")
    page.wait_for_function("document.querySelector('#attention .map-caption').textContent.includes('layer 2, head 3')")
    assert page.get_attribute("#attention .heads button >> nth=6", "aria-pressed") == "true"
    assert page.input_value("#attention .head") == "3"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_4_5(page: Any, theme: str) -> None:
    if theme == "dark":
        page.click("button.theme")
        assert page.get_attribute("button.theme", "aria-pressed") == "true"
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    page.select_option("#attention .model", label="l0drop-0.3")
    page.select_option("#attention .site", "cross")
    page.select_option("#kept_words .tag", "NOUN")
    page.wait_for_selector(".map th.gone")
    found = page.evaluate(CONTRASTS)
    assert len(found) > 500
    assert [text for contrast, text in found if contrast < 4.5] == []


@pytest.mark.parametrize("width", [400, 768, 1280, 2000])
def test_nothing_sticks_out_of_the_screen(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_paper_has_all_sentences_in_the_light_theme(page: Any) -> None:
    page.click("button.theme")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.is_visible("#kept_words .search")
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(e => getComputedStyle(e).overflow === 'visible')"
    )


def test_without_scripts_the_page_has_its_figures(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.is_visible("#scores table.sortable") and page.is_visible("#kept_words .item")
    assert not page.is_visible("#kept_words .search") and not page.is_visible("button.theme")
    assert "The maps need JavaScript" in page.inner_text("#attention")
    context.close()


def test_the_file_is_alone(address: str) -> None:
    assert [path.name for path in Path(address.removeprefix("file://")).parent.iterdir()] == ["report.html"]
