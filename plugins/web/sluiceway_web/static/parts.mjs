// Small parts that pages share.

import { html } from "./vendor/htm-preact.mjs";
import { percent } from "./format.mjs";

export function State({ state }) {
  return html`<span class=${"state " + state}>${state}</span>`;
}

export function Findings({ findings, vertices, job }) {
  return html`<div role="status">${findings.map((f) => html`<p class=${"finding " + f.severity}>${linked(f, vertices, job)}</p>`)}</div>`;
}

// The sentence of a finding with links: from the task to its page, from the function to the flame graph, and so on.
function linked(finding, vertices, job) {
  const vertex = finding.vertex == null ? null : vertices.find((v) => v.number === finding.vertex);
  if (!vertex) return finding.text;
  const place = `#/job/${encodeURIComponent(job)}/`;
  const links = [[vertex.name, `task/${vertex.number}`], ...vertex.steps.map((s) => [s.name, `task/${vertex.number}`]), [finding.key, `task/${vertex.number}`], [finding.split, "late"], [finding.function, `flame/${vertex.number}`]];
  const parts = [];
  let rest = finding.text;
  // Longest first: a name may be a part of another one.
  for (;;) {
    const [at, text, to] = links.filter(([text]) => text).map(([text, to]) => [rest.indexOf(text), text, to]).filter(([at]) => at >= 0)
      .sort((a, b) => a[0] - b[0] || b[1].length - a[1].length)[0] ?? [-1];
    if (at < 0) return [...parts, rest];
    parts.push(rest.slice(0, at), html`<a href=${place + to}>${text}</a>`);
    rest = rest.slice(at + text.length);
    links.splice(links.findIndex((link) => link[0] === text), 1);
  }
}

export function Shares({ of }) {
  const told = ["busy", "blocked", "waiting", "idle"].map((name) => `${name} ${percent(of[name])}`).join(", ");
  return html`<div class="shares" role="img" aria-label=${told} title=${told}>
    ${["busy", "blocked", "waiting", "idle"].map((name) => html`<i class=${name} style=${{ width: 100 * (of[name] ?? 0) + "%" }}></i>`)}
  </div>`;
}

export function Sparkline({ values }) {
  if (!values || values.length < 2) return html`<span class="muted">–</span>`;
  const most = Math.max(...values, 1), step = 120 / (values.length - 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(26 - (24 * v) / most).toFixed(1)}`).join(" ");
  return html`<svg width="120" height="28" role="img" aria-label=${"records per second over the last " + values.length + " seconds"}>
    <polyline class="spark" points=${points} /></svg>`;
}

// Line of the last values, from 0; least is the smallest top of the picture.
export function Trend({ values, label, least }) {
  if (!values || values.length < 2) return html`<span class="muted">–</span>`;
  const most = Math.max(...values, least ?? 0) || 1, step = 90 / (values.length - 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(26 - (24 * v) / most).toFixed(1)}`).join(" ");
  return html`<svg width="90" height="28" role="img" aria-label=${label}><polyline class="spark" points=${points} /></svg>`;
}

// Lines over time; series is [{name, points: [[ms, value]]}].
export function Lines({ series, unit, label }) {
  const all = series.flatMap((s) => s.points);
  if (all.length < 2) return html`<p class="muted">Lines appear after a few seconds.</p>`;
  const width = 720, height = 160, left = 60;
  const from = Math.min(...all.map((p) => p[0])), to = Math.max(...all.map((p) => p[0]));
  const most = Math.max(...all.map((p) => p[1]), 1e-9);
  const x = (ms) => left + ((ms - from) / Math.max(1, to - from)) * (width - left - 10);
  const y = (v) => height - 20 - (v / most) * (height - 36);
  // Lines differ in colour and in dashes; their order in the legend is that of their ends.
  const style = (s) => `spark line${series.indexOf(s) % 6}`;
  const last = (s) => s.points[s.points.length - 1]?.[1] ?? -1;
  return html`<div class="scroll" tabindex="0"><svg class="chart" width=${width} height=${height} role="img" aria-label=${label}>
    <text class="small" x="4" y=${y(most) + 4}>${unit(most)}</text><text class="small" x="4" y=${y(0)}>${unit(0)}</text>
    ${series.map((s) => html`<polyline class=${style(s)} points=${s.points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ")}><title>${s.name}</title></polyline>`)}
  </svg></div>
  ${series.length > 1 && html`<p class="legend">${[...series].sort((a, b) => last(b) - last(a)).map((s) => html`<span><svg width="28" height="8" aria-hidden="true">
    <polyline class=${style(s)} points="0,4 28,4" /></svg> ${s.name} ${s.points.length ? unit(last(s)) : ""}</span>`)}</p>`}`;
}

export function Table({ head, rows, empty }) {
  if (!rows.length) return html`<p class="muted">${empty ?? "Nothing yet."}</p>`;
  return html`<div class="scroll" tabindex="0"><table>
    <thead><tr>${head.map((h) => html`<th class=${h.startsWith("#") ? "n" : ""} scope="col">${h.replace("#", "")}</th>`)}</tr></thead>
    <tbody>${rows.map((r) => html`<tr>${r.map((c, i) => html`<td class=${head[i].startsWith("#") ? "n" : ""}>${c}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}
