"""``weft report``: the structure of the page, its links between lines, and how browsers take it."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.workbench.bench import Bench
from weft.workbench.limits import Limits
from weft.workbench.linked import Line, linked
from weft.workbench.rates import Row
from weft.workbench.report_page import Page, _measured, report
from weft_cli.app import app

VOID = {"meta", "link", "br", "img", "input", "hr"}


def halved(x: float) -> float:
    return x / 2 if x < 8 and x > -8 else x


@weft.kernel
def clipped(x: torch.Tensor, a: float) -> torch.Tensor:
    """Less-than signs & "quotes" <b>are text</b>."""
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = a * halved(x[i, j])
    return out


FIRST = clipped.function.__code__.co_firstlineno
HALVED = halved.__code__.co_firstlineno + 1


class Structure(HTMLParser):
    """Elements that are not closed, ids, what refers to them, and texts by data-s."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.loads: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.lines: dict[tuple[str, str], list[str]] = {}  # by listing and data-s
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"an attribute twice: {tag} {attrs}"
        self.elements.append((tag, found))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("aria-controls", "aria-labelledby"):
                self.refers.append(value or "")
            if name == "href" and (value or "").startswith("#"):
                self.refers.append((value or "")[1:])
            elif name in ("src", "href", "action", "data"):
                self.loads.append(value or "")
        if tag not in VOID:
            self.open.append((tag, found))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        line = next((a for t, a in reversed(self.open) if t == "span" and "data-s" in a), None)
        listing = next((a for t, a in reversed(self.open) if a.get("class") == "code"), None)
        if line is not None and listing is not None:
            key = str(listing["aria-label"]), str(line["data-s"])
            self.lines.setdefault(key, []).append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str]:
    path = tmp_path_factory.mktemp("report") / "clipped.html"
    found = report(clipped, torch.randn(6, 40), 0.5, path=path, measure=False)
    return found, path.read_text()


def test_the_page_is_whole_and_loads_nothing(made: tuple[Page, str]) -> None:
    found, text = made
    page = Structure(text)
    assert page.open == []
    assert len(page.ids) == len({*page.ids})
    assert {*page.refers} <= {*page.ids}
    assert page.loads == []
    assert "@import" not in text
    assert "url(" not in text
    assert found.missing == ()
    assert {"summary", "code", "changes", "schedule", "sets", "gradient", "cost",
            "compiled"} <= {*found.sections}  # fmt: skip
    assert found.bytes == len(text.encode()) < 300_000


def test_text_of_the_kernel_is_escaped(made: tuple[Page, str]) -> None:
    _, text = made
    assert "Less-than signs &amp; &quot;quotes&quot; &lt;b&gt;are text&lt;/b&gt;." in text
    assert "<b>are" not in text


def test_roles_for_people_who_do_not_see_or_point(made: tuple[Page, str]) -> None:
    page = Structure(made[1])
    tabs = [a for t, a in page.elements if a.get("role") == "tab"]
    assert {a["aria-controls"] for a in tabs} == {
        a["id"] for _, a in page.elements if a.get("role") == "tabpanel"
    }
    assert sum(a["aria-selected"] == "true" for a in tabs) == 1
    assert all(t == "button" for t, a in page.elements if a.get("role") == "tab")
    assert any(a.get("aria-live") == "polite" for _, a in page.elements)
    assert ("html", {"lang": "en"}) in page.elements
    for tag, attributes in page.elements:  # what scrolls can be reached, and has a name
        if tag == "pre":
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]


def test_lines_are_linked_both_ways(made: tuple[Page, str]) -> None:
    lines = Structure(made[1]).lines
    source = {key: "".join(parts) for (name, key), parts in lines.items() if name == "source"}
    (store,) = [key for key, text in source.items() if "out[i, j] = a * halved(x[i, j])" in text]
    (inside,) = [key for key, text in source.items() if "x / 2 if x < 8" in text]
    assert str(FIRST + 5) in source[store]
    assert str(HALVED) in source[inside], "the function that it calls is shown, too"
    for stage in ("IR", "scheduled IR", "LLVM", "LLVM optimized", "assembly"):
        assert {key for name, key in lines if name == stage} <= {*source}
        assert lines[stage, store], stage
        assert lines[stage, inside], stage
    assert any("memref.store" in line for line in lines["IR", store])
    assert any("fmul" in line or "mulf" in line for line in lines["LLVM", store])
    assert not any("!dbg" in x or ".loc" in x for parts in lines.values() for x in parts)


