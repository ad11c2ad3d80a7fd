"""Report and viewer in a real browser: they open, work by mouse and by keyboard, complain of nothing and load nothing.

Run by `make test-browser`.
"""

import base64
import shutil
from pathlib import Path

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from spa.report.build import write_report
from spa.report.viewer import Viewer, export


def find(browser, selector):
    return browser.driver.find_element(By.CSS_SELECTOR, selector)


def all_of(browser, selector):
    return browser.driver.find_elements(By.CSS_SELECTOR, selector)


def wait(browser, condition, seconds=10):
    """Wait until the condition holds; a list that is drawn anew meanwhile is asked again."""
    patient = WebDriverWait(browser.driver, seconds, ignored_exceptions=[StaleElementReferenceException])
    return patient.until(lambda _: condition())


def press(browser, *keys):
    for key in keys:
        ActionChains(browser.driver).send_keys(key).perform()


def ready(browser):
    wait(browser, lambda: find(browser, "body").get_attribute("data-ready") == "yes")


def total(browser):
    return int(find(browser, "#where").text.rpartition(" ")[2].replace(",", "") or 0)


def only_asks(browser, *prefixes):
    asked = browser.requests()
    assert asked and all(address.startswith((*prefixes, "data:", "about:")) for address in asked), asked


def fits(browser):
    """The page is not wider than the window."""
    script = "return [document.documentElement.scrollWidth, window.innerWidth]"
    wide, window = browser.driver.execute_script(script)
    assert wide <= window, (wide, window)


def test_the_report_opens_alone_and_reads_well(browser, runs, tmp_path: Path):
    path = tmp_path / "report.html"
    report = write_report([runs / "three"], path, "html")
    browser.size(1280, 900)
    browser.dark(False)
    browser.open(path.as_uri())
    assert find(browser, ".verdict").text == report.verdict
    assert len(all_of(browser, "svg.chart")) >= 8
    assert all_of(browser, ".cell.differs")
    press(browser, Keys.TAB)
    assert browser.driver.switch_to.active_element.tag_name == "a"
    summary = find(browser, "#result details summary")
    summary.send_keys(Keys.ENTER)
    assert find(browser, "#result details table").is_displayed()
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


def test_the_viewer_filters_and_replays(browser, runs, served):
    address = served(runs / "demo")
    browser.size(1500, 950)
    browser.open(address)
    ready(browser)
    everything = total(browser)
    assert everything > 200
    Select(find(browser, "select[name=arm]")).select_by_visible_text("spa")
    wait(browser, lambda: total(browser) < everything)
    Select(find(browser, "select[name=wrong]")).select_by_visible_text("yes")
    Select(find(browser, "select[name=split]")).select_by_visible_text("train")
    wait(browser, lambda: all(row.text == "spa ppo train" for row in all_of(browser, "#list tbody td:nth-child(3)")))
    assert len(all_of(browser, "#list .mark")) >= total(browser)

    find(browser, "h1").click()
    press(browser, "j")
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
    assert "differs" in find(browser, "#turn .mark").text + find(browser, "#turn").text

    sampled = next(span for span in all_of(browser, ".tokens span") if "given" not in span.get_attribute("class"))
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


def test_pages_of_the_list(browser, runs, served):
    browser.size(1400, 900)
    browser.open(served(runs / "demo"))
    ready(browser)
    first = find(browser, "#list tbody tr").text
    find(browser, "#next").click()
    wait(browser, lambda: find(browser, "#where").text.startswith("51–100"))
    assert find(browser, "#list tbody tr").text != first
    find(browser, "#last").click()
    wait(browser, lambda: not find(browser, "#next").is_enabled())
    wait(browser, lambda: all_of(browser, "#list tbody tr"))
    find(browser, "input[name=q]").send_keys("val/10/3/1")
    wait(browser, lambda: total(browser) == 2)
    find(browser, "input[name=q]").send_keys("nothing like it")
    wait(browser, lambda: find(browser, "#none").is_displayed())
    assert browser.complaints() == []


def test_new_episodes_appear_while_the_run_goes_on(browser, runs, served, tmp_path: Path):
    run = tmp_path / "growing"
    shutil.copytree(runs / "demo" / "spa", run)
    browser.open(served(run))
    ready(browser)
    before = total(browser)
    folder = run / "ppo" / "trajectories"
    shutil.copy(folder / "train-000001.jsonl", folder / "train-000011.jsonl")
    wait(browser, lambda: total(browser) == before + 4, seconds=30)
    assert browser.complaints() == []


def test_an_export_works_from_the_disk(browser, runs, tmp_path: Path):
    path = tmp_path / "export.html"
    export(Viewer(runs / "demo", cache_file=tmp_path / "index.sqlite"), path, limit=60)
    browser.size(1400, 900)
    browser.open(path.as_uri())
    ready(browser)
    assert total(browser) == 60 and "This page holds 60 of" in find(browser, "#status").text
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
    for address in (path.as_uri(), served(runs / "hostile")):
        browser.size(1400, 900)
        browser.open(address)
        if address.startswith("http"):
            ready(browser)
            press(browser, "j")
            wait(browser, lambda: all_of(browser, "#turns button"))
        assert "<script>alert(1)</script>" in find(browser, "body").get_attribute("textContent")
        assert not all_of(browser, "img")
        assert browser.driver.execute_script("return document.querySelectorAll('script:not([src])').length") == 0
        fits(browser)
        assert browser.complaints() == []  # an alert would have failed every call above


PICTURES = ("failures", "episodes", "what-it-knows-of-its-world")


def test_the_pictures_of_the_documentation(browser, showcase, served, tmp_path: Path, picture):
    """With --screenshots docs/images --run runs/demo this makes the pictures of the documentation."""
    path = tmp_path / "report.html"
    write_report([showcase], path, "html")
    browser.dark(False)
    browser.size(1280, 900)
    browser.open(path.as_uri())
    picture("report.png")
    scroll = "document.documentElement.style.scrollBehavior = 'auto'; arguments[0].scrollIntoView()"
    for name in PICTURES:
        browser.driver.execute_script(scroll, find(browser, f"#{name}"))
        picture(f"report-{name}.png")
    browser.size(1500, 950)
    browser.open(served(showcase) + "#split=train&wrong=1&arm=spa")
    ready(browser)
    find(browser, "h1").click()
    press(browser, "j")
    wait(browser, lambda: all_of(browser, "#turns button"))
    tabs = all_of(browser, "#turns button")
    wrong = next(index for index, tab in enumerate(tabs) if "≠" in tab.text)
    press(browser, *[Keys.ARROW_RIGHT] * wrong)
    wait(browser, lambda: all_of(browser, ".cell.differs") or all_of(browser, ".words .differs"))
    sampled = [span for span in all_of(browser, ".tokens span") if "given" not in span.get_attribute("class")]
    ActionChains(browser.driver).move_to_element(sampled[len(sampled) // 2]).perform()
    wait(browser, lambda: "advantage" in find(browser, "#token").text)
    picture("viewer.png")
    assert browser.complaints() == []
