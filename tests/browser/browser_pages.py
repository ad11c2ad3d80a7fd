"""Report and viewer in a real browser: they open, work by mouse and by keyboard, complain of nothing and load nothing.

Run by `make test-extra NAME=browser`.
"""

import base64
import shutil
from pathlib import Path

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from spa_report.build import write_report
from spa_report.viewer import Viewer, export


def find(browser, selector):
    return browser.driver.find_element(By.CSS_SELECTOR, selector)


def all_of(browser, selector):
    return browser.driver.find_elements(By.CSS_SELECTOR, selector)


def wait(browser, condition, seconds=10):
    """Wait until the condition holds; a list that is drawn anew meanwhile is asked again."""
    patient = WebDriverWait(
        browser.driver, seconds, ignored_exceptions=[StaleElementReferenceException]
    )
    return patient.until(lambda _: condition())


def press(browser, *keys):
    for key in keys:
        ActionChains(browser.driver).send_keys(key).perform()


def ready(browser):
    wait(browser, lambda: find(browser, "body").get_attribute("data-ready") == "yes")


def opened(browser, address, part):
    """Open an address with its token, then a part of it."""
    browser.open(address)
    ready(browser)
    browser.open(address.partition("?")[0] + part)
    ready(browser)


def total(browser):
    return int(find(browser, "#where").text.rpartition(" ")[2].replace(",", "") or 0)


def only_asks(browser, *prefixes):
    asked = browser.requests()
    assert asked and all(address.startswith((*prefixes, "data:", "about:")) for address in asked), (
        asked
    )


def fits(browser):
    """The page is not wider than the window."""
    script = "return [document.documentElement.scrollWidth, window.innerWidth]"
    wide, window = browser.driver.execute_script(script)
    assert wide <= window, (wide, window)


def hover_shows_values(browser, where):
    """Point at the first chart: its legend names the step and the values there."""
    canvas = find(browser, f"{where} .u-over")
    browser.driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas
    )
    assert find(browser, f"{where} .legend-where").text.startswith("last value")
    ActionChains(browser.driver).move_to_element(canvas).perform()
    wait(browser, lambda: find(browser, f"{where} .legend-where").text == "at 5")
    assert "%" in find(browser, f"{where} .legend-value").text


def test_the_report_opens_alone_and_reads_well(browser, runs, tmp_path: Path):
    path = tmp_path / "report.html"
    report = write_report([runs / "three"], path, "html")
    browser.size(1280, 900)
    browser.dark(False)
    browser.open(path.as_uri())
    assert find(browser, ".verdict").text == report.verdict
    assert len(all_of(browser, ".plot canvas")) >= 8
    assert all_of(browser, ".cell.differs")
    press(browser, Keys.TAB)
    assert browser.driver.switch_to.active_element.tag_name == "a"
    summary = find(browser, "#curves details summary")
    summary.send_keys(Keys.ENTER)
    assert find(browser, "#curves details table").is_displayed()
    hover_shows_values(browser, "#curves")
    light = find(browser, "body").value_of_css_property("background-color")
    browser.dark(True)
    assert find(browser, "body").value_of_css_property("background-color") != light
    browser.dark(False)
    for width in (1280, 400):
        browser.size(width, 900)
        fits(browser)
    assert browser.complaints() == []
    only_asks(browser, path.as_uri())


def test_the_report_prints(browser, runs, tmp_path: Path):
    path = tmp_path / "report.html"
    write_report([runs / "demo"], path, "html")
    browser.open(path.as_uri())
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
    browser.size(800, 1100)  # a sheet of paper
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    fits(browser)
    assert not find(browser, "nav").is_displayed()
    table = find(browser, "#result table")
    assert table.size["width"] <= find(browser, "main").size["width"]
    assert find(browser, "#result tbody th").size["width"] > 90
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_two_runs_in_one_report(browser, runs, tmp_path: Path):
    path = tmp_path / "two.html"
    write_report([runs / "demo", runs / "three"], path, "html")
    browser.size(1280, 900)
    browser.open(path.as_uri())
    names = {cell.text for cell in all_of(browser, "#result tbody th > bdi")}
    assert {"SPA (demo)", "SPA (three)", "vanilla (demo)", "vanilla (three)"} <= names
    keys = {cell.text for cell in all_of(browser, "#differences tbody th")}
    assert "ctx_manager.mode" in keys
    assert browser.complaints() == []


