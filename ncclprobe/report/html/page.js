"use strict";
/* What the page does beyond its text: the theme, the charts, the filter. Texts go in as text, never as markup. */
(() => {
  const root = document.documentElement;
  const given = (id) => JSON.parse(document.getElementById(id).textContent);
  const colourOf = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  root.classList.add("script");
  for (const each of document.querySelectorAll(".script-only")) each.hidden = false;

  /* Charts: figures name the page's variables where a colour stands. */
  const figures = given("figures");
  const named = (key) => /colou?r$/.test(key) || key === "colorscale";
  const painted = (value, colour) => {
    if (Array.isArray(value)) return value.map((each) => painted(each, colour));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, painted(each, colour || named(key))]));
    }
    return colour && typeof value === "string" && value.startsWith("--") ? colourOf(value) : value;
  };
  const axis = (own) => ({
    gridcolor: colourOf("--line"), linecolor: colourOf("--line"), zeroline: false, ticks: "", fixedrange: false, ...own,
  });
  const settled = (layout) => ({
    ...layout,
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colourOf("--muted") },
    hoverlabel: {
      bgcolor: colourOf("--surface"), bordercolor: colourOf("--muted"), align: "left",
      font: { color: colourOf("--ink"), size: 12 },
    },
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
  });
  /* Where there is little room: every other size at the axis, and the legend under the title. */
  const fit = (layout, room, paper) => {
    layout.xaxis.tickangle = 0;
    if (paper) Object.assign(layout, { height: 220 }), layout.font.size = 10;
    if (room > 430) return;
    if (layout.showlegend) layout.margin.t += 18;
    for (const list of ["tickvals", "ticktext"]) layout.xaxis[list] = layout.xaxis[list].filter((_, n) => n % 2 === 0);
  };
  const draw = (paper) => {
    if (typeof Plotly === "undefined") return Promise.resolve();
    return Promise.all([...document.querySelectorAll("[data-figure]")].map((place) => {
      const figure = painted(figures[place.dataset.figure], false);
      const map = figure.data[0].type === "heatmap";
      const layout = settled(figure.layout);
      if (paper) Object.assign(layout, { autosize: false, width: map && !place.closest(".maps:not(.many)") ? 640 : 325 });
      if (!map) fit(layout, layout.width || place.clientWidth, paper);
      if (map) {
        layout.xaxis.showgrid = layout.yaxis.showgrid = false;
        const room = (layout.width || place.clientWidth) - layout.margin.l - layout.margin.r - 70;
        layout.height = Math.min(layout.height, Math.max(160, room) + layout.margin.t + layout.margin.b);
      }
      return Plotly.react(place, figure.data, layout, {
        responsive: true, displayModeBar: false,
      });
    }));
  };

  /* Theme: the system's, until the reader chooses. Paper is always light. */
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  const restyle = () => { label(); return draw(false); };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; restyle(); });
  system.addEventListener("change", restyle);
  let before;
  const folded = () => [...document.querySelectorAll("details")];
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, shut: folded().filter((each) => !each.open) };
    for (const each of before.shut) each.open = true;
    root.dataset.theme = "light";
    draw(true);
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    for (const each of before.shut) each.open = false;
    before = undefined;
    restyle();
  });
  label();
  draw(false).then(() => { root.dataset.drawn = "yes"; });

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
