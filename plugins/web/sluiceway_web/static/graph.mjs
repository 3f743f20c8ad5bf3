// The graph of a job: vertices in layers from left to right, with the shares of their time and rates on edges.

import { html } from "./vendor/htm-preact.mjs";
import { count, percent } from "./format.mjs";

const WIDTH = 220, HEIGHT = 86, GAP_X = 110, GAP_Y = 26, MARGIN = 8, BAR = WIDTH - 20;

export function layers(vertices, edges) {
  const depth = new Map(vertices.map((v) => [v.number, 0]));
  // Vertices are in topological order, and feedback edges do not count.
  for (const v of vertices) {
    for (const e of edges) {
      if (!e.feedback && e.target === v.number) {
        depth.set(v.number, Math.max(depth.get(v.number), depth.get(e.source) + 1));
      }
    }
  }
  const rows = new Map();
  const place = new Map();
  for (const v of vertices) {
    const column = depth.get(v.number);
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    place.set(v.number, { column, row });
  }
  const most = Math.max(1, ...rows.values());
  for (const [number, { column, row }] of place) {
    const shift = ((most - rows.get(column)) * (HEIGHT + GAP_Y)) / 2;
    place.set(number, { x: MARGIN + column * (WIDTH + GAP_X), y: MARGIN + shift + row * (HEIGHT + GAP_Y) });
  }
  const columns = rows.size || 1;
  return {
    place,
    width: 2 * MARGIN + columns * WIDTH + (columns - 1) * GAP_X,
    height: 2 * MARGIN + most * HEIGHT + (most - 1) * GAP_Y + 14,
  };
}

function clipped(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function Box({ vertex, at, job, cause }) {
  let x = at.x + 10;
  const bars = ["busy", "blocked", "waiting", "idle"].map((name) => {
    const width = BAR * (vertex.shares[name] ?? 0);
    const bar = html`<rect class=${name + "bar"} fill=${name === "waiting" ? "url(#waiting)" : null} x=${x} y=${at.y + 46} width=${width} height="8" />`;
    x += width;
    return bar;
  });
  const most = vertex.parallelism > 1 ? " (max)" : "";
  const told = `${vertex.description}, ${vertex.parallelism} subtask${most && "s"}: ` + ["busy", "blocked", "waiting"].map(
    (name) => `${name} ${percent(vertex[name])}${most && ` in the subtask with most, ${percent(vertex.shares[name])} on average`}`).join("; ");
  return html`<a href=${`#/job/${job}/task/${vertex.number}`} aria-label=${told}>
    <title>${told}</title>
    <rect class=${"box" + (cause ? " cause" : "")} x=${at.x} y=${at.y} width=${WIDTH} height=${HEIGHT} rx="6" />
    <text x=${at.x + 10} y=${at.y + 20}>${clipped(vertex.name, 28)}</text>
    <text class="small" x=${at.x + 10} y=${at.y + 37}>${vertex.parallelism} ×, ${vertex.status.toLowerCase()}${cause ? " — the cause" : ""}</text>
    ${bars}
    <text class="small" x=${at.x + 10} y=${at.y + 72}>${most && "max: "}busy ${percent(vertex.busy)} · blocked ${percent(vertex.blocked)}</text>
  </a>`;
}

export function Graph({ page, job }) {
  const { vertices, edges, findings } = page;
  if (!vertices.length) return html`<p class="muted">The graph of this job is not known any more.</p>`;
  const { place, width, height } = layers(vertices, edges);
  const byNumber = new Map(vertices.map((v) => [v.number, v]));
  const causes = new Set(findings.slice(0, 1).filter((f) => f.severity === "cause").map((f) => f.vertex));
  return html`<div class="graph" tabindex="0" role="group" aria-label="Graph of the job">
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
      <defs><pattern id="waiting" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="stripe" x1="0" y1="0" x2="0" y2="6" /></pattern></defs>
      ${edges.map((edge) => {
        const from = place.get(edge.source), to = place.get(edge.target);
        const x1 = from.x + WIDTH, y1 = from.y + HEIGHT / 2, x2 = to.x, y2 = to.y + HEIGHT / 2, half = (x2 - x1) / 2;
        const path = edge.feedback
          ? `M${x1 - WIDTH / 2} ${from.y + HEIGHT} C${x1} ${height},${x2} ${height},${x2 + WIDTH / 2} ${to.y + HEIGHT}`
          : `M${x1} ${y1} C${x1 + half} ${y1},${x2 - half} ${y2},${x2} ${y2}`;
        const rate = byNumber.get(edge.source).out_per_s;
        // The middle of an edge past other layers lies on a box or on the text of another edge.
        const long = x2 - x1 > GAP_X + 1;
        return html`<path class="edge" d=${path}><title>${`${count(rate)}/s, ${edge.text}`}</title></path>
          ${!edge.feedback && !long && html`<text class="small" text-anchor="middle" x=${(x1 + x2) / 2} y=${(y1 + y2) / 2 - 6}>${count(rate)}/s</text>
          <text class="small" text-anchor="middle" x=${(x1 + x2) / 2} y=${(y1 + y2) / 2 + 14}>${clipped(edge.text, 16)}</text>`}`;
      })}
      ${vertices.map((v) => html`<${Box} vertex=${v} at=${place.get(v.number)} job=${job} cause=${causes.has(v.number)} />`)}
    </svg>
  </div>
  <${Legend} vertices=${vertices} />`;
}

export function Legend({ vertices }) {
  return html`<p class="legend"><span><i class="busy"></i>busy</span><span><i class="blocked"></i>blocked (back-pressured)</span>
    <span><i class="waiting"></i>waiting for other tasks of the process</span><span><i class="idle"></i>idle</span>
    ${vertices.some((v) => v.parallelism > 1) && html`<span>Bars are means over the subtasks of a task; (max) is the subtask with most.</span>`}</p>`;
}
