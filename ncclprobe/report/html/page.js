"use strict";
/* What the page does beyond its text: the theme, the filter. Texts go in as text, never as markup. */
(() => {
  const root = document.documentElement;
  const given = (id) => JSON.parse(document.getElementById(id).textContent);
  root.classList.add("script");
  for (const each of document.querySelectorAll(".script-only")) each.hidden = false;

  /* Theme: the system's, until the reader chooses. Paper is always light. */
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  let before;
  const folded = () => [...document.querySelectorAll("details")];
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, shut: folded().filter((each) => !each.open) };
    for (const each of before.shut) each.open = true;
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    for (const each of before.shut) each.open = false;
    before = undefined;
    label();
  });
  label();
  root.dataset.drawn = "yes";

  /* Commands and settings to copy. */
  for (const each of document.querySelectorAll("[data-copy]")) {
    each.addEventListener("click", async () => {
      await navigator.clipboard.writeText(each.dataset.copy);
      each.textContent = "Copied";
    });
  }

  /* Tables are sorted by a column that is clicked. */
  const UNITS = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 1e3, s: 1e6 };
  const worth = (cell) => {
    const text = cell.textContent.trim();
    const number = parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? text : number * (UNITS[text.split(/\s/)[1]] || 1);
  };
  const order = new Intl.Collator("en", { numeric: true });
  const compare = (a, b) => (typeof a === typeof b ? order.compare(a, b) : typeof a === "number" ? -1 : 1);
  for (const table of document.querySelectorAll("table.sweep, table.worst, table.which, table.checks")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.classList.add("sortable");
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].map((row) => [worth(row.cells[column]), row]);
        rows.sort(([a], [b]) => (down ? compare(b, a) : compare(a, b)));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  /* Charts: a rectangle drawn with the mouse is shown larger; a double click or Escape shows all again. */
  const charts = [...document.querySelectorAll("svg.chart")];
  const whole = new Map(charts.map((chart) => [chart, chart.getAttribute("viewBox")]));
  const all = (chart) => { chart.setAttribute("viewBox", whole.get(chart)); chart.classList.remove("zoomed"); };
  for (const chart of charts) {
    let from, box;
    const part = (event) => {
      const to = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      from ||= to;
      return [Math.min(from.x, to.x), Math.min(from.y, to.y), Math.abs(to.x - from.x), Math.abs(to.y - from.y)];
    };
    const end = () => { if (box) box.remove(); from = box = undefined; };
    chart.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button) return;
      part(event);
      box = chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
      box.setAttribute("class", "drag");
      chart.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    chart.addEventListener("pointermove", (event) => {
      if (box) part(event).forEach((value, n) => box.setAttribute(["x", "y", "width", "height"][n], value));
    });
    chart.addEventListener("pointerup", (event) => {
      const chosen = box && part(event);
      end();
      if (!chosen || chosen[2] < 12 || chosen[3] < 12) return;
      chart.setAttribute("viewBox", chosen.join(" "));
      chart.classList.add("zoomed");
    });
    chart.addEventListener("pointercancel", end);
    chart.addEventListener("dblclick", () => all(chart));
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") charts.forEach(all); });

  /* A link to something within a fold opens it. */
  const reveal = () => {
    const named = location.hash.slice(1);
    for (let each = document.getElementById(named); each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();

  /* Filter: rows of the page are shown or hidden; those that are only data are made when they are asked for. */
  const body = document.getElementById("rows");
  if (!body) return;
  const table = given("table");
  const place = new Map(table.names.map((name, number) => [name.toLowerCase(), number]));
  const standing = [...body.rows].map((row, number) => ({
    row, kind: row.dataset.kind, on: table.on[number],
    words: (row.textContent + " " + table.said[number]).toLowerCase(),
  }));
  const waiting = table.more.map((cells) => ({
    cells, kind: cells[0], words: cells.slice(0, 10).join(" ").toLowerCase(), on: cells[10],
  }));
  const find = document.getElementById("find");
  const boxes = [...document.querySelectorAll(".chip input")];
  const MOST = 500;
  const element = (name, text, sort) => {
    const made = document.createElement(name);
    if (sort) made.className = sort;
    made.textContent = text;
    return made;
  };
  const made = ({ cells: [kind, id, title, where, subject, message, seen, also, fix, blame] }) => {
    const row = element("tr", "", "made");
    const columns = [0, 1, 2, 3].map(() => row.appendChild(element("td", "")));
    columns[0].append(element("span", kind, "tag " + kind));
    columns[1].append(element("code", id), element("span", title, "title"));
    columns[2].append(where);
    columns[3].append(element("b", subject), " " + message);
    for (const [name, text] of [["Seen", seen], ["See also", also], ["Fix", fix], ["At fault", blame]]) {
      if (text) columns[3].appendChild(element("p", "", "sub")).append(element("b", name), " " + text);
    }
    return row;
  };
  const filter = () => {
    const word = find.value.trim().toLowerCase();
    const node = place.get(word);
    const kinds = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const fits = (each) => kinds.has(each.kind) && (
      !word || each.words.includes(word) || (node !== undefined && each.on.some(([a, b]) => a <= node && node <= b)));
    let shown = 0;
    for (const each of standing) {
      each.row.hidden = !fits(each);
      shown += !each.row.hidden;
    }
    for (const row of [...body.querySelectorAll(".made")]) row.remove();
    const more = waiting.filter(fits);
    if (word) body.append(...more.slice(0, MOST).map(made));
    const here = shown + (word ? Math.min(more.length, MOST) : 0);
    const all = shown + more.length;
    document.getElementById("shown").textContent =
      here === all ? all.toLocaleString("en") + (all === 1 ? " row" : " rows") : here.toLocaleString("en") + " of " + all.toLocaleString("en") + " rows";
    document.getElementById("none").hidden = all > 0;
  };
  const loud = boxes.some((box) => !["pass", "skip"].includes(box.value));
  for (const box of boxes) {
    box.checked = loud ? !["pass", "skip"].includes(box.value) : box.value !== "skip";
    box.addEventListener("change", filter);
  }
  let soon;
  find.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(filter, 80); });
  for (const tiles of document.querySelectorAll(".tiles")) {
    tiles.addEventListener("click", (event) => {
      const told = event.target.title;
      if (!told) return;
      find.value = told.slice(0, told.lastIndexOf(": "));
      filter();
      document.getElementById("checks").scrollIntoView();
    });
  }
  filter();
})();