def test_from_the_list_to_a_token_and_back(browser, runs, served):
    """List, run, curve, episode, play, group, search, and the way back, at 1400 and 400 pixels."""
    address = served(runs)
    for width in (1400, 400):
        browser.size(width, 900)
        browser.open(address)
        ready(browser)
        assert [row.text for row in all_of(browser, "#run-table tbody th")] == [
            "demo",
            "hostile",
            "three",
        ]
        assert "[" in find(browser, "#run-table tbody tr").text  # an interval
        find(browser, "#run-table tbody th a").click()
        wait(browser, lambda: len(all_of(browser, "#curves .plot canvas")) > 5)
        hover_shows_values(browser, "#curves")
        fits(browser)
        all_of(browser, "#tabs a")[1].click()
        wait(browser, lambda: total(browser) == 24)  # the last validation of SPA
        if width == 400:
            assert not find(browser, "#replay").is_displayed()
            find(browser, "#list tbody tr").click()
        wait(browser, lambda: all_of(browser, "#frame .board"))
        assert find(browser, "#browse").is_displayed() == (width == 1400)
        fits(browser)
        find(browser, "#play").click()
        wait(browser, lambda: "Action" in find(browser, "#caption").text, 20)
        find(browser, "#frame-next").click()  # which stops it
        assert find(browser, "#play").text == "▶ Play"
        first = find(browser, "#replay h2").text
        assert len(all_of(browser, ".team .member")) == 2
        all_of(browser, ".team .member")[1].click()
        wait(browser, lambda shown=first: find(browser, "#replay h2").text != shown)
        if width == 400:
            find(browser, ".way-back").click()
            wait(browser, lambda: find(browser, "#browse").is_displayed())
        # the filter appears once a second method is indexed
        wait(browser, lambda: all_of(browser, "select[name=arm]"))
        Select(find(browser, "select[name=arm]")).select_by_visible_text("any")
        Select(find(browser, "select[name=split]")).select_by_visible_text("any")
        Select(find(browser, "select[name=step]")).select_by_visible_text("any")
        find(browser, "input[name=q]").send_keys("player (P) is at (3,3)")
        wait(browser, lambda: 0 < total(browser) < 100)
        find(browser, "#home").click()
        wait(browser, lambda: find(browser, "#run-table").is_displayed())
    for box in all_of(browser, "#run-table input")[::2]:
        box.click()
    find(browser, "#comparison a").click()
    wait(browser, lambda: "SPA (three)" in find(browser, "#curves .legend").text)
    all_of(browser, "#tabs a")[1].click()
    wait(browser, lambda: "ctx_manager.mode" in find(browser, "#differences").text)
    browser.driver.back()
    wait(browser, lambda: find(browser, "#curves").is_displayed())
    assert browser.complaints() == []
    only_asks(browser, address.partition("?")[0])


def test_a_run_that_trains_appears_and_moves_without_reload(browser, runs, served, tmp_path: Path):
    folder = tmp_path / "runs"
    folder.mkdir()
    browser.size(1400, 900)
    browser.open(served(folder))
    ready(browser)
    assert not all_of(browser, "#run-table")
    shutil.copytree(runs / "demo" / "spa", folder / "growing")
    metrics = folder / "growing" / "ppo" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:6]))
    wait(browser, lambda: "growing" in find(browser, "#run-table").text, 30)
    assert "step 5 of 10" in find(browser, "#run-table").text
    find(browser, "#run-table th a").click()
    wait(browser, lambda: all_of(browser, "#curves .plot canvas"))
    assert find(browser, "#curves .verdict").text == "In progress: growing 5 of 10."
    metrics.write_text("".join(lines))
    wait(browser, lambda: "solves" in find(browser, "#curves .verdict").text, 30)
    assert browser.complaints() == []


def test_a_run_without_self_play_has_no_examples_yet(browser, runs, served, tmp_path: Path):
    folder = shutil.copytree(runs / "demo" / "vanilla", tmp_path / "run")
    opened(browser, served(folder), "#tab=data")
    sentence = "No examples of stage 1 yet. Methods that are not fine-tuned on self-play have none."
    wait(browser, lambda: find(browser, "#data-page").text == sentence)
    assert browser.complaints() == []


