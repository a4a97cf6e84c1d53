/* Pointer, keyboard and controls of the picture. */

const rowAt = (event) => event.target.closest(".row");

/** Open or close a group. */
function toggle(group) {
  if (!OPEN.delete(group.key)) OPEN.add(group.key);
  layOut();
}

/** Show what is under the pointer. */
function point(event, aloud) {
  const row = rowAt(event);
  const x = event.clientX - ROWS.getBoundingClientRect().left - PICTURE.left;
  moveCursor(x >= 0 && x <= PICTURE.scale.pastWidth ? x : null);
  if (!row) {
    TIP.hide();
    return;
  }
  const { group, lane } = PICTURE.rows[row.index];
  let lines;
  if (event.target.span) lines = spanLines(event.target.span);
  else if (event.target.tick) lines = tickLines(event.target.tick);
  else if (group) lines = groupLines(group, x >= 0 ? PICTURE.scale.at(x) : null);
  else lines = nearest(lane, x, event) || laneLines(lane);
  TIP.show(lines, event.clientX, event.clientY, aloud);
}

/** Return what is to be said about the bar beside the pointer, for those too narrow to hit. */
function nearest(lane, x, event) {
  if (!event.target.classList.contains("plot")) return null;
  const { scale } = PICTURE;
  const near = lane.spans.map((span) => {
    const from = scale.x(span.from);
    const to = span.to === null ? scale.pastWidth : scale.x(span.to);
    return [Math.max(from - x, x - to, 0), span];
  }).filter(([off, span]) => off < 6 && span.call !== "renew").sort((a, b) => a[0] - b[0]);
  return near.length ? spanLines(near[0][1]) : null;
}

ROWS.addEventListener("pointermove", (event) => point(event, false));
ROWS.addEventListener("pointerleave", () => {
  TIP.hide();
  moveCursor(null);
});
ROWS.addEventListener("click", (event) => {
  const row = rowAt(event);
  if (!row) return;
  PICTURE.active = row.index;
  PICTURE.picked = event.target.number ?? -1;
  if (PICTURE.rows[row.index].group) toggle(PICTURE.rows[row.index].group);
  else drawRows();
  point(event, true);
});
ROWS.addEventListener("scroll", perFrame(drawRows), { passive: true });
HEAD.addEventListener("pointermove", (event) => {
  const band = event.target.closest(".band");
  if (band) TIP.show(band.tip, event.clientX, event.clientY, false);
  else TIP.hide();
});
HEAD.addEventListener("pointerleave", () => TIP.hide());

// --- keyboard -----------------------------------------------------------------------------------

/** Make a row the active one, bring it into view and say what it is. */
function activate(index, picked) {
  const { rows, tops } = PICTURE;
  if (!rows.length) return;
  PICTURE.active = Math.max(0, Math.min(rows.length - 1, index));
  PICTURE.picked = picked;
  const top = tops[PICTURE.active];
  const bottom = top + heightOf(rows[PICTURE.active]);
  if (top < ROWS.scrollTop) ROWS.scrollTop = top;
  if (bottom > ROWS.scrollTop + ROWS.clientHeight) ROWS.scrollTop = bottom - ROWS.clientHeight;
  drawRows();
  ROWS.setAttribute("aria-activedescendant", `row-${PICTURE.active}`);
  tell();
}

/** Show and say the active row, or the bar that is picked in it. */
function tell() {
  const { group, lane } = PICTURE.rows[PICTURE.active];
  const element = byId(`row-${PICTURE.active}`);
  const bar = [...element.querySelectorAll(".bar")].find((one) => one.number === PICTURE.picked);
  const box = (bar || element).getBoundingClientRect();
  const lines = group ? groupLines(group, null) : bar ? spanLines(bar.span) : laneLines(lane);
  TIP.show(lines, bar ? box.left : box.left + PICTURE.left, box.bottom - 10, true);
}

/** Go to another bar of the active lane. */
function pick(step) {
  const { lane } = PICTURE.rows[PICTURE.active] || {};
  if (lane && lane.spans.length) {
    const next = PICTURE.picked < 0 && step < 0 ? lane.spans.length - 1 : PICTURE.picked + step;
    activate(PICTURE.active, Math.max(0, Math.min(lane.spans.length - 1, next)));
  }
}

const KEYS = {
  ArrowDown: () => activate(PICTURE.active + 1, -1),
  ArrowUp: () => activate(Math.max(0, PICTURE.active - 1), -1),
  PageDown: () => activate(PICTURE.active + 15, -1),
  PageUp: () => activate(Math.max(0, PICTURE.active - 15), -1),
  Home: () => activate(0, -1),
  End: () => activate(PICTURE.rows.length - 1, -1),
  ArrowRight: () => sideways(1),
  ArrowLeft: () => sideways(-1),
  Enter: () => open(),
  " ": () => open(),
};

/** Open or close a group, or go along a lane. */
function sideways(step) {
  const { group } = PICTURE.rows[PICTURE.active] || {};
  if (!group) pick(step);
  else if (OPEN.has(group.key) !== step > 0) open();
}

/** Open or close the active group. */
function open() {
  const { group } = PICTURE.rows[PICTURE.active] || {};
  if (!group) return;
  toggle(group);
  activate(PICTURE.active, -1);
}

ROWS.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
ROWS.addEventListener("blur", () => TIP.hide());

// --- controls -----------------------------------------------------------------------------------

/** Take a change of the view and draw anew from the top. */
function look(change) {
  Object.assign(VIEW, change);
  PICTURE.active = -1;
  PICTURE.picked = -1;
  ROWS.scrollTop = 0;
  ROWS.removeAttribute("aria-activedescendant");
  TIP.hide();
  layOut();
}

for (const [name, keep] of Object.entries(KEEPS)) {
  const input = document.querySelector(`input[name=filter][value=${name}]`);
  const count = LANES.filter(keep).length;
  input.nextElementSibling.textContent += ` ${count}`;
  input.disabled = name !== "all" && count === 0;
}
document.querySelector(`input[name=scale][value=${VIEW.fitted ? "fitted" : "true"}]`).checked = true;
byId("controls").addEventListener("change", (event) => {
  const { name, value } = event.target;
  if (name === "scale") look({ fitted: value === "fitted" });
  else if (name === "filter" || name === "order") look({ [name]: value });
});
byId("find").addEventListener("input", (event) => look({ find: event.target.value.trim().toLowerCase() }));

byId("lanes").hidden = false;
onChange(FRAME, layOut);
layOut();
document.documentElement.dataset.drawn = "yes";