def test_the_parts_say_what_they_should(made: tuple[Page, str]) -> None:
    _, text = made
    assert "Reads x[i, j] at line" in text
    assert "No two iterations of the loop meet on an element of `out`" in text
    assert "gradient of the loop at line" in text
    assert "<ins>+ " in text
    assert "<del>- " in text
    assert "Changed nothing: " in text


def test_a_page_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    path = tmp_path / "gpu.html"
    found = report(clipped, torch.randn(6, 40), 0.5, path=path, gpu="sm_90")
    lines = Structure(path.read_text()).lines
    source = {key: "".join(parts) for (name, key), parts in lines.items() if name == "source"}
    assert not any("test_report.py" in text for text in source.values())
    for stage in ("IR", "LLVM", "LLVM optimized", "PTX"):
        (store,) = (k for k, text in source.items() if "out[i, j] = " in text)
        assert lines[stage, store], stage
    assert any("st.global" in line for line in lines["PTX", store])
    assert ("sass" in path.read_text()) == (not any("SASS" in why for why in found.missing))


def test_measured_times_have_a_table_and_charts() -> None:
    reach = Limits("cpu", 10.0, 5.0, 100.0, 1.0)
    rows = [Row((("n", n),), name, n / 1e4, n / 2e4, n / 5e3, 9, 8 * n, 2 * n)
            for n in (1000, 8000) for name in ("weft", "other")]  # fmt: skip
    html = _measured(Bench("x", (*rows, Row((("n", 1),), "broken", failure="no <b>")), reach))
    assert Structure(html).open == []
    assert html.count("<svg ") == 2
    assert html.count("<title>other: ") == 4
    assert "no &lt;b&gt;" in html
    assert "var(--c1)" in html
    assert "GB/s over n" in html
    many = [replace(row, flops=1000 * row.flops) for row in rows]
    assert "GFLOP/s over n" in _measured(Bench("x", tuple(many), reach))
    single = _measured(Bench("x", (Row((), "weft", 0.5, 0.4, 0.6, 9),), reach))
    assert "<svg" not in single, "nothing is known of its bytes"


def test_sass_is_linked_by_nvdisasms_notes() -> None:
    text = (
        "\t.section\t.text.f,\"ax\"\nf:\n        /*0000*/  LDC R1, c[0x0] ;\n"
        '\t//## File "/a b/k.py", line 12\n        /*0010*/  EXIT ;\n.L_x:\n'
        '\t.section\t.debug_line,""\n        .byte 1\n'
    )  # fmt: skip
    assert linked("sass", text) == [
        Line('\t.section\t.text.f,"ax"'), Line("f:"), Line("        /*0000*/  LDC R1, c[0x0] ;"),
        Line("        /*0010*/  EXIT ;", ("/a b/k.py", 12)), Line(".L_x:"),
    ]  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    kernels = Path(__file__).with_name("kernels.py")
    words = [f"{kernels}:mixed", "--no-measure", "-o", str(path), "--size", "t=20", "--json"]
    done = CliRunner().invoke(app, ["report", *words])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["ok"] is True
    assert told["bytes"] == path.stat().st_size
    missing = CliRunner().invoke(app, ["report", f"{kernels}:mixed", "--no-measure", "-o",
                                       str(tmp_path / "no" / "x.html")])  # fmt: skip
    assert missing.exit_code == 2
    assert "cannot be written" in missing.output


@pytest.mark.slow
def test_causal_conv_stays_below_3_megabytes(tmp_path: Path) -> None:
    from examples.causal_conv import causal_conv, inputs

    for gpu in ("", "sm_90"):
        given = (*inputs(8, 768, 768), 0.1)
        found = report(causal_conv, *given, gpu=gpu, path=tmp_path / "x.html", measure=False)
        assert found.bytes < 3_000_000