def test_the_viewer_filters_and_replays(browser, runs, served):
    address = served(runs / "demo")
    browser.size(1500, 950)
    opened(browser, address, "#tab=episodes&split=train&arm=spa&wrong=1")
    wait(
        browser,
        lambda: all(
            row.text == "spa ppo train" for row in all_of(browser, "#list tbody td:nth-child(3)")
        ),
    )
    assert all("prediction wrong" in row.text for row in all_of(browser, "#list tbody tr"))

    wait(browser, lambda: all_of(browser, "#turns button"))
    titles = [find(browser, "#replay h2").text]
    press(browser, "j")
    wait(browser, lambda: find(browser, "#replay h2").text != titles[0])
    press(browser, "k")
    wait(browser, lambda: find(browser, "#replay h2").text == titles[0])

    tabs = all_of(browser, "#turns button")
    wrong = next(index for index, tab in enumerate(tabs) if "≠" in tab.text)
    press(browser, *[Keys.ARROW_RIGHT] * wrong)
    wait(browser, lambda: all_of(browser, ".cell.differs"))
    assert "prediction wrong" in find(browser, "#turn").text

    sampled = next(
        span
        for span in all_of(browser, ".tokens span")
        if "given" not in span.get_attribute("class")
    )
    ActionChains(browser.driver).move_to_element(sampled).perform()
    wait(browser, lambda: "logprob" in find(browser, "#token").text)
    assert "advantage" in find(browser, "#token").text and "sampled" in find(browser, "#token").text
    Select(find(browser, ".token-head select")).select_by_visible_text("advantage")
    wait(browser, lambda: all_of(browser, ".tokens .n1, .tokens .n2, .tokens .n3, .tokens .n4"))

    here, shown = browser.driver.current_url, find(browser, "#turn").text
    browser.open(here)  # the address is a link to what was shown
    ready(browser)
    wait(browser, lambda: all_of(browser, "#turns button"))
    assert find(browser, "#replay h2").text == titles[0]
    assert find(browser, "#turn").text.splitlines()[:8] == shown.splitlines()[:8]
    browser.size(420, 900)
    fits(browser)
    assert browser.complaints() == []
    only_asks(browser, address.partition("?")[0])  # the token is no longer in it


def test_filters_without_a_match_leave_no_episode_and_can_be_reset(browser, runs, served):
    address = served(runs / "demo")
    for width in (1400, 400):
        browser.size(width, 900)
        opened(browser, address, "#tab=episodes")
        wait(browser, lambda: total(browser) > 0)
        if width == 1400:
            wait(browser, lambda: all_of(browser, "#replay h2"))
        find(browser, "input[name=q]").send_keys("words that no episode has")
        wait(browser, lambda: find(browser, "#none").is_displayed())
        wait(browser, lambda: not all_of(browser, "#replay h2"))
        fits(browser)
        find(browser, "#reset").click()
        wait(browser, lambda: total(browser) > 100)
        assert find(browser, "input[name=q]").get_attribute("value") == ""
        if width == 1400:
            wait(browser, lambda: all_of(browser, "#replay h2"))
    assert browser.complaints() == []


def test_an_axis_ends_where_the_run_is(browser, runs, served, tmp_path: Path):
    """One validation, at step 0, had an axis to 100."""
    folder = tmp_path / "runs"
    shutil.copytree(runs / "demo" / "vanilla", folder / "short")
    metrics = folder / "short" / "ppo" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    browser.size(1400, 900)
    opened(browser, served(folder), "#run=short&tab=curves")
    wait(browser, lambda: all_of(browser, "#curves .plot canvas"))
    canvas = find(browser, "#curves .u-over")
    third = -canvas.size["width"] // 6  # from the middle
    ActionChains(browser.driver).move_to_element_with_offset(canvas, third, 0).perform()
    where = all_of(browser, "#curves .legend-where")
    # A third of three steps is step 1, which the third chart, of training, has.
    wait(browser, lambda: where[2].text == "at 1")
    assert browser.complaints() == []


def test_pages_of_the_list(browser, runs, served):
    browser.size(1400, 900)
    opened(browser, served(runs / "demo"), "#tab=episodes&order=turns")
    first = find(browser, "#list tbody tr").text
    # the filter appears once a second method is indexed
    wait(browser, lambda: all_of(browser, "select[name=arm]"))
    Select(find(browser, "select[name=arm]")).select_by_visible_text("any")
    Select(find(browser, "select[name=split]")).select_by_visible_text("any")
    Select(find(browser, "select[name=step]")).select_by_visible_text("any")
    wait(browser, lambda: total(browser) > 200)
    find(browser, "#next").click()
    wait(browser, lambda: find(browser, "#where").text.startswith("51–100"))
    assert find(browser, "#list tbody tr").text != first
    find(browser, "#last").click()
    wait(browser, lambda: not find(browser, "#next").is_enabled())
    find(browser, "input[name=q]").send_keys("val/10/3/1")
    wait(browser, lambda: total(browser) == 2)
    find(browser, "input[name=q]").send_keys("nothing like it")
    wait(browser, lambda: find(browser, "#none").is_displayed())
    assert browser.complaints() == []


