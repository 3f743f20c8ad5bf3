// Flame graph: functions in which the tasks spend their time, outermost on top. Sampled while the page is open.

import { html, useEffect, useState } from "./vendor/htm-preact.mjs";
import { percent } from "./format.mjs";
import { send } from "./live.mjs";

const KINDS = [["full", "All samples"], ["on_cpu", "On the CPU"], ["off_cpu", "Off the CPU"]];
const RANGES = [[10, "Last 10 s"], [60, "Last minute"], [300, "Last 5 minutes"]];
const ROW = 20, MOST_ROWS = 120;

export function Flame({ page, job, argument }) {
  const [task, setTask] = useState(argument ?? "");
  const [kind, setKind] = useState("full");
  const [seconds, setSeconds] = useState(60);
  const [compare, setCompare] = useState(false);
  const [focus, setFocus] = useState([]);
  const [{ now, before, error }, set] = useState({});
  const vertex = page.vertices.find((v) => String(v.number) === task);
  const ended = page.job.state !== "RUNNING";
  useEffect(() => {
    let closed = false, timer = null;
    set({});
    const path = `jobs/${encodeURIComponent(job)}/${vertex ? `vertices/${encodeURIComponent(vertex.id)}/` : ""}flamegraph?type=${kind}`;
    const ask = async () => {
      try {
        const told = await send("GET", `${path}&from=${Date.now() - seconds * 1000}&to=${Date.now() + 5000}`);
        const to = Date.now() - seconds * 1000;
        const earlier = compare ? await send("GET", `${path}&from=${to - seconds * 1000}&to=${to}`) : null;
        if (!closed) set({ now: told, before: earlier, error: null });
      } catch (problem) {
        if (!closed) set((s) => ({ ...s, error: problem.message }));
      }
      if (!closed) timer = setTimeout(ask, 2000);
    };
    if (!ended) ask();
    return () => { closed = true; clearTimeout(timer); };
  }, [job, vertex?.id, kind, seconds, compare, ended]);
  const choose = (set, of) => (event) => { setFocus([]); set(of(event.target.value)); };
  const share = now?.data && vertex && page.vertices.length ? now.data.value / Math.max(1, now.moments) : null;
  return html`<p class="choices">
      <label>Task <select onChange=${choose(setTask, String)} value=${task}>
        <option value="">all, and other threads</option>
        ${page.vertices.map((v) => html`<option value=${String(v.number)}>${v.name}</option>`)}</select></label>
      <label>Samples <select onChange=${choose(setKind, String)} value=${kind}>${KINDS.map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
      <label>Time <select onChange=${choose(setSeconds, Number)} value=${seconds}>${RANGES.map(([s, title]) => html`<option value=${s}>${title}</option>`)}</select></label>
      <label><input type="checkbox" checked=${compare} onChange=${() => setCompare(!compare)} /> Compare with the time before</label>
      ${focus.length > 0 && html`<button onClick=${() => setFocus([])}>Whole graph</button>`}</p>
    ${error && html`<p class="lost" role="alert">${error}</p>`}
    ${ended ? html`<p class="muted">The job does not run.</p>`
      : !now?.data ? html`<p class="muted">${error ? "" : "Stacks are being sampled…"}</p>`
      : !now.data.value ? html`<p class="muted">No samples: ${idle(page, vertex)}</p>`
      : html`<p class="muted">${now.data.value} samples${share != null ? `, in ${percent(share)} of the moments` : ""}. The wider a function, the more time in it; grey is the engine.
          ${compare && (before?.data ? " Red: more time than before, blue: less." : " Nothing is known of the time before yet.")}</p>
        <${Tree} root=${now.data} before=${compare ? before?.data : null} focus=${focus} setFocus=${setFocus} />`}`;
}

// The reason for which there are no samples: those of a task that waits for records are not taken.
function idle(page, vertex) {
  const looked = vertex ? [vertex] : page.vertices;
  if (looked.length && looked.every((v) => v.status !== "RUNNING")) return `${vertex ? "the task does" : "the tasks do"} not run.`;
  return `${vertex ? "the task" : "the job"} waits for records all the time.`;
}

function find(root, path) {
  let node = root;
  for (const name of path) {
    const child = node.children?.find((c) => c.name === name);
    if (!child) return null;
    node = child;
  }
  return node;
}

function bars(root, path) {
  const found = [], top = find(root, path) ?? root, start = top === root ? [] : path;
  const todo = [[top, start.length ? 0 : -1, 0, start]];
  while (todo.length) {
    const [node, row, left, names] = todo.pop();
    if (row >= 0) found.push({ node, row, left, width: node.value / top.value, names });
    let at = left;
    for (const child of node.children ?? []) {
      const width = child.value / top.value;
      if (width >= 0.002 && row + 1 < MOST_ROWS) todo.push([child, row + 1, at, [...names, child.name]]);
      at += width;
    }
  }
  return found.sort((one, other) => one.row - other.row || one.left - other.left);
}

function hue(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return sum % 50;
}

function colour(bar, root, before) {
  if (before) {
    const was = find(before, bar.names);
    const change = bar.node.value / root.value - (was && before.value ? was.value / before.value : 0);
    const strength = Math.min(1, Math.abs(change) * 4);
    return strength < 0.04 ? "flame-same" : change > 0 ? `flame-more-${Math.ceil(strength * 3)}` : `flame-less-${Math.ceil(strength * 3)}`;
  }
  return bar.node.name.startsWith("sluiceway") ? "flame-engine" : `flame-${hue(bar.node.name) % 5}`;
}

function Tree({ root, before, focus, setFocus }) {
  const shown = bars(root, focus), rows = 1 + Math.max(...shown.map((b) => b.row));
  return html`<div class="flame" role="group" aria-label="Flame graph" style=${{ height: rows * ROW + "px" }}>
    ${shown.map((bar) => {
      const told = `${bar.node.name}: ${bar.node.value} samples, ${percent(bar.node.value / root.value)}`;
      return html`<button key=${bar.names.join("\n")} class=${colour(bar, root, before)} title=${told} aria-label=${told}
        style=${{ left: 100 * bar.left + "%", width: 100 * bar.width + "%", top: bar.row * ROW + "px" }}
        onClick=${() => setFocus(bar.names)}>${bar.width > 0.02 ? bar.node.name.split(" (")[0] : ""}</button>`;
    })}</div>`;
}
