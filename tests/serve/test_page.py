"""The page, in a real browser: what a person does, and what is shown against the model's own answer."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import litebert
from litebert.builtin import DEFAULT
from litebert.inference import Model
from litebert.model import Albert
from litebert.serve.limits import Limits
from litebert.serve.middleware import AccessControl
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from litebert.tasks import Answer, Tag, Task
from litebert.tokenizer import Tokenizer
from tests.commands.finetuning import small_config
from tests.conftest import missing, peer
from tests.serve.conftest import listening

FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
TABS = ("fill", "classify", "tag", "answer", "translate", "similar", "teach", "inside", "runs")
PATIENCE_MS = 30_000
"""Other tests may run beside these."""
KEY = "a-key-for-the-tests-of-the-page"
ODD = "🙂 The lighthouse keeper wrote down the weather every morning, and the baker opened at five."
"""It begins with a character that JavaScript counts twice."""
HOSTILE = '<img src="x" onerror="document.title=1"><b>bold</b> [MASK] &amp; more'
SENTENCES = ["The cat sleeps on the sofa.", "A kitten lies on the couch.", "The price of oil fell sharply."]
CLASSES = {
    "weather": ["will it rain tomorrow", "is it cold outside", "it snowed all night", "the sun is shining again"],
    "food": ["the soup needs more salt", "how long do I boil an egg", "this bread is fresh", "add some butter"],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    peer("playwright")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    path = shutil.which("chromium")
    if path is None:
        missing("chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=[*FLAGS.split(), "--disable-component-update"])


@pytest.fixture(scope="module")
def builtin() -> Model:
    return litebert.load(DEFAULT)


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    """Models that mark much, always find an answer, and never find one."""
    place = tmp_path_factory.mktemp("more")
    tasks: dict[str, Task[Any, Any]] = {
        "names": Tag(["O", "B-who", "I-who", "B-where", "I-where"]),
        "finds": Answer(allow_impossible=True, threshold=1e6),
        "never": Answer(allow_impossible=True, threshold=-1e6),
    }
    for name, task in tasks.items():
        config = small_config(tokenizer)
        torch.manual_seed(3)
        Model(Albert(config, {task.head_name: task.head(config)}).eval(), tokenizer, task).save(place / name)
    return {name: place / name for name in tasks}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, losses in (("first", [3.0, 2.0, 1.5]), ("second", [9.0, 8.0])):
        (folder / name).mkdir()
        lines = [json.dumps({"step": 10 * step, "loss": loss}) for step, loss in enumerate(losses, start=1)]
        (folder / name / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "first" / "finished.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def address(folders: dict[str, Path], more: dict[str, Path], runs: Path) -> Iterator[str]:
    """A server with the built-in model and small ones for the other tasks."""
    peer("fastapi")
    names = ("classify", "multilabel", "regress", "translate", "few")
    registry = Registry.load([DEFAULT, *(str(folders[name]) for name in names), *map(str, more.values())])
    with listening(lambda: Service(registry, Limits(), runs), Limits()) as found:
        yield found


class Watched:
    """What a page asked for and complained about."""

    def __init__(self, page: Any, expected: Callable[[str], bool] = lambda text: False) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self._hear(message.type, message.text, expected))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def _hear(self, kind: str, text: str, expected: Callable[[str], bool]) -> None:
        if kind in ("error", "warning") and not expected(text):
            self.complaints.append(text)


Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Open]:
    """`visit("fill")` opens a tab in a fresh profile. At the end nothing was complained of, nobody else was asked."""
    opened = []

    def begin(tab: str, at: str = address, failing: bool = False, **settings: Any) -> Any:
        settings = {"viewport": {"width": 1280, "height": 860}, "locale": "en-US", "color_scheme": "light"} | settings
        context = browser.new_context(**settings)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        # a browser notes every refusal of a server; where one is provoked, that is no complaint
        opened.append((context, at, Watched(page, lambda text: failing and text.startswith("Failed to load resource"))))
        page.goto(f"{at}/#{tab}")
        page.locator(f"#panel-{tab}:not([hidden])").wait_for()
        return page

    yield begin
    for context, at, watched in opened:
        context.close()
        assert not watched.complaints
        assert watched.asked
        assert all(url.startswith((f"{at}/", f"blob:{at}/")) for url in watched.asked)


def panel(page: Any, tab: str) -> Any:
    return page.locator(f"#panel-{tab}")


def shares(place: Any) -> list[tuple[str, str]]:
    """The names and figures of a list of bars."""
    names, figures = place.locator(".bar-name").all_inner_texts(), place.locator(".bar-share").all_inner_texts()
    return list(zip(names, figures, strict=True))


def percent(share: float) -> str:
    if share in (0, 1):
        return f"{share * 100:.0f} %"
    if share * 100 < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if share * 100 > 99.95 else f"{share * 100:.1f} %"


def choose(place: Any, model: str) -> None:
    place.locator("select").select_option(model)


def submit(place: Any) -> None:
    place.locator("button[type=submit]").locator("visible=true").click()


def filled(model: Model, text: str) -> list[tuple[str, str]]:
    found: Any = model.fill_mask(text, 8)
    first = found[0] if isinstance(found[0], list) else found
    names = [one.token.replace("▁", "") if one.token.startswith("▁") else f"…{one.token}" for one in first]
    return [(name, percent(one.probability)) for name, one in zip(names, first, strict=True)]


def test_a_blank_is_filled_by_a_click_and_the_next_one_follows(visit: Open, builtin: Model) -> None:
    from playwright.sync_api import expect

    page = visit("fill")
    place, text = panel(page, "fill"), "The train to [MASK] leaves at [MASK] o'clock."
    page.get_by_label("Text", exact=True).fill(text)
    submit(place)
    expect(place.locator(".slot")).to_have_count(2)
    assert shares(place) == filled(builtin, text)
    taken: Any = builtin.fill_mask(text, 8)
    place.locator("button.bar-row").nth(1).click()
    expect(place.locator(".slot")).to_have_count(1)
    assert page.locator("#fill-text").input_value() == taken[0][1].text
    assert shares(place) == filled(builtin, taken[0][1].text)
    expect(place.locator("button.bar-row").first).to_be_focused()
    page.keyboard.press("Enter")  # the keyboard takes one too
    expect(place.get_by_text("No blanks are left.")).to_be_visible()
    assert "[MASK]" not in page.locator("#fill-text").input_value()
    place.get_by_role("button", name="Hide “train”").click()
    expect(page.locator("#fill-text")).to_have_value(re.compile(r"^The \[MASK\] to"))
    expect(place.locator("button.bar-row")).to_have_count(8)
    assert shares(place) == filled(builtin, page.locator("#fill-text").input_value())
    place.get_by_role("button", name="Undo").click()
    expect(page.locator("#fill-text")).to_have_value(re.compile("^The train to"))


def test_one_click_on_an_example_shows_something_in_every_tab(visit: Open) -> None:
    page = visit("fill")
    for tab in ("fill", "classify", "tag", "answer", "translate", "similar", "inside"):
        page.get_by_role("tab").nth(TABS.index(tab)).click()
        place = panel(page, tab)
        assert place.locator(".result .card").count() == 0
        place.locator(".chips:visible .chip").last.click()
        place.locator(".result .card").first.wait_for()


def test_examples_follow_the_language_of_the_model_until_somebody_writes(visit: Open, folders: dict[str, Path]) -> None:
    is_chinese = re.compile(r"[\u4e00-\u9fff]").search
    registry = Registry.load([f"english={folders['mask']}", f"mask-zh={folders['mask']}"])
    with listening(lambda: Service(registry, Limits()), Limits()) as at:
        page = visit("fill", at)
        for tab in ("fill", "similar", "inside"):
            page.get_by_role("tab").nth(TABS.index(tab)).click()
            card = panel(page, tab).locator("form").first
            field = card.locator("textarea").first
            assert not is_chinese(field.input_value())
            choose(card, "mask-zh")
            assert is_chinese(field.input_value())
            choose(card, "english")
            assert not is_chinese(field.input_value())
            field.fill("my own words")
            choose(card, "mask-zh")
            assert field.input_value() == "my own words"
            assert is_chinese(card.locator(".chip").first.inner_text())


def test_classes_labels_and_values_are_those_of_the_models(visit: Open, models: dict[str, Model]) -> None:
    from playwright.sync_api import expect

    page = visit("classify")
    place, text = panel(page, "classify"), "rain and thunder before breakfast"
    page.get_by_label("Text to classify").fill(text)
    for name in ("classify", "few"):
        choose(place, name)
        submit(place)
        answer = models[name].predict([text])[0]
        expect(place.locator(".verdict")).to_have_text(f"{answer.label}{percent(answer.probability)}")
        expected = sorted(answer.probabilities.items(), key=lambda one: -one[1])
        assert shares(place) == [(label, percent(share)) for label, share in expected]
        seen = place.get_by_text("look more familiar to the model than this text")
        assert seen.count() == (name == "few")
    choose(place, "multilabel")
    submit(place)
    labels = models["multilabel"].predict([text])[0]
    place.get_by_text("hot").first.wait_for()
    expect(place.locator(".verdict")).to_have_text("".join(labels.labels) or "None of the labels fits.")
    place.get_by_role("button", name="Add a second text").click()
    page.get_by_label("Second text").fill("the baker")
    choose(place, "regress")
    submit(place)
    value = models["regress"].predict([(text, "the baker")])[0].value
    expect(place.locator(".verdict-name")).to_have_text(f"{value:.3f}")


def test_a_translation_is_the_models_with_what_it_could_not_read(visit: Open, models: dict[str, Model]) -> None:
    from playwright.sync_api import expect

    page = visit("translate")
    place = panel(page, "translate")
    page.get_by_label("Text to translate").fill(ODD)
    submit(place)
    (answer,) = models["translate"].predict([ODD])
    expect(place.locator(".translated")).to_have_text(answer.translation)
    expect(place.locator(".unread")).to_have_text("The model cannot read: 🙂")
    page.get_by_label("Text to translate").fill("the baker opened at five")
    submit(place)
    expect(place.locator(".unread")).to_have_count(0)


def test_marked_stretches_are_the_taggers(visit: Open, more: dict[str, Path]) -> None:
    page = visit("tag")
    place = panel(page, "tag")
    page.get_by_label("Text to tag").fill(ODD)
    submit(place)
    place.locator("mark").first.wait_for()
    spans = litebert.load(more["names"]).predict([ODD])[0].spans
    assert spans
    kinds = place.locator("mark .kind-name").all_inner_texts()
    assert kinds == [span.label for span in spans]
    marked = [
        text.removesuffix(kind) for text, kind in zip(place.locator("mark").all_inner_texts(), kinds, strict=True)
    ]
    assert marked == [ODD[span.start : span.end] for span in spans]
    shown = place.locator(".tagged").evaluate(
        "node => [...node.childNodes].map(one => one.firstChild?.data ?? one.data).join('')"
    )
    assert shown == ODD
    assert place.locator(".legend li").count() == len({span.label for span in spans})
    place.get_by_text("All marked stretches").click()
    assert place.locator("tbody tr").count() == len(spans)


def test_an_answer_is_marked_where_it_stands_and_none_is_said(visit: Open, more: dict[str, Path]) -> None:
    from playwright.sync_api import expect

    page = visit("answer")
    place, question = panel(page, "answer"), "Who wrote"
    page.get_by_label("Question", exact=True).fill(question)
    page.get_by_label("Passage").fill(ODD)
    choose(place, "finds")
    submit(place)
    answer = litebert.load(more["finds"]).predict([(question, ODD)])[0]
    assert answer.text
    expect(place.locator("mark.found")).to_have_text(answer.text)
    expect(place.locator(".verdict")).to_have_text(f"{answer.text}{percent(answer.probability)}")
    expect(place.locator(".reading")).to_have_text(ODD)
    assert shares(place) == [(one.text, percent(one.probability)) for one in answer.candidates]
    place.locator("button.bar-row").last.click()
    expect(place.locator(".reading mark")).to_have_text(answer.candidates[-1].text)
    choose(place, "never")
    submit(place)
    expect(place.get_by_text("The passage does not say")).to_be_visible()
    none = litebert.load(more["never"]).predict([(question, ODD)])[0]
    assert percent(none.no_answer_probability) in place.locator(".result").inner_text()
    expect(place.locator("mark.guess")).to_have_text(none.candidates[0].text)


def test_the_heat_map_holds_the_cosines_and_search_ranks_by_them(visit: Open, builtin: Model) -> None:
    page = visit("similar")
    place = panel(page, "similar")
    page.get_by_label("Texts to compare, one per line").fill("\n".join(SENTENCES))
    submit(place)
    place.locator("table").wait_for()
    vectors = builtin.embed(SENTENCES)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cells = [cell.replace("−", "-") for cell in place.locator("td.heat").all_inner_texts()]
    assert np.array(cells, dtype=float).reshape(3, 3) == pytest.approx(vectors @ vectors.T, abs=0.0051)
    heat = place.locator("td.heat").evaluate_all("nodes => nodes.map(one => getComputedStyle(one).backgroundColor)")
    assert heat[1] == heat[3] != heat[2]  # the same figure, the same colour
    assert place.locator("tbody th").all_inner_texts()[1].split("\n")[-1] == SENTENCES[1]

    place.get_by_role("radio", name="Search").check(force=True)
    page.get_by_label("Texts to search in, one per line").fill("\n".join(SENTENCES))
    for query in ("a sleeping animal", "fuel is cheap"):
        page.get_by_label("Search for").fill(query)
        submit(place)
        place.locator(f".ranked[data-query='{query}']").wait_for()
        asked = builtin.embed([query])[0]
        scores = vectors @ asked / np.linalg.norm(asked)
        rows = shares(place.locator(".ranked"))
        assert [text for text, _ in rows] == [SENTENCES[number] for number in np.argsort(-scores)]
        assert [float(score.replace("−", "-")) for _, score in rows] == pytest.approx(-np.sort(-scores), abs=0.0051)


def teach(page: Any, classes: dict[str, list[str]]) -> Any:
    place = panel(page, "teach")
    place.get_by_role("button", name="a blank sheet").click()
    for number, (name, examples) in enumerate(classes.items(), start=1):
        if number > 2:
            place.get_by_role("button", name="Add a class").click()
        page.get_by_label(f"Name of class {number}").fill(name)
        page.get_by_label(f"Examples of class {number}").fill("\n".join(examples))
    submit(place)
    place.get_by_text("Learned").first.wait_for()
    return place


def adapted(model: Model, classes: dict[str, list[str]]) -> Any:
    pairs = [(text, label) for label, texts in classes.items() for text in texts]
    return litebert.adapt(model, *map(list, zip(*pairs, strict=True)))


def test_a_few_examples_teach_and_which_of_them_mattered_is_shown(visit: Open, builtin: Model, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    page = visit("teach", accept_downloads=True)
    place, own, text = teach(page, CLASSES), adapted(builtin, CLASSES), "how do I bake a cake"
    expect(place.locator("h2").first).to_have_text("Learned 2 classes from 8 examples")
    assert place.locator(".quality strong").inner_text() == percent(own.evidence.accuracy)
    assert "this says little" in place.locator(".quality").inner_text()  # eight examples tell little, and it says so
    place.get_by_label("Try it").fill(text)
    answer = own.predict([text])[0]
    expect(place.locator(".verdict")).to_have_text(f"{answer.label}{percent(answer.probability)}")
    reasons = place.locator(".reason .serif").all_inner_texts()
    known = [example for texts in CLASSES.values() for example in texts] + list(CLASSES)
    assert reasons
    assert set(reasons) <= set(known)
    assert f"{percent(answer.unknown)} of the examples look more familiar" in place.inner_text()

    with page.expect_download() as download:
        place.get_by_role("button", name="Download the model").click()
    with zipfile.ZipFile(download.value.path()) as file:
        file.extractall(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert litebert.load(folder).predict([text])[0].probability == pytest.approx(answer.probability, abs=1e-4)

    page.get_by_role("tab", name="Classify").click()  # it can be asked there as well
    assert "taught on this page" in page.locator("#panel-classify option").all_inner_texts()
    assert place.locator(".take-away code").inner_text() == f"litebert serve {folder.name}"
    page.get_by_role("tab", name="Teach me").click()
    place.locator(".result .chip", has_text="weather" if answer.label == "food" else "food").last.click()
    expect(place.locator("h2").first).to_have_text("Learned 2 classes from 9 examples")
    place.get_by_role("button", name="Forget it").click()
    expect(place.get_by_text("Forgotten.")).to_be_visible()


def test_teaching_says_what_is_still_missing(visit: Open) -> None:
    from playwright.sync_api import expect

    page = visit("teach")
    place = panel(page, "teach")
    place.get_by_role("button", name="a blank sheet").click()
    submit(place)
    expect(place.get_by_role("alert")).to_contain_text("at least two classes")
    place.get_by_role("button", name="Add a class").click()
    expect(page.get_by_label("Name of class 3")).to_be_focused()
    for number in (1, 2):
        page.get_by_label(f"Name of class {number}").fill("same")
        page.get_by_label(f"Examples of class {number}").fill("one")
    submit(place)
    expect(place.get_by_role("alert")).to_contain_text("“same”")
    place.get_by_role("button", name="Remove class 3").click()
    expect(page.get_by_label("Name of class 3")).to_have_count(0)


def test_inside_shows_every_head_and_the_answer_after_every_pass(visit: Open, builtin: Model, address: str) -> None:
    from playwright.sync_api import expect

    page = visit("inside")
    place, text = panel(page, "inside"), "Paris is the [MASK] of France."
    page.get_by_label("Text, up to 64 tokens").fill(text)
    submit(place)
    expect(place.locator(".head")).to_have_count(12 * 12)
    expect(place.locator(".depths li")).to_have_count(12)
    last = place.locator(".depths li").last
    names, figures = (last.locator(f".guess-{part}").all_inner_texts() for part in ("name", "share"))
    told = list(zip(names, figures, strict=True))
    assert told == filled(builtin, text)[:3]
    found = page.request.post(f"{address}/inside", data={"text": text, "model": DEFAULT}).json()
    place.get_by_role("button", name="Pass 3, head 5", exact=True).click()
    tokens = [token.replace("▁", " ").strip() or "␣" for token in found["tokens"]]
    assert place.locator(".token").all_inner_texts() == tokens
    place.locator(".token").nth(2).hover()
    seen = found["attention"][2][4][2]
    most = int(np.argmax(seen))
    expect(place.locator(".looked").first).to_have_text(f"{tokens[most]} {percent(seen[most])}")
    place.locator(".token").nth(2).focus()
    page.keyboard.press("ArrowRight")
    expect(place.locator(".looks")).to_contain_text(f"“{tokens[3]}”")
    place.get_by_role("button", name="Pass 3, head 5", exact=True).focus()
    page.keyboard.press("ArrowDown")
    expect(place.locator("h3")).to_have_text("Pass 4, head 5")
    pixels = (
        place.locator(".head canvas")
        .nth(3 * 12 + 4)
        .evaluate("node => [...node.getContext('2d').getImageData(0, 0, node.width, node.height).data]")
    )
    expected = 255 * np.sqrt(np.array(found["attention"][3][4]).ravel())
    assert np.array(pixels[3::4]) == pytest.approx(expected, abs=1)


def test_curves_of_runs_grow_while_they_are_looked_at(visit: Open, runs: Path) -> None:
    from playwright.sync_api import expect

    page = visit("runs")
    place = panel(page, "runs")
    place.locator(".run", has_text="second").click()
    expect(place.locator(".chart-value")).to_have_text("8 at step 20")
    before = place.locator("path.line").get_attribute("d")
    with (runs / "second" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 30, "loss": 4.25}\n')
    expect(place.locator(".chart-value")).to_have_text("4.25 at step 30")
    assert place.locator("path.line").get_attribute("d") != before
    place.locator(".run", has_text="first").click()
    expect(place.locator(".chart-value")).to_have_text("1.5 at step 30")
    expect(place.locator(".run[aria-pressed=true]")).to_contain_text("finished")
    box = place.locator(".curve").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.16, box["y"] + 40)  # at the first point
    expect(place.locator(".chart-value")).to_have_text("3 at step 10")


def test_what_was_asked_is_shown_as_a_command(visit: Open, builtin: Model) -> None:
    page = visit("fill")
    place, text = panel(page, "fill"), "It's \"odd\" & $HOME, `isn't` it, the [MASK] said?"
    page.locator("#fill-text").fill(text)
    submit(place)
    place.get_by_text("As an HTTP request").click()
    curl, address, *_, body = shlex.split(place.locator(".request code").inner_text())
    assert curl == "curl"
    assert json.loads(body)["text"] == text
    answer = page.request.post(address, data=json.loads(body)).json()
    assert [one["token"] for one in answer["masks"][0]] == [one.token for one in builtin.fill_mask(text, 8)]


def test_nobody_looks_at_runs_that_are_not_shown(visit: Open) -> None:
    page = visit("runs")
    panel(page, "runs").locator(".chart").first.wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/runs" in request.url else None)
    page.clock.install()
    page.get_by_role("tab", name="Tag").click()
    page.clock.run_for(10_000)
    assert not asked
    page.get_by_role("tab", name="Training runs").click()
    with page.expect_request("**/runs"):
        page.clock.run_for(4000)


def test_the_keyboard_reaches_all(visit: Open) -> None:
    from playwright.sync_api import expect

    page = visit("fill")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Tab")  # litebert
    page.keyboard.press("Tab")
    tabs = page.get_by_role("tab")
    expect(tabs.first).to_be_focused()
    outline = tabs.first.evaluate("node => getComputedStyle(node).outlineStyle")
    assert outline == "solid"
    last = len(TABS) - 1
    for key, number in (
        ("ArrowDown", 1),
        ("ArrowRight", 2),
        ("End", last),
        ("ArrowDown", 0),
        ("ArrowUp", last),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        expect(tabs.nth(number)).to_be_focused()
        expect(tabs.nth(number)).to_have_attribute("aria-selected", "true")
        expect(panel(page, TABS[number])).to_be_visible()
    assert tabs.evaluate_all("nodes => nodes.map(one => one.tabIndex)") == [0] + [-1] * last
    page.locator("#fill-text").focus()
    page.keyboard.press("Control+Enter")
    page.locator("#panel-fill .bars").wait_for()


def test_the_interface_is_chinese_when_wished_and_stays_so(visit: Open) -> None:
    from playwright.sync_api import expect

    page = visit("fill")
    panel(page, "fill").locator(".chip").first.click()
    panel(page, "fill").locator(".bars").wait_for()
    page.get_by_role("button", name="切换到中文").click()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    chinese = re.compile(r"[\u4e00-\u9fff]")
    assert all(chinese.search(name) for name in page.get_by_role("tab").all_inner_texts())
    expect(panel(page, "fill").locator("section h2")).to_have_text(
        "第 1 个空的候选词（共 1 个空）"
    )  # what is there already, too
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("完形填空")
    page.get_by_role("button", name="Switch to English").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fill in the blank")
    both = page.evaluate("async () => (await import('/page/strings.js')).STRINGS")
    assert both["en"].keys() == both["zh"].keys()
    for key, words in both["en"].items():
        assert set(re.findall(r"\{\w+\}", words)) == set(re.findall(r"\{\w+\}", both["zh"][key])), key
    assert visit("runs", locale="zh-CN").get_by_role("heading", level=1).inner_text() == "训练过程"


def colours(page: Any) -> tuple[str, str]:
    found = page.evaluate("(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))")
    return found[0], found[1]


def test_light_and_dark_follow_the_system_or_the_wish(visit: Open) -> None:
    light, dark = (visit("fill", color_scheme=scheme) for scheme in ("light", "dark"))
    assert colours(light) != colours(dark)
    light.get_by_role("button", name="Dark colours").click()
    assert colours(light) == colours(dark)
    light.reload()
    light.get_by_role("button", name="Light colours").wait_for()
    assert colours(light) == colours(dark)
    light.get_by_role("button", name="Light colours").click()
    light.emulate_media(color_scheme="dark")  # what agrees with the system follows it again
    assert colours(light) == colours(dark)


def open_with_answers(page: Any, tab: str) -> None:
    """The tab after its button was pressed."""
    page.get_by_role("tab").nth(TABS.index(tab)).click()
    if tab != "runs":
        submit(panel(page, tab))
    panel(page, tab).locator(".result .card").first.wait_for()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_on_a_desk_or_a_phone_everybody_can_use_every_tab(visit: Open, scheme: str, width: int) -> None:
    axe = peer("axe_playwright_python.sync_playwright")
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast", "target-size"]}  # all else is the same in both
    page = visit("fill", color_scheme=scheme, viewport={"width": width, "height": 740}, reduced_motion="reduce")
    for tab in TABS:
        open_with_answers(page, tab)
        found = axe.Axe().run(page, options=rules | {"resultTypes": ["violations"]}).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == [], tab
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab  # nothing scrolls sideways
        box = page.get_by_role("tab").nth(TABS.index(tab)).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 1  # on a phone the strip of tabs has scrolled to it


def test_a_key_is_asked_for_and_kept_for_this_tab_only(visit: Open, builtin: Model) -> None:
    from playwright.sync_api import expect

    registry = Registry.load([DEFAULT])
    with listening(lambda: Service(registry, Limits()), Limits(), AccessControl(keys=[KEY])) as at:
        page = visit("fill", at, failing=True)
        expect(page.get_by_label("API key", exact=True)).to_be_focused()
        page.keyboard.type("a wrong one")
        page.keyboard.press("Enter")
        expect(page.get_by_text("This key was not accepted")).to_be_visible()
        page.get_by_label("API key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        expect(page.get_by_label("API key", exact=True)).to_have_count(0)
        panel(page, "fill").locator(".chip").first.click()
        panel(page, "fill").locator(".bars").wait_for()
        kept = page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
        assert KEY not in kept[0]
        assert KEY in kept[1]
        # and this server has no classifier, no tagger, no answers and no runs: each tab says how to get them
        page.get_by_role("tab", name="Classify").click()
        page.get_by_role("link", name="Teach me").click()
        expect(page.get_by_role("tab", name="Teach me")).to_have_attribute("aria-selected", "true")
        wanted = {"tag": "--task tag", "answer": "--task answer", "translate": "--task translate", "runs": "--runs"}
        for tab, command in wanted.items():
            page.get_by_role("tab").nth(TABS.index(tab)).click()
            expect(panel(page, tab).locator("pre").locator("visible=true").filter(has_text=command)).to_be_visible()
        page.close()


def test_what_the_server_refuses_is_said_in_words(visit: Open) -> None:
    from playwright.sync_api import expect

    page = visit("classify", failing=True)
    place = panel(page, "classify")
    choose(place, "regress")
    submit(place)  # it wants pairs
    expect(place.get_by_role("alert")).to_contain_text("pair")
    page.get_by_role("tab", name="Fill in the blank").click()
    place = panel(page, "fill")
    busy = {"error": {"message": "the queue is full", "type": "overloaded", "param": None}}
    page.route("**/fill-mask", lambda route: route.fulfill(status=429, json=busy, headers={"Retry-After": "7"}))
    submit(place)
    alert = place.get_by_role("alert")
    expect(alert).to_contain_text("the queue is full")
    expect(alert).to_contain_text("Retry in 7 seconds.")
    page.unroute("**/fill-mask")
    page.route("**/fill-mask", lambda route: route.abort())
    alert.get_by_role("button", name="Retry").click()
    expect(alert).to_contain_text("Is litebert serve still running?")
    page.unroute("**/fill-mask")
    alert.get_by_role("button", name="Retry").click()
    place.locator(".bars").wait_for()
    expect(alert).to_be_empty()


def test_a_wait_is_shown_after_a_moment_only(visit: Open) -> None:
    page = visit("fill")
    place = panel(page, "fill")
    waiting: list[Any] = []
    page.route("**/fill-mask", lambda route: waiting.append(route))
    submit(place)
    assert place.locator("button[data-waiting]").count() == 0
    place.locator("button[data-waiting]").wait_for()
    waiting[0].continue_()
    place.locator(".bars").wait_for()
    assert place.locator("[data-waiting]").count() == 0


def test_nothing_jumps_when_the_models_are_known(browser: Any, address: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page, waiting = context.new_page(), []
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach(one => window.shift += one.value))"
        ".observe({ type: 'layout-shift', buffered: true })"
    )
    page.route("**/v1/models", lambda route: waiting.append(route))
    page.goto(f"{address}/#fill")
    page.locator("#panel-fill .chip").first.wait_for()
    page.wait_for_timeout(100)  # until it has been painted once
    waiting[0].continue_()
    page.get_by_text("9 models").wait_for()
    page.wait_for_timeout(100)
    assert page.evaluate("window.shift") < 0.01
    context.close()


def test_texts_are_never_markup(visit: Open) -> None:
    page = visit("fill")
    place = panel(page, "fill")
    page.locator("#fill-text").fill(HOSTILE)
    submit(place)
    place.locator(".bars").wait_for()
    assert place.locator(".sentence").inner_text() == HOSTILE.replace("[MASK]", "")
    page.get_by_role("tab", name="Similarity").click()
    page.locator("#similar-texts").fill(f"{HOSTILE}\n<script>1</script>")
    submit(panel(page, "similar"))
    panel(page, "similar").locator("table").wait_for()
    assert page.locator("main img, main b, main script").count() == 0
    assert page.title().endswith("litebert")