def test_an_export_works_from_the_disk(browser, runs, tmp_path: Path):
    path = tmp_path / "export.html"
    export(Viewer(runs / "demo", cache_file=tmp_path / "index.sqlite"), path, limit=60)
    browser.size(1400, 900)
    browser.open(path.as_uri())
    ready(browser)
    wait(browser, lambda: all_of(browser, "#curves .plot canvas"))
    all_of(browser, "#tabs a")[1].click()
    wait(browser, lambda: total(browser) == 60)
    assert "This page shows 60 of" in find(browser, "#status").text
    # Responses of vanilla have no states, so this text is found in the states.
    state = "return source.page({ q: 'goal (G) is at', arm: 'vanilla' }, '', 0)"
    every = "return source.page({ arm: 'vanilla' }, '', 0)"
    found = [browser.driver.execute_script(script)["total"] for script in (state, every)]
    assert found[0] == found[1] > 0
    Select(find(browser, "select[name=success]")).select_by_visible_text("yes")
    wait(browser, lambda: 0 < total(browser) < 60)
    Select(find(browser, "select[name=order]")).select_by_visible_text("longest first")
    find(browser, "#list tbody tr").click()
    wait(browser, lambda: all_of(browser, ".board"))
    assert browser.complaints() == []
    only_asks(browser, path.as_uri())


def test_hostile_text_is_only_text(browser, runs, served, tmp_path: Path):
    path = tmp_path / "hostile.html"
    write_report([runs / "hostile"], path, "html")
    browser.size(1400, 900)
    browser.open(path.as_uri())
    parts = [""]
    address = served(runs / "hostile")
    for part in (None, "#tab=curves", "#tab=episodes", "#tab=config"):
        if part:
            opened(browser, address, part)
            parts.append(find(browser, "body").get_attribute("textContent"))
        assert not all_of(browser, "img")
        own = browser.driver.execute_script(
            "return [...document.scripts].every(s => s.src || s.text.length > 5000)"
        )
        assert own  # the report's two scripts are inline
        fits(browser)
        assert browser.complaints() == []  # an alert would have failed every call above
    assert sum("<script>alert(1)</script>" in text for text in parts) >= 2


def test_the_pictures_of_the_documentation(browser, showcase, served, tmp_path: Path, picture):
    """With --screenshots docs/images --run runs/demo this makes the pictures of the documentation."""
    path = tmp_path / "report.html"
    write_report([showcase], path, "html")
    browser.dark(False)
    browser.size(1280, 900)
    browser.open(path.as_uri())
    picture("report.png")
    scroll = "document.documentElement.style.scrollBehavior = 'auto'; arguments[0].scrollIntoView()"
    for section in ("episodes", "world-model", "failures"):
        browser.size(1280, 480 if section == "failures" else 900)
        browser.driver.execute_script(scroll, find(browser, f"#{section}"))
        picture(f"report-{section}.png")
    address = served(showcase)
    opened(browser, address, "#tab=curves")
    browser.size(1280, 900)
    wait(browser, lambda: all_of(browser, "#curves .plot canvas"))
    ActionChains(browser.driver).move_to_element(find(browser, "#curves .u-over")).perform()
    wait(browser, lambda: find(browser, "#curves .legend-where").text.startswith("at "))
    picture("viewer-curves.png")
    browser.size(1500, 1050)
    opened(browser, address, "#tab=episodes&split=train&wrong=1&arm=spa")
    wait(browser, lambda: all_of(browser, "#frame .board"))
    find(browser, "#frame-next").click()
    sampled = [
        span
        for span in all_of(browser, ".tokens span")
        if "given" not in span.get_attribute("class")
    ]
    browser.driver.execute_script(
        "arguments[0].dispatchEvent(new Event('mouseover', {bubbles: true}))", sampled[9]
    )
    wait(browser, lambda: "logprob" in find(browser, "#token").text)
    picture("viewer.png")
    browser.size(400, 850)
    opened(browser, address, "#tab=episodes&split=train&wrong=1&arm=spa")
    browser.dark(True)
    find(browser, "#list tbody tr").click()
    wait(browser, lambda: all_of(browser, "#frame .board"))
    picture("viewer-phone.png")
    browser.dark(False)
    assert browser.complaints() == []
