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

  /* Filter: rows of the page are shown or hidden; those that are only data are made when they are asked for. */
  const body = document.getElementById("rows");
  if (!body) return;
  const table = given("table");
  const place = new Map(table.names.map((name, number) => [name.toLowerCase(), number]));
  const standing = [...body.rows].map((row, number) => ({
    row, kind: row.dataset.kind, words: row.textContent.toLowerCase(), on: table.on[number],
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
    for (const [name, text] of [["Seen", seen], ["See also", also], ["Fix", fix], ["Blame", blame]]) {
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
      const node = event.target.dataset.node;
      if (node === undefined) return;
      find.value = node;
      filter();
      document.getElementById("checks").scrollIntoView();
    });
  }
  filter();
})();
