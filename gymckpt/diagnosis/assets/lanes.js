/* The picture: a head with states and times, rows of lanes and groups, lines across, details. */

const byId = (id) => document.getElementById(id);
const FRAME = byId("frame");
const HEAD = byId("head");
const ROWS = byId("rows");
const SIZER = byId("sizer");
const LINES = byId("lines");
const COUNT = byId("count");

const VIEW = { filter: "all", find: "", order: "worst", fitted: Scale.wantsFitting(DATA) };
const PICTURE = { rows: [], tops: [], active: -1, picked: -1, scale: null, left: 0, narrow: false };

/** Return the height of a row: a group that is closed shows its density, an open one its lanes. */
function heightOf(row) {
  if (!row.group) return PICTURE.narrow ? 36 : 23;
  if (OPEN.has(row.group.key)) return 25;
  return PICTURE.narrow ? 54 : 40;
}

/** Work out everything that depends on the view or the width, and draw. */
function layOut() {
  PICTURE.narrow = FRAME.clientWidth < 640;
  FRAME.classList.toggle("narrow", PICTURE.narrow);
  PICTURE.left = PICTURE.narrow ? 0 : 226;
  const found = rowsFor(VIEW);
  PICTURE.rows = found.rows;
  PICTURE.tops = [];
  let top = 0;
  for (const row of found.rows) {
    PICTURE.tops.push(top);
    top += heightOf(row);
  }
  PICTURE.height = top;
  SIZER.style.height = `${top}px`;
  ROWS.style.height = `${Math.max(46, Math.min(top, Math.max(320, innerHeight * 0.7)))}px`;
  const bar = ROWS.offsetWidth - ROWS.clientWidth;
  PICTURE.scale = new Scale(DATA, Math.max(120, ROWS.clientWidth - PICTURE.left - 10), VIEW.fitted);
  LINES.style.right = `${bar}px`;
  const all = LANES.length === 1 ? "1 instance" : `${LANES.length} instances`;
  COUNT.textContent = found.kept === LANES.length ? all : `${found.kept} of ${all}`;
  if (PICTURE.active >= PICTURE.rows.length) PICTURE.active = -1;
  drawHead();
  drawLines();
  drawRows();
}

// --- the head and the lines across --------------------------------------------------------------

/** Draw the states, the times and the names of the lines. */
function drawHead() {
  const { scale, left } = PICTURE;
  const parts = [make("span", "corner", VIEW.fitted ? "time, fitted to states" : "time, to scale")];
  scale.parts.forEach((part, index) => {
    if (part.width < 1) return;
    const band = place(make("div", `band ${index % 2 ? "odd" : ""}`), left + part.left, part.width);
    const [name, trigger, , to] = DATA.states[index] || ["", "", 0, 0];
    if (part.width > 34) band.append(make("b", "", name));
    if (part.width > 44) band.append(make("i", "", to === null && DATA.settled ? "end" : secondsText(part.to - part.from)));
    band.tip = [name, DATA.means[name] || "", `entered by ${trigger} at ${since(part.from)}`,
      to === null ? "" : `for ${secondsText(part.to - part.from)}`].filter(Boolean);
    parts.push(band);
  });
  if (scale.ahead.length) {
    const band = place(make("div", "band ahead"), left + scale.pastWidth, scale.width - scale.pastWidth + 10);
    band.append(make("b", "", "ahead"), make("i", "", "not to scale"));
    band.tip = ["what is ahead", "if nothing happens any more; not to scale"];
    parts.push(band);
  }
  for (const { text, x, edge } of scale.times()) parts.push(place(make("div", `time ${edge}`, text), left + x));
  HEAD.replaceChildren(...parts, ...signs());
}

/** Return the names of the lines, as far as there is room for them beside each other. */
function signs() {
  const { scale, left } = PICTURE;
  const taken = [[], []];
  const shown = [];
  for (const [at, kind, label] of DATA.marks) {
    const x = scale.x(at);
    const sign = make("div", `sign ${kind}-ink`, at > DATA.end ? `${label} ${axisText(at, at)}` : label);
    const wide = sign.textContent.length * 6.3 + 8;
    const turned = x + wide > scale.width && x > wide;
    const [from, to] = turned ? [x - wide, x] : [x, x + wide];
    const line = taken.findIndex((others) => others.every(([a, b]) => from >= b || to <= a));
    if (line < 0) continue;
    taken[line].push([from, to]);
    sign.classList.toggle("left", turned);
    sign.classList.toggle("lower", line === 1);
    shown.push(place(sign, left + x));
  }
  return shown;
}