# --- in a browser --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: ``WEFT_CHROMIUM``, one on the PATH, or playwright's own."""
    try:
        api = importlib.import_module("playwright.sync_api")
    except ModuleNotFoundError:
        pytest.skip("no browser: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("WEFT_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with api.sync_playwright() as playwright:
        try:
            made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no Chromium (set WEFT_CHROMIUM): {str(error).splitlines()[0]}")
        yield made
        made.close()


@pytest.fixture
def shown(browser: Any, made: tuple[Page, str]) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not
            request.url.startswith("file:") else None)  # fmt: skip
    page.goto(Path(made[0].path).resolve().as_uri())
    yield page
    assert wrong == []
    page.close()


STORE = '.code[aria-label="source"] [data-s]:has-text("out[i, j]")'


@pytest.mark.slow
def test_pointing_at_a_line_lights_its_instructions_up_and_back(shown: Any) -> None:
    shown.locator(STORE).hover()
    key = shown.locator(STORE).get_attribute("data-s")
    lit = shown.locator('.code[aria-label="assembly"] .lit')
    assert lit.count() > 0
    assert lit.count() == shown.locator(f'.code[aria-label="assembly"] [data-s="{key}"]').count()
    assert f"line {FIRST + 5}: " in shown.locator(".status").inner_text()
    in_view = """() => {
        const listing = document.querySelector('.code[aria-label="assembly"]');
        const box = listing.getBoundingClientRect();
        return [...listing.querySelectorAll(".lit")].some((line) => {
            const own = line.getBoundingClientRect();
            return own.top >= box.top && own.bottom <= box.bottom;
        });
    }"""
    assert shown.evaluate(in_view), "its instructions are scrolled to"
    shown.locator('.code[aria-label="source"] [data-s]').first.hover()
    assert shown.locator(f"{STORE}.lit").count() == 0
    lit_again = shown.locator(f'.code[aria-label="assembly"] [data-s="{key}"]').first
    lit_again.hover()
    assert shown.locator(f"{STORE}.lit").count() == 1


@pytest.mark.slow
def test_all_of_it_by_the_keyboard(shown: Any) -> None:
    focused = "document.activeElement"
    shown.keyboard.press("Tab")
    assert shown.evaluate(f"{focused}.className") == "skip"
    for _ in range(60):
        shown.keyboard.press("Tab")
        if shown.evaluate(f"{focused}.dataset.s") is not None:
            break
    first = shown.evaluate(f"{focused}.textContent")
    assert shown.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"
    shown.keyboard.press("ArrowDown")
    assert shown.evaluate(f"{focused}.textContent") != first
    shown.keyboard.press("End")
    shown.keyboard.press("Enter")
    assert shown.locator('.code[aria-label="assembly"] .pin').count() > 0
    shown.keyboard.press("Escape")
    assert shown.locator(".pin").count() == 0
    shown.keyboard.press("Tab")
    assert shown.evaluate(f"{focused}.getAttribute('role')") == "tab"
    assert shown.evaluate(f"{focused}.textContent") == "assembly"
    shown.keyboard.press("Home")
    assert shown.evaluate(f"{focused}.textContent") == "IR"
    assert shown.locator("[role=tabpanel]:not([hidden])").count() == 1
    shown.keyboard.press("ArrowRight")
    assert shown.evaluate(f"{focused}.textContent") == "scheduled IR"
    shown.keyboard.press("Tab")
    assert shown.evaluate(f"{focused}.closest('.code').ariaLabel") == "scheduled IR"


@pytest.mark.slow
def test_light_and_dark(shown: Any) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    assert shown.evaluate(back) == "rgb(255, 255, 255)"
    shown.emulate_media(color_scheme="dark")
    assert shown.evaluate(back) == "rgb(13, 17, 23)"
    button = shown.locator("#theme")
    shown.locator("#theme[aria-pressed=true]").wait_for()  # the page's policy forbids eval
    button.click()
    assert shown.evaluate(back) == "rgb(255, 255, 255)"
    assert button.get_attribute("aria-pressed") == "false"
    for width in (1400, 420):
        shown.set_viewport_size({"width": width, "height": 900})
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
