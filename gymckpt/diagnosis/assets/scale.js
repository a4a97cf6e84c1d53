/* The time axis: from seconds to pixels, state by state, and back. */

const AHEAD_SHARE = 0.2;

/**
 * The axis over the operation's states. To scale, a state is as wide as it was long. Fitted, each is
 * as wide as the root of its length, so that two seconds beside twenty minutes can still be read.
 * What is ahead of an unfinished operation is never to scale: its lines stand side by side.
 */
class Scale {
  constructor(data, width, fitted) {
    const ahead = data.marks.filter((mark) => mark[0] > data.end);
    this.ahead = [...new Set(ahead.map((mark) => mark[0]))].sort((a, b) => a - b);
    this.width = width;
    this.end = data.end;
    this.pastWidth = this.ahead.length ? width * (1 - AHEAD_SHARE) : width;
    const spans = data.states.map(([name, , from, to]) => ({ name, from, to: to === null ? data.end : to }));
    if (!spans.length) spans.push({ name: "", from: 0, to: data.end });
    const lengths = spans.map(({ from, to }) => Math.max(0, to - from));
    const whole = lengths.reduce((sum, length) => sum + length, 0);
    let weights = whole > 0 ? lengths : lengths.map(() => 1);
    if (fitted && whole > 0) {
      const roots = lengths.map((length) => Math.sqrt(length));
      const least = 0.07 * roots.reduce((sum, root) => sum + root, 0);
      weights = roots.map((root, index) => (lengths[index] > 0 ? Math.max(root, least) : 0));
    }
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    let left = 0;
    this.parts = spans.map((span, index) => {
      const wide = (weights[index] / total) * this.pastWidth;
      const part = { ...span, left, width: wide };
      left += wide;
      return part;
    });
  }

  /** Whether some state that lasted is too narrow to be read when drawn to scale. */
  static wantsFitting(data) {
    const scale = new Scale(data, 1000, false);
    return scale.parts.some(({ from, to, width }) => to > from && width < 55);
  }

  /** Return where a moment is, in pixels. */
  x(at) {
    if (at > this.end && this.ahead.length) {
      const number = this.ahead.indexOf(at);
      const step = (this.width - this.pastWidth) / (this.ahead.length + 1);
      return number < 0 ? this.width : this.pastWidth + step * (number + 1);
    }
    const parts = this.parts;
    let low = 0;
    let high = parts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (parts[middle].from <= at) low = middle;
      else high = middle - 1;
    }
    const { from, to, left, width } = parts[low];
    const share = to > from ? (at - from) / (to - from) : 0;
    return left + width * Math.max(0, Math.min(1, share));
  }

  /** Return which moment is at a pixel, or null where that is ahead. */
  at(x) {
    if (x > this.pastWidth) return null;
    let found = this.parts[0];
    for (const part of this.parts) if (part.left <= x && part.width > 0) found = part;
    const share = found.width > 0 ? Math.max(0, Math.min(1, (x - found.left) / found.width)) : 0;
    return found.from + share * (found.to - found.from);
  }

  /** Return moments to be labelled: the ends, the states' beginnings, round times in wide ones. */
  times() {
    const wanted = [{ at: this.parts[0].from, weight: 3 }, { at: this.end, weight: 3 }];
    for (const { from, to, width } of this.parts) {
      if (width > 0) wanted.push({ at: from, weight: 2 });
      const room = Math.floor(width / 80);
      if (room < 1 || to <= from) continue;
      const step = roundStep((to - from) / room);
      for (let at = Math.ceil(from / step) * step; at < to; at += step) wanted.push({ at, weight: 1 });
    }
    const kept = [];
    for (const { at } of wanted.sort((a, b) => b.weight - a.weight || a.at - b.at)) {
      const x = this.x(at);
      const text = axisText(at, this.end);
      const wide = text.length * 6.4 + 12;
      const edge = x < wide / 2 ? "first" : x > this.width - wide / 2 ? "last" : "";
      const from = edge === "first" ? x : edge === "last" ? x - wide : x - wide / 2;
      if (kept.every((other) => other.from + other.wide < from || other.from > from + wide)) {
        kept.push({ x, text, edge, from, wide });
      }
    }
    return kept;
  }
}

/** Return a moment as it stands on an axis that ends at `end`: short. */
function axisText(at, end) {
  if (end < 60) return `${Number(at.toFixed(at < 10 && end < 30 ? 2 : 1))} s`;
  const tenths = end < 600 && at % 1 > 0.05 && at % 1 < 0.95;
  const whole = tenths ? Math.floor(at) : Math.round(at);
  const two = (value) => String(value).padStart(2, "0");
  const tail = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}${tenths ? `.${Math.floor((at % 1) * 10)}` : ""}`;
  return whole >= 3600 || end >= 3600 ? `${Math.floor(whole / 3600)}:${tail}` : tail.replace(/^0/, "");
}

/** Return a round number of seconds that is at least `seconds`. */
function roundStep(seconds) {
  const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
  const found = steps.find((step) => step >= seconds);
  return found === undefined ? Math.ceil(seconds / 3600) * 3600 : found;
}
