"use strict";
/* Node by day. Only the rows in sight are drawn; what was found goes in as text, never as markup. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [grid, all, canvas, told] = ["grid", "all", "days", "told"].map((id) => document.getElementById(id));
  const STATES = ["failing", "degraded", "flapping", "watch", "unknown", "ok"];
  const HIGH = 14, LEFT = 150, TOP = 18, DAY_MS = 86400e3;
  const columns = data.rows.length ? data.rows[0].length : 0;
  for (const each of [grid, told]) each.hidden = false;
  all.style.height = `${TOP + HIGH * data.rows.length}px`;
  const keys = [...document.querySelectorAll(".states i")];
  const date = (column) => new Date((data.first + column) * DAY_MS).toISOString().slice(0, 10);
  let chosen = null, wide = 9, drawn = 0;

  const draw = () => {
    drawn = 0;
    const [width, height] = [grid.clientWidth, grid.clientHeight];
    const scale = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [width * scale, height * scale];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    wide = Math.max((width - LEFT) / Math.max(columns, 1), 2);
    const paint = canvas.getContext("2d");
    paint.scale(scale, scale);
    const colour = keys.map((key) => getComputedStyle(key).backgroundColor);
    const ink = getComputedStyle(document.body).color;
    paint.font = "11px system-ui, sans-serif";
    paint.fillStyle = ink;
    for (let column = 0; column < columns; column += 14) paint.fillText(date(column).slice(5), LEFT + column * wide, 12);
    const first = Math.floor(grid.scrollTop / HIGH);
    for (let row = first; row < data.rows.length; row++) {
      const y = TOP + (row - first) * HIGH;
      if (y > height) break;
      paint.fillStyle = ink;
      paint.fillText(data.names[row].slice(0, 24), 4, y + 11);
      for (let column = 0; column < columns; column++) {
        const state = data.rows[row][column];
        if (state !== " ") {
          paint.fillStyle = colour[+state];
          paint.fillRect(LEFT + column * wide, y, wide - 1, HIGH - 1);
        }
      }
      if (chosen && chosen.row === row) {
        paint.strokeStyle = ink;
        paint.lineWidth = 2;
        paint.strokeRect(LEFT + chosen.column * wide, y, wide - 1, HIGH - 1);
      }
    }
  };
  const redraw = () => { drawn = drawn || requestAnimationFrame(draw); };

  const tell = (row, column) => {
    chosen = { row, column };
    const state = data.rows[row][column], found = data.cells[`${row},${column}`], name = data.names[row];
    const lines = [`${name}, ${date(column)}: ${state === " " ? "not tested" : STATES[+state]}`];
    if (found) {
      const [source, minute, ...texts] = found;
      lines.push(...texts.map((text) => data.texts[text]));
      const at = `${String(Math.floor(minute / 60)).padStart(2, "0")}:${String(minute % 60).padStart(2, "0")} UTC`;
      lines.push(`report of ${at}: ${data.texts[source]}`);
    } else if (state !== " " && state !== "5") lines.push("the findings are omitted from this page");
    lines.push(`ncclprobe fleet node ${name}`);
    told.replaceChildren(...lines.flatMap((line) => [document.createTextNode(line), document.createElement("br")]));
    redraw();
  };

  canvas.addEventListener("click", (event) => {
    const column = Math.floor((event.offsetX - LEFT) / wide);
    const row = Math.floor(grid.scrollTop / HIGH) + Math.floor((event.offsetY - TOP) / HIGH);
    if (event.offsetY >= TOP && column >= 0 && column < columns && row < data.rows.length) tell(row, column);
  });
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move || !columns) return;
    event.preventDefault();
    const from = chosen || { row: 0, column: columns };
    const row = Math.min(Math.max(from.row + move[0], 0), data.rows.length - 1);
    if (HIGH * row < grid.scrollTop || HIGH * (row + 3) > grid.scrollTop + grid.clientHeight) grid.scrollTop = HIGH * Math.max(row - 3, 0);
    tell(row, Math.min(Math.max(from.column + move[1], 0), columns - 1));
  });
  grid.addEventListener("scroll", redraw);
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  draw();
  document.documentElement.dataset.drawn = "yes";
})();
