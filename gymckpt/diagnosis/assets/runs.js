/* The history of many operations: a graph over all of them, and a list of those that are shown. */

const byId = (id) => document.getElementById(id);
const GRAPH = byId("graph");
const PLOT = byId("plot");
const LIST = byId("list");
const SIZER = byId("sizer");
const ROW = 26;
const AROUND = 25;
const EDGE = { left: 62, right: 12, top: 12, bottom: 24 };

const OPERATIONS = DATA.operations.map(
  ([id, kind, opened, state, tone, parked, working, whole, group, words], order) => ({
    id, kind, opened, state, tone, parked, working, whole, words, order, group: DATA.groups[group],
    text: `${id}\n${state}\n${DATA.groups[group]}\n${words}`.toLowerCase(),
  }),
);
const VIEW = { measure: "parked", kind: "", tone: "", find: "" };
const SHOWN = { operations: [], points: [], active: -1 };

/** Work out what is shown, and draw. */
function layOut() {
  SHOWN.operations = OPERATIONS.filter(
    (one) => (!VIEW.kind || one.kind === VIEW.kind) && (!VIEW.tone || one.tone === VIEW.tone)
      && (!VIEW.find || one.text.includes(VIEW.find)),
  );
  const all = OPERATIONS.length;
  byId("count").textContent = SHOWN.operations.length === all ? `${all}` : `${SHOWN.operations.length} of ${all}`;
  byId("measured").textContent = VIEW.measure === "whole" ? "parked" : VIEW.measure;
  SIZER.style.height = `${SHOWN.operations.length * ROW}px`;
  LIST.style.height = `${Math.max(60, Math.min(SHOWN.operations.length * ROW + 2, 420))}px`;
  drawGraph();
  drawList();
}

// --- the graph ----------------------------------------------------------------------------------

/** Draw a dot per operation, on a logarithmic scale, with the running median. */
function drawGraph() {
  const width = GRAPH.clientWidth;
  const height = GRAPH.clientHeight;
  const context = sized(PLOT, width, height);
  const timed = SHOWN.operations.filter((one) => one[VIEW.measure] !== null);
  const seconds = timed.map((one) => Math.max(0.001, one[VIEW.measure]));
  const low = Math.log10(Math.min(1, ...extremes(seconds)));
  const high = Math.max(low + 1, Math.log10(Math.max(...extremes(seconds))) + 0.08);
  const y = (value) => height - EDGE.bottom
    - ((Math.log10(Math.max(0.001, value)) - low) / (high - low)) * (height - EDGE.top - EDGE.bottom);
  const x = (index) => EDGE.left + ((index + 0.5) / Math.max(1, timed.length)) * (width - EDGE.left - EDGE.right);
  drawAxes(context, width, height, low, high, y, x, timed);
  SHOWN.points = timed.map((one, index) => ({ one, x: x(index), y: y(one[VIEW.measure]) }));
  const size = timed.length > 3000 ? 1.6 : timed.length > 600 ? 2.2 : 3;
  drawDots(context, size);
  drawMedian(context, seconds, x, y);
  if (!timed.length) {
    context.fillStyle = ink("muted");
    context.fillText("No operation is like that.", EDGE.left + 12, height / 2);
  }
}

/** Return the least and the greatest of many numbers. */
function extremes(numbers) {
  let least = Infinity;
  let most = 0.001;
  for (const number of numbers) {
    if (number < least) least = number;
    if (number > most) most = number;
  }
  return least === Infinity ? [1, 10] : [least, most];
}

const ROUND = [0.001, 0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400, 604800];

/** Draw lines at round times and the dates below. */
function drawAxes(context, width, height, low, high, y, x, timed) {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  let last = Infinity;
  for (const value of ROUND) {
    const at = Math.log10(value);
    if (at < low - 0.01 || at > high || last - y(value) < 18) continue;
    last = y(value);
    context.fillStyle = ink("line");
    context.fillRect(EDGE.left, Math.round(last), width - EDGE.left - EDGE.right, 1);
    context.fillStyle = ink("muted");
    context.fillText(secondsText(value).replace(/ (min|h) 00 (s|min)/, " $1").replace(/\.0+ s/, " s"), EDGE.left - 7, last);
  }
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  const room = Math.max(1, Math.floor((width - EDGE.left) / 120));
  for (let number = 0; number < room && timed.length; number += 1) {
    const index = Math.floor((number * timed.length) / room);
    context.fillText(dateText(timed[index].opened).slice(5, 16), x(index), height - 7);
  }
}

/** Draw the operations: what went wrong last, so that nothing hides it. */
function drawDots(context, size) {
  const inks = { good: ink("prepare"), busy: ink("waiting"), bad: ink("failed") };
  for (const tone of ["good", "busy", "bad"]) {
    context.fillStyle = context.strokeStyle = inks[tone];
    context.lineWidth = 1.5;
    context.globalAlpha = tone === "good" ? 0.65 : 1;
    for (const { one, x, y } of SHOWN.points) {
      if (one.tone !== tone) continue;
      context.beginPath();
      if (tone === "bad") {
        const arm = size * 1.5;
        context.moveTo(x - arm, y - arm);
        context.lineTo(x + arm, y + arm);
        context.moveTo(x - arm, y + arm);
        context.lineTo(x + arm, y - arm);
        context.stroke();
      } else {
        context.arc(x, y, size, 0, 7);
        if (tone === "good") context.fill();
        else context.stroke();
      }
    }
  }
  context.globalAlpha = 1;
}