/** Draw the lines that cross all lanes. */
function drawLines() {
  const { scale, left } = PICTURE;
  const lines = scale.parts.slice(1).filter((part) => part.width > 0)
    .map((part) => place(make("div", "edge"), left + part.left));
  if (scale.ahead.length) lines.push(place(make("div", "future"), left + scale.pastWidth));
  for (const [at, kind] of DATA.marks) {
    lines.push(place(make("div", `mark ${kind} ${kind}-ink`), left + scale.x(at) - 1));
  }
  const cursor = make("div", "cursor");
  cursor.append(make("span"));
  cursor.hidden = true;
  LINES.replaceChildren(...lines, cursor);
}

/** Move the line that follows the pointer; null hides it. */
function moveCursor(x) {
  const cursor = LINES.querySelector(".cursor");
  const at = x === null ? null : PICTURE.scale.at(x);
  cursor.hidden = at === null;
  if (at === null) return;
  place(cursor, PICTURE.left + x);
  cursor.classList.toggle("turned", x > PICTURE.scale.width - 80);
  cursor.firstChild.textContent = secondsText(at);
}

// --- rows ---------------------------------------------------------------------------------------

/** Draw the rows that can be seen, and a few more. */
function drawRows() {
  const { rows, tops } = PICTURE;
  const from = ROWS.scrollTop - 120;
  const to = ROWS.scrollTop + ROWS.clientHeight + 120;
  const shown = [];
  let low = 0;
  let high = tops.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tops[middle] < from) low = middle + 1;
    else high = middle;
  }
  for (let index = Math.max(0, low - 1); index < rows.length && tops[index] < to; index += 1) {
    const row = rows[index];
    const element = row.group ? groupRow(row.group) : laneRow(row.lane, index);
    element.id = `row-${index}`;
    element.index = index;
    element.style.top = `${tops[index]}px`;
    element.style.height = `${heightOf(row)}px`;
    element.classList.toggle("active", index === PICTURE.active);
    element.setAttribute("aria-setsize", rows.length);
    element.setAttribute("aria-posinset", index + 1);
    shown.push(element);
  }
  if (!rows.length) shown.push(make("p", "none", "No instance is like that."));
  SIZER.replaceChildren(...shown);
}

/** Make the row of a group: how many lanes were doing what, over time. */
function groupRow(group) {
  const row = make("div", "row group");
  row.setAttribute("role", "treeitem");
  row.setAttribute("aria-level", "1");
  row.setAttribute("aria-expanded", String(OPEN.has(group.key)));
  const name = make("div", "name");
  const counts = countsOf(group.lanes).map(([sign, count]) => `${SIGNS[sign]}\u2009${count}`);
  name.append(
    make("span", "sign", OPEN.has(group.key) ? "▾" : "▸"),
    make("bdi", "", group.title),
    make("span", "counts", [group.lanes.length, ...counts].join("  ")),
  );
  const plot = make("div", "plot");
  if (!OPEN.has(group.key)) plot.append(densityOf(group));
  row.append(name, plot);
  row.setAttribute("aria-label", `${group.title}: ${group.lanes.length} instances; ${countsOf(group.lanes)
    .map(([sign, count]) => `${count} ${sign}`).join(", ") || "none in trouble"}`);
  return row;
}

/** Make the row of one lane. */
function laneRow(lane, index) {
  const row = make("div", "row lane");
  row.setAttribute("role", "treeitem");
  row.setAttribute("aria-level", VIEW.filter === "all" && !VIEW.find ? "2" : "1");
  row.setAttribute("aria-label", `${lane.instance}: ${laneLines(lane).slice(1).flat().filter((text) => text !== "note").join("; ")}`);
  const name = make("div", "name");
  const tone = lane.trouble ? "bad" : lane.sign ? "busy" : "";
  name.append(make("span", `sign ${tone}`, SIGNS[lane.sign]), make("bdi", "", lane.instance));
  if (lane.took > 0) name.append(make("span", "took", secondsText(lane.took)));
  const plot = make("div", "plot");
  lane.spans.forEach((span, number) => {
    const bar = barOf(span);
    bar.number = number;
    if (index === PICTURE.active && number === PICTURE.picked) bar.classList.add("picked");
    plot.append(bar);
  });
  for (const tick of lane.ticks) {
    const sign = place(make("span", "tick", TICKS[tick.kind] || "•"), PICTURE.scale.x(tick.at));
    sign.tick = tick;
    plot.append(sign);
  }
  if (lane.leased !== null && lane.trouble && lane.leased <= DATA.end && !leftBefore(lane)) {
    plot.append(place(make("span", "lease-end"), PICTURE.scale.x(lane.leased)));
  }
  row.append(name, plot);
  return row;
}

