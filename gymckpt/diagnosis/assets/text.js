"use strict";
/* Times in words, elements without markup, and colours as the page's theme has them. */

const DATA = JSON.parse(document.getElementById("data").textContent);

/** Return a duration as people write it; the Python side writes the same. */
function secondsText(seconds) {
  if (!Number.isFinite(seconds)) return "?";
  const sign = seconds < 0 ? "-" : "";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.0995) return `${sign}${Math.floor(size * 1000 + 0.5)} ms`;
  if (size < 9.995) return `${sign}${(Math.floor(size * 100 + 0.5) / 100).toFixed(2)} s`;
  if (size < 59.95) return `${sign}${(Math.floor(size * 10 + 0.5) / 10).toFixed(1)} s`;
  const two = (value) => String(value).padStart(2, "0");
  const whole = Math.floor(size + 0.5);
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  const minutes = Math.floor(size / 60 + 0.5);
  if (minutes < 2880) return `${sign}${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  const hours = Math.floor(size / 3600 + 0.5);
  return `${sign}${Math.floor(hours / 24)} days ${hours % 24} h`;
}

/** Return the time of day of a moment, in UTC. */
function clockText(ts) {
  const moment = new Date(ts * 1000);
  return Number.isNaN(moment.getTime()) ? "" : `${moment.toISOString().slice(11, 19)} UTC`;
}

/** Return a moment with its date, in UTC. */
function dateText(ts) {
  const moment = new Date(ts * 1000);
  return Number.isNaN(moment.getTime()) ? "" : moment.toISOString().slice(0, 19).replace("T", " ");
}

/** Make an element; text from outside can only become text. */
function make(tag, kinds, text) {
  const element = document.createElement(tag);
  if (kinds) element.className = kinds;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Set the left edge and the width of an element, in pixels. */
function place(element, left, width) {
  element.style.left = `${left}px`;
  if (width !== undefined) element.style.width = `${width}px`;
  return element;
}

/** Return a colour of the present theme. */
function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Call back once per frame at the most, however often it is asked for. */
function perFrame(work) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      work();
    });
  };
}

/** Call back when the theme or the width of an element changes. */
function onChange(element, work) {
  const later = perFrame(work);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  new ResizeObserver(later).observe(element);
}

/** Give a canvas its size on this screen and return what draws on it. */
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

/** The one box in which details appear, near to what they are about. */
const TIP = {
  box: document.getElementById("tip"),
  say: document.getElementById("say"),
  /** Show lines: the first is the title; a line is a text, or a text with its class. */
  show(lines, x, y, aloud) {
    this.box.replaceChildren(
      ...lines.map((line, index) => {
        const [text, kind] = Array.isArray(line) ? line : [line, ""];
        return make(index ? "p" : "b", kind, text);
      }),
    );
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = Math.max(8, Math.min(x + 14, innerWidth - width - 8));
    const below = y + 18 + height < innerHeight - 8;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${Math.max(8, below ? y + 18 : y - height - 12)}px`;
    if (aloud) this.say.textContent = lines.map((line) => (Array.isArray(line) ? line[0] : line)).join(". ");
  },
  hide() {
    this.box.hidden = true;
  },
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") TIP.hide();
});
