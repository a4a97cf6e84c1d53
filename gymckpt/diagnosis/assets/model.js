/* The lanes as objects: what each shows, how they are grouped, which of them a filter keeps. */

const TROUBLE = new Set(["failed", "refused", "unanswered", "gone", "lapsed"]);
const WORST = ["gone", "lapsed", "failed", "unanswered", "refused"];
const SIGNS = { failed: "✕", refused: "!", unanswered: "?", gone: "†", lapsed: "⊘", waiting: "…", slow: "◷", "": "" };
const TICKS = { stale: "◇", confirm: "✓", lapse: "⊘", die: "†" };
const GROUP_MAX = 100;
const FIRST_MAX = 8;
const SMALL = 60;

const textAt = (index) => (index < 0 ? "" : DATA.texts[index]);

const LANES = DATA.lanes.map(([instance, leased, slow, spans, ticks], order) => {
  const lane = { instance, leased, order, slow: slow.map((call) => DATA.calls[call]) };
  lane.spans = spans.map(([call, ask, from, to, outcome, note, count]) => {
    const span = { lane, call: DATA.calls[call], ask, from, to, count, note: textAt(note) };
    span.outcome = DATA.outcomes[outcome];
    span.seconds = Math.max(0, (to === null ? DATA.end : to) - from);
    const plain = span.outcome === "answered" || span.outcome === "idle";
    span.kind = span.outcome === "asked" ? "waiting" : plain ? span.call : span.outcome;
    return span;
  });
  lane.ticks = ticks.map(([at, kind, call, ask, note]) => ({
    lane, at, kind, ask, call: DATA.calls[call], note: textAt(note),
  }));
  const waits = lane.spans.filter((span) => span.call !== "renew" && span.outcome !== "abandoned");
  lane.took = Math.max(0, ...waits.map((span) => span.seconds));
  const bad = new Set(lane.spans.map((span) => span.outcome));
  for (const tick of lane.ticks) bad.add({ lapse: "lapsed", die: "gone" }[tick.kind]);
  lane.trouble = WORST.find((outcome) => bad.has(outcome)) || "";
  lane.waiting = bad.has("asked");
  lane.sign = lane.trouble || (lane.waiting ? "waiting" : lane.slow.length ? "slow" : "");
  lane.weight = (lane.trouble ? 100 - WORST.indexOf(lane.trouble) : lane.waiting ? 50 : lane.slow.length ? 20 : 0);
  lane.words = [instance, ...lane.spans.map((span) => span.note), ...lane.ticks.map((tick) => tick.note)]
    .join("\n").toLowerCase();
  return lane;
});

const byWorst = (a, b) => b.weight - a.weight || b.took - a.took || a.order - b.order;
const byName = (a, b) => a.order - b.order;

const KEEPS = {
  all: () => true,
  trouble: (lane) => lane.trouble !== "",
  slow: (lane) => lane.slow.length > 0,
  waiting: (lane) => lane.waiting,
};

/** Return the groups of all lanes: by shard, and large shards in ranges of their replicas. */
function grouped() {
  const shards = new Map();
  for (const lane of LANES) {
    const cut = lane.instance.lastIndexOf("/");
    const shard = cut > 0 ? lane.instance.slice(0, cut) : "";
    if (!shards.has(shard)) shards.set(shard, []);
    shards.get(shard).push(lane);
  }
  const groups = [];
  for (const [shard, lanes] of shards) {
    const parts = Math.ceil(lanes.length / GROUP_MAX);
    const size = Math.ceil(lanes.length / parts);
    for (let from = 0; from < lanes.length; from += size) {
      const some = lanes.slice(from, from + size);
      const range = parts > 1 ? ` ${shortName(some[0])}–${shortName(some[some.length - 1])}` : "";
      groups.push({ key: `${shard} ${from}`, title: `${shard || "instances"}${range}`, lanes: some });
    }
  }
  return groups;
}

const shortName = (lane) => lane.instance.slice(lane.instance.lastIndexOf("/") + 1).replace(/^replica-/, "");