/** Whether an instance was reopened before its lease ended. */
const leftBefore = (lane) => lane.spans.some(
  (span) => span.call === "resume" && span.outcome === "answered" && span.to <= lane.leased);

/** Make the bar of one ask. */
function barOf(span) {
  const { scale } = PICTURE;
  const from = scale.x(span.from);
  const to = span.to === null ? scale.pastWidth : scale.x(span.to);
  const thin = span.call === "renew" ? ` thin${TROUBLE.has(span.outcome) ? " trouble" : ""}` : "";
  const bar = place(make("div", `bar ${span.kind}${thin}`), from, Math.max(thin ? 2 : 3, to - from));
  if (to > scale.width - 16) bar.classList.add("turned");
  bar.span = span;
  return bar;
}

// --- density ------------------------------------------------------------------------------------

const KINDS = [...WORST, "abandoned", "waiting", ...DATA.calls.filter((call) => call !== "renew")];

/** Draw how many lanes of a group had which ask under way at every moment, trouble at the bottom. */
function densityOf(group) {
  const { scale } = PICTURE;
  const width = Math.ceil(scale.pastWidth);
  const height = 32;
  const canvas = make("canvas");
  const context = sized(canvas, width, height);
  const counts = densityCounts(group, width);
  const unit = height / group.lanes.length;
  const inks = KINDS.map((kind) => patternOf(context, kind));
  context.fillStyle = ink("line");
  context.fillRect(0, height - 1, width, 1);
  for (let x = 0; x < width; x += 1) {
    let bottom = height;
    KINDS.forEach((kind, index) => {
      const count = counts[index][x];
      if (!count) return;
      const tall = TROUBLE.has(kind) ? Math.max(4, count * unit) : count * unit;
      context.fillStyle = inks[index];
      context.fillRect(x, Math.max(0, bottom - tall), 1, Math.min(tall, bottom));
      bottom -= tall;
    });
  }
  return canvas;
}

/** Return, for every kind and pixel, how many lanes of a group have such an ask under way. */
function densityCounts(group, width) {
  const { scale } = PICTURE;
  const counts = KINDS.map(() => new Int32Array(width + 2));
  for (const lane of group.lanes) {
    for (const span of lane.spans) {
      const index = KINDS.indexOf(span.kind);
      if (index < 0) continue;
      const from = Math.min(width - 1, Math.floor(scale.x(span.from)));
      const to = span.to === null ? width : Math.ceil(scale.x(span.to));
      counts[index][from] += 1;
      counts[index][Math.min(width, Math.max(to, from + 2))] -= 1;
    }
  }
  for (const row of counts) for (let x = 1; x <= width; x += 1) row[x] += row[x - 1];
  return counts;
}

const PATTERNS = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => PATTERNS.clear());

/** Return how a kind is filled on a canvas: as its bars are. */
function patternOf(context, kind) {
  const known = PATTERNS.get(kind);
  if (known) return known;
  const second = ink(`${kind}2`);
  let fill = ink(kind) || ink("renew");
  if (second) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const paint = tile.getContext("2d");
    paint.fillStyle = second;
    paint.fillRect(0, 0, 6, 6);
    paint.fillStyle = fill;
    if (kind === "refused") {
      paint.fillRect(0, 0, 6, 6);
      paint.fillStyle = second;
      paint.fillRect(2, 2, 2, 2);
    } else if (kind === "unanswered") paint.fillRect(0, 0, 3, 6);
    else if (kind === "abandoned" || kind === "waiting") paint.fillRect(0, 0, 6, 2);
    else for (let y = 0; y < 6; y += 1) for (let x = 0; x < 4; x += 1) paint.fillRect((x + 6 - y) % 6, y, 1, 1);
    fill = context.createPattern(tile, "repeat");
  }
  PATTERNS.set(kind, fill);
  return fill;
}

/** Return what is to be said about a group at a moment. */
function groupLines(group, at) {
  const lines = [group.title, `${group.lanes.length} instances`];
  if (at !== null) {
    const now = new Map();
    for (const lane of group.lanes) {
      const under = lane.spans.find(
        (span) => span.count === 1 && span.call !== "renew" && span.from <= at && (span.to === null || span.to > at));
      const word = under ? `under way: ${under.call}, which came to ${under.outcome}` : "nothing under way";
      now.set(word, (now.get(word) || 0) + 1);
    }
    lines.push(`at ${since(at)}`);
    for (const [word, count] of [...now].sort((a, b) => b[1] - a[1])) lines.push(`${count} ${word}`);
  }
  for (const [sign, count] of countsOf(group.lanes)) lines.push(`${SIGNS[sign]} ${count} ${sign} in the end or on the way`);
  return lines;
}
