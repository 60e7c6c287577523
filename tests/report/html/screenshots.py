"""Pictures of pages for the README, taken in Chromium: .venv/bin/python tests/report/html/screenshots.py [FOLDER]

Each is the upper part of one page, light and dark; without FOLDER they go to reports/, where two are kept. Needs
selenium and chromium.
"""

import base64
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from ncclprobe.report import json as as_json
from ncclprobe.report.html import render

CAPTURES = [
    f"tests/captures/{name}.jsonl" for name in ("hgx-h100", "sick/ib-half-rate", "sick/nvlink-down", "sick/gpu-x8")
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
WIDE, HIGH = 1200, 2300


def pages(folder: Path) -> dict[str, str]:
    """The HTML of each picture. They show captures and a report of reports/."""
    doctor = [sys.executable, "-m", "ncclprobe", "doctor", *CAPTURES, "--json", "-"]
    (folder / "faults.json").write_bytes(subprocess.run(doctor, cwd=ROOT, stdout=subprocess.PIPE).stdout)
    return {
        "html-faults": render(as_json.read(str(folder / "faults.json"))),
        "html-pairs": render(as_json.read(str(ROOT / "reports" / "four-hosts-one-bad-nic.json"))),
    }


def shoot(driver: Any, page: Path, scheme: str) -> bytes:
    """The upper part of `page` as PNG."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.as_uri())
    waiting = "const wait = () => document.documentElement.dataset.drawn ? done() : setTimeout(wait, 50); wait();"
    driver.execute_async_script(f"const done = arguments[0]; {waiting}")
    high = min(HIGH, driver.execute_script("return document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": WIDE, "height": high, "scale": 0.8}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    return base64.b64decode(shot["data"])


def main(target: Path) -> None:
    """Writes NAME-light.png and NAME-dark.png of each page to `target`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS.split(), f"--user-data-dir={folder}/profile", f"--window-size={WIDE},900"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            for each, html in pages(folder).items():
                (folder / "page.html").write_text(html, encoding="utf-8")
                for scheme in ("light", "dark"):
                    (target / f"{each}-{scheme}.png").write_bytes(shoot(driver, folder / "page.html", scheme))
        finally:
            driver.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "reports")