const GROUPS = grouped();
const OPEN = new Set(LANES.length <= SMALL ? GROUPS.map((group) => group.key) : ["first"]);

/** Return the rows to be shown: groups with their lanes, or only lanes where a filter is on. */
function rowsFor(view) {
  const order = view.order === "name" ? byName : byWorst;
  const kept = LANES.filter((lane) => KEEPS[view.filter](lane) && (!view.find || lane.words.includes(view.find)));
  if (view.filter !== "all" || view.find) {
    return { kept: kept.length, rows: kept.sort(order).map((lane) => ({ lane, id: `lane-${lane.order}` })) };
  }
  const rows = [];
  const add = (group) => {
    rows.push({ group, id: `group-${group.key}` });
    if (!OPEN.has(group.key)) return;
    const inside = [...group.lanes].sort(order);
    rows.push(...inside.map((lane) => ({ lane, id: `${group.key}-lane-${lane.order}`, inside: group })));
  };
  if (LANES.length > SMALL) {
    const first = [...LANES].sort(byWorst).slice(0, FIRST_MAX).filter((lane) => lane.weight > 0);
    if (first.length) add({ key: "first", title: "look here first", lanes: first });
  }
  GROUPS.forEach(add);
  return { kept: kept.length, rows };
}

/** Return how many lanes of a group are in what kind of trouble, in words. */
function countsOf(lanes) {
  const counts = new Map();
  for (const lane of lanes) if (lane.sign) counts.set(lane.sign, (counts.get(lane.sign) || 0) + 1);
  const order = [...WORST, "waiting", "slow"];
  return order.filter((sign) => counts.has(sign)).map((sign) => [sign, counts.get(sign)]);
}

const since = (at) => `${secondsText(at)} (${clockText(DATA.opened + at)})`;

/** Return what is to be said about one ask. */
function spanLines(span) {
  const { lane } = span;
  if (span.count > 1) {
    return [lane.instance, `${span.call}: ${span.count} rounds answered, from ${since(span.from)} to ${since(span.to)}`];
  }
  const wait = span.to === null ? `waited for since ${secondsText(span.seconds)}` : `after ${secondsText(span.seconds)}`;
  const outcome = { asked: "not answered yet", abandoned: "no longer waited for" }[span.outcome] || span.outcome;
  const lines = [lane.instance, `${span.call}, ask ${span.ask}: ${outcome}, ${wait}`, `asked at ${since(span.from)}`];
  if (span.note) lines.push([span.note, "note"]);
  const median = DATA.medians[span.call];
  if (lane.slow.includes(span.call) && median > 0) {
    lines.push(`slow: ${(span.seconds / median).toFixed(1)} times the median of ${span.call}, ${secondsText(median)}`);
  }
  return lines;
}

/** Return what is to be said about something that came afterwards. */
function tickLines(tick) {
  const words = {
    stale: "a reply came that no longer counts", confirm: "a late answer confirms it",
    lapse: "never confirmed, but its lease has passed", die: "the actor is dead",
  };
  const lines = [tick.lane.instance, `${tick.call}, ask ${tick.ask}: ${words[tick.kind] || tick.kind}`, `at ${since(tick.at)}`];
  if (tick.note) lines.push([tick.note, "note"]);
  return lines;
}

/** Return what is to be said about an instance as a whole. */
function laneLines(lane) {
  const lines = [lane.instance];
  for (const span of lane.spans) {
    if (span.call === "renew" && span.outcome === "answered") {
      lines.push(`renew: ${span.count} answered`);
      continue;
    }
    const outcome = { asked: "not answered yet", abandoned: "no longer waited for" }[span.outcome] || span.outcome;
    lines.push(`${span.call}${span.ask > 1 ? `, ask ${span.ask}` : ""}: ${outcome}, ${secondsText(span.seconds)}`);
    if (span.note) lines.push([span.note, "note"]);
  }
  for (const tick of lane.ticks) lines.push(tickLines(tick)[1]);
  if (lane.leased !== null) lines.push(`lease acknowledged until ${since(lane.leased)}`);
  return lines.length > 1 ? lines : [...lines, "nothing was sent to it"];
}
