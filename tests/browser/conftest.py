"""A real browser for the pages: Debian's chromium, headless, cut off from every network but this machine."""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from report_fixtures import write_demo
from test_report import hostile_run

from spa_report.viewer import Library, serve


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        type=Path,
        default=None,
        help="write the documentation's pictures to this folder",
    )
    parser.addoption("--run", type=Path, default=None, help="a real run to take the pictures of")


def pytest_configure(config: pytest.Config) -> None:
    """The documentation shows what a real run gave, never the scripted one that the tests use."""
    folder, run = config.getoption("--screenshots"), config.getoption("--run")
    if folder is not None and run is None:
        raise pytest.UsageError(
            "--screenshots needs --run RUN: the folder of a finished comparison, such as runs/demo"
        )
    if run is not None and not (run / "summary.json").is_file():
        raise pytest.UsageError(
            f"--run {run}: no summary.json there; give the folder of a finished comparison"
        )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)


class Browser:
    """Chromium, and what a test asks of it."""

    def __init__(self, driver: WebDriver) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Load a page and forget what earlier pages logged."""
        self.driver.get("about:blank")
        self.requests()
        self.driver.get_log("browser")
        self.driver.get(address)

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        events = (
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        )
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Lines of the console: errors, violations of the content policy, failed requests."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def dark(self, on: bool) -> None:
        """Ask for the dark or the light colours."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def size(self, width: int, height: int) -> None:
        """Size of the page in pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium and driver, "chromium and chromedriver are needed: tests/browser/install.sh"
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--window-size=1400,1000",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield Browser(chrome)
    chrome.quit()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two comparisons and a hostile run."""
    folder = tmp_path_factory.mktemp("runs")
    write_demo(folder / "demo")
    write_demo(folder / "three", seeds=(1, 2, 3))
    hostile_run(folder / "hostile")
    return folder


@pytest.fixture(scope="session")
def showcase(request: pytest.FixtureRequest, runs: Path) -> Path:
    """The run that the documentation's pictures show."""
    return request.config.getoption("--run") or runs / "three"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """A function that serves a run, or a folder of runs, and returns the viewer's address."""
    servers = []

    def start(folder: Path) -> str:
        library = Library(folder, caches=tmp_path_factory.mktemp("cache"))
        library.update()
        server = serve(library, 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/?token={server.token}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def picture(request: pytest.FixtureRequest, browser: Browser) -> Callable[[str], None]:
    """A function that takes a documentation picture, if pictures were asked for."""
    folder: Path | None = request.config.getoption("--screenshots")

    def take(name: str) -> None:
        if folder is not None:
            assert browser.driver.save_screenshot(str(folder / name))

    return take