/** Draw the median of the operations around each. */
function drawMedian(context, seconds, x, y) {
  if (seconds.length < 2 * AROUND) return;
  context.strokeStyle = ink("text");
  context.lineWidth = 1.8;
  context.beginPath();
  const step = Math.max(1, Math.floor(seconds.length / 400));
  for (let index = 0; index < seconds.length; index += step) {
    const around = seconds.slice(Math.max(0, index - AROUND), index + AROUND + 1).sort((a, b) => a - b);
    context[index ? "lineTo" : "moveTo"](x(index), y(around[Math.floor(around.length / 2)]));
  }
  context.stroke();
}

// --- the list -----------------------------------------------------------------------------------

/** Return the operation of a row: the latest stands first. */
const rowOf = (index) => SHOWN.operations[SHOWN.operations.length - 1 - index];

/** Draw the rows that can be seen. */
function drawList() {
  const first = Math.max(0, Math.floor(LIST.scrollTop / ROW) - 4);
  const last = Math.min(SHOWN.operations.length, first + Math.ceil(LIST.clientHeight / ROW) + 8);
  const rows = [];
  for (let index = first; index < last; index += 1) {
    const one = rowOf(index);
    const row = make("div", `listed${index === SHOWN.active ? " active" : ""}`);
    const measure = VIEW.measure === "whole" ? one.parked : one[VIEW.measure];
    row.append(
      make("bdi", "", one.id), make("span", "wide", one.kind), make("span", "wide", dateText(one.opened)),
      make("span", one.tone, `${{ good: "✓", bad: "✕", busy: "…" }[one.tone]} ${one.state}`),
      make("span", "number", measure === null ? "–" : secondsText(measure)),
      make("span", "number wide", secondsText(one.whole)),
      make("span", "wide", one.tone === "good" ? "" : one.group),
    );
    row.id = `operation-${index}`;
    row.index = index;
    row.style.top = `${index * ROW}px`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(index === SHOWN.active));
    row.setAttribute("aria-setsize", SHOWN.operations.length);
    row.setAttribute("aria-posinset", index + 1);
    rows.push(row);
  }
  if (!rows.length) rows.push(make("p", "none", "No operation is like that."));
  SIZER.replaceChildren(...rows);
}

/** Return what is to be said about an operation. */
function linesOf(one) {
  const lines = [one.id, `${one.kind}, ${one.state}, opened ${dateText(one.opened)} UTC`];
  if (one.parked !== null) lines.push(`parked ${secondsText(one.parked)}`);
  lines.push(`working ${secondsText(one.working)}, whole ${secondsText(one.whole)}`);
  if (one.words) lines.push([one.words, "note"]);
  return lines;
}

/** Make a row the active one, bring it into view and say what it is. */
function activate(index, aloud) {
  if (!SHOWN.operations.length) return;
  SHOWN.active = Math.max(0, Math.min(SHOWN.operations.length - 1, index));
  const top = SHOWN.active * ROW;
  if (top < LIST.scrollTop) LIST.scrollTop = top;
  if (top + ROW > LIST.scrollTop + LIST.clientHeight) LIST.scrollTop = top + ROW - LIST.clientHeight;
  drawList();
  LIST.setAttribute("aria-activedescendant", `operation-${SHOWN.active}`);
  if (!aloud) return;
  const box = byId(`operation-${SHOWN.active}`).getBoundingClientRect();
  TIP.show(linesOf(rowOf(SHOWN.active)), box.left + 40, box.bottom - 12, true);
}

const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };

LIST.addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  activate(Number.isFinite(step) ? SHOWN.active + step : step > 0 ? SHOWN.operations.length - 1 : 0, true);
});
LIST.addEventListener("scroll", perFrame(drawList), { passive: true });
LIST.addEventListener("blur", () => TIP.hide());
LIST.addEventListener("pointerleave", () => TIP.hide());
LIST.addEventListener("pointermove", (event) => {
  const row = event.target.closest(".listed");
  if (row) TIP.show(linesOf(rowOf(row.index)), event.clientX, event.clientY, false);
  else TIP.hide();
});
LIST.addEventListener("click", (event) => {
  const row = event.target.closest(".listed");
  if (row) activate(row.index, true);
});

/** Return the point beside the pointer. */
function pointAt(event) {
  const box = PLOT.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  let best = null;
  let off = 14 ** 2;
  for (const point of SHOWN.points) {
    const away = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (away < off) [best, off] = [point, away];
  }
  return best;
}

PLOT.addEventListener("pointermove", (event) => {
  const point = pointAt(event);
  if (point) TIP.show(linesOf(point.one), event.clientX, event.clientY, false);
  else TIP.hide();
});
PLOT.addEventListener("pointerleave", () => TIP.hide());
PLOT.addEventListener("click", (event) => {
  const point = pointAt(event);
  if (point) activate(SHOWN.operations.length - 1 - SHOWN.operations.indexOf(point.one), false);
});

// --- controls -----------------------------------------------------------------------------------

/** Take a change of the view and draw anew. */
function look(change) {
  Object.assign(VIEW, change);
  SHOWN.active = -1;
  LIST.scrollTop = 0;
  LIST.removeAttribute("aria-activedescendant");
  TIP.hide();
  layOut();
}

byId("controls").addEventListener("change", (event) => {
  if (event.target.type === "radio") look({ [event.target.name]: event.target.value });
});
byId("find").addEventListener("input", (event) => look({ find: event.target.value.trim().toLowerCase() }));
for (const button of document.querySelectorAll("button.cause")) {
  button.addEventListener("click", () => {
    byId("find").value = button.textContent;
    look({ find: button.textContent.toLowerCase() });
    LIST.focus({ preventScroll: true });
    LIST.scrollIntoView({ block: "center" });
  });
}
onChange(GRAPH, layOut);
layOut();
document.documentElement.dataset.drawn = "yes";
