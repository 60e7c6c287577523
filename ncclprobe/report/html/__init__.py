"""The report as one page that works offline: text in plain HTML, charts and pictures in SVG.

All text is visible without JavaScript. Text from machines is escaped everywhere, and a policy in the page lets the
browser run only this page's own scripts and fetch nothing.
"""

from ncclprobe.model.report import Report


def recognises(text: str) -> bool:
    """Return whether `text` is a complete page made by `render`."""
    head, _, rest = text.strip().partition("</title>")
    begins = head.startswith("<!doctype html>") and head.endswith(" · ncclprobe")
    return begins and rest.endswith("</html>") and text.count("</html>") == 1


def render(report: Report) -> str:
    """Render the whole page."""
    if report.files:
        from ncclprobe.report.html import causes

        return causes.page(report)
    from ncclprobe.report.html.page import page  # here, so that asking for no page costs nothing

    return page(report)
