"""The page in a real Chromium without a screen: one session for all. Skips where there is none."""

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet.test_command import NOW_S, large

from ncclprobe.model.report import Report
from ncclprobe.report.html import days, render

from . import made

pytestmark = pytest.mark.slow

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra `test`)")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,900"
)
PHONE = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
Show = Callable[..., None]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium by its driver. Both are Debian's packages; nothing is fetched."""
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if not all(found.values()):
        pytest.skip("no chromium with its driver here (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = found["chromium"]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(found["chromedriver"]))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens the page of a report from a file. Whatever else a test asks, the console must stay silent."""

    def shown(report: Report) -> None:
        path = tmp_path / "report.html"
        path.write_text(render(report), encoding="utf-8")
        chromium.get(path.as_uri())
        chromium.execute_async_script(
            "const done = arguments[0]; const wait = () => document.documentElement.dataset.drawn"
            " ? done() : setTimeout(wait, 20); wait();"
        )

    _prefer(chromium, "light")
    yield shown
    assert chromium.get_log("browser") == []


def _prefer(chromium: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def _js(chromium: Any, script: str) -> Any:
    return chromium.execute_script(f"return {script}")


def _rows(chromium: Any) -> list[str]:
    return list(_js(chromium, "[...document.querySelectorAll('#rows tr:not([hidden])')].map(row => row.innerText)"))


def _type(chromium: Any, text: str) -> None:
    script = "const [text, done] = arguments; const find = document.getElementById('find'); find.value = text;"
    chromium.execute_async_script(f"{script} find.dispatchEvent(new Event('input')); setTimeout(done, 200)", text)


def test_the_filter_and_a_click_find_words_and_nodes_also_those_folded_in_a_list(chromium: Any, show: Show) -> None:
    show(made.fleet(2048))
    assert _js(chromium, "document.querySelectorAll('.tiles > span').length") == 2051
    assert _js(chromium, "document.documentElement.outerHTML.length") < 300_000
    loud = _rows(chromium)
    assert not [row for row in loud if row.startswith("pass")]
    _type(chromium, "NVLinks")
    assert len(_rows(chromium)) == 7
    _type(chromium, "node0102")
    assert ["mlx5_6:1" in row for row in _rows(chromium)] == [True]
    _type(chromium, "nobody has this")
    assert _rows(chromium) == []
    assert _js(chromium, "document.getElementById('none').hidden") is False
    _type(chromium, "")
    assert _rows(chromium) == loud
    _js(chromium, "document.querySelector('[title^=node0005]').click()")
    assert ["mlx5_5:1" in row for row in _rows(chromium)] == [True]


def test_a_host_name_with_markup_stays_text(chromium: Any, show: Show) -> None:
    show(made.fleet(12, (made.MARKUP,)))
    assert _js(chromium, "document.images.length") == 0
    assert "onerror=alert(1)" in _js(chromium, "document.querySelector('.about').innerText")
    assert _js(chromium, "document.querySelector('.tiles > span').title").startswith("</script><img")
    _js(chromium, "document.querySelector('.tiles > span').click()")
    assert _js(chromium, "document.images.length") == 0


def test_dark_follows_the_system_paper_is_light_and_the_button_turns_the_page_round(chromium: Any, show: Show) -> None:
    ground, ink = (
        "getComputedStyle(document.body).backgroundColor",
        "getComputedStyle(document.querySelector('.chart text')).fill",
    )
    _prefer(chromium, "dark")
    show(made.sweep())
    dark = _js(chromium, ground), _js(chromium, ink)
    chromium.execute_script(
        "addEventListener('beforeprint', () => { window.seen = [document.documentElement.dataset.theme,"
        " document.querySelectorAll('details:not([open])').length] })"
    )
    printed = chromium.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert _js(chromium, "window.seen") == ["light", 0]  # every fold is open
    assert (_js(chromium, ground), _js(chromium, ink)) == dark
    _js(chromium, "document.getElementById('theme').click()")
    light = _js(chromium, ground), _js(chromium, ink)
    assert not set(light) & set(dark)
    assert _js(chromium, "document.getElementById('theme').textContent") == "Dark"


def test_the_page_is_no_wider_than_a_telephone(chromium: Any, show: Show) -> None:
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        for report in (made.sweep(), made.fleet(300, (made.MARKUP,))):
            show(report)
            assert _js(chromium, "document.documentElement.scrollWidth") <= 390
    finally:
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


AXE = """
const [rules, done] = arguments;
const alike = {'svg.chart': 2, 'svg.heat': 1, 'svg.machine': 1, '#rows tr': 30};  // there is one way to make each
for (const [what, kept] of Object.entries(alike))
  for (const each of [...document.querySelectorAll(what)].slice(kept)) each.remove();
for (const each of document.querySelectorAll('details')) each.open = true;
axe.run(document, {resultTypes: ['violations'], ...rules}).then(done, done);
"""
CONTRAST = {"runOnly": ["color-contrast"]}
LOOKS: dict[str, tuple[str, str, Any, Any]] = {
    "light": ("", "light", None, {}),
    "dark": ("", "dark", None, CONTRAST),
    "phone": ("", "light", PHONE, {"rules": {"color-contrast": {"enabled": False}}}),
    "paper": ("print", "light", None, CONTRAST),
}
KINDS: dict[str, Callable[[], Report]] = {"report": made.whole, "causes": made.causes}


@pytest.mark.parametrize("kind", KINDS)
def test_axe_objects_to_nothing_light_dark_on_a_telephone_and_on_paper(kind: str, chromium: Any, show: Show) -> None:
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed (extra `test`)")
    axe = Path(package.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    found = {}
    try:
        for look, (media, scheme, device, rules) in LOOKS.items():
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
            if device:
                chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
            show(KINDS[kind]())
            chromium.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})  # the page's policy lets no script in
            told = chromium.execute_async_script(AXE, rules)
            found[look] = [(each["id"], each["nodes"][0]["html"][:200]) for each in told["violations"]]
            chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    finally:
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert found == {look: [] for look in LOOKS}


def test_a_fleet_opens_at_once_and_a_click_tells_what_was_found_that_day(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "fleet.html"
    path.write_text(days.render(large(2000, 0.05), NOW_S, 90, "/shared/fleet.db"), encoding="utf-8")
    chromium.get(path.as_uri())
    assert _js(chromium, "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd") < 1000
    assert _js(chromium, "document.documentElement.dataset.drawn") == "yes"
    _click_day(chromium, back=1, row=0)
    told = _js(chromium, "document.getElementById('told').innerText").splitlines()
    assert told[0].endswith(": failing")
    assert "is DOWN; its siblings are ACTIVE" in told[1]
    assert told[2].startswith("report of 04:00 UTC: /shared/ncclprobe/new/gpu-node-")
    chromium.execute_script("document.getElementById('grid').scrollTop = 14 * 1990")
    _click_day(chromium, back=1, row=5)
    assert _js(chromium, "document.getElementById('told').innerText").startswith("gpu-node-19")
    assert chromium.get_log("browser") == []


def _click_day(chromium: Any, back: int, row: int) -> None:
    script = (
        "const [back, row] = arguments; const c = document.getElementById('days');"
        "const at = c.getBoundingClientRect(); const wide = Math.max((c.clientWidth - 150) / 90, 4);"
        "const x = at.left + c.clientWidth - wide * (back - 0.5), y = at.top + 18 + 14 * row + 5;"
        "c.dispatchEvent(new MouseEvent('click', {bubbles: true, clientX: x, clientY: y}))"
    )
    chromium.execute_script(script, back, row)
