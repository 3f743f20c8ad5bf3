// Page of event time: watermarks of tasks, subtasks and splits, and what holds them back.

import { html } from "./vendor/htm-preact.mjs";
import { UNKNOWN, count, duration, lag, nth, watermark } from "./format.mjs";
import { Findings, Lines, Table } from "./parts.mjs";

export function Late({ page, job }) {
  const series = page.vertices.filter((v) => v.source || v.watermark != null).map((v) => ({
    name: v.name.slice(0, 30),
    points: page.history.filter((p) => p[1] === v.number && p[5] != null).map((p) => [p[0], p[5]]),
  })).filter((s) => s.points.length);
  return html`<${Findings} findings=${page.late} vertices=${page.vertices} job=${job} />
    <h2>Watermarks behind the clock</h2>
    <${Lines} series=${series} unit=${duration} label="Lag of the watermarks of each task over the last minutes" />
    ${page.vertices.filter((v) => v.splits).map((v) => html`<${Splits} vertex=${v} now=${page.now} late=${page.late} />`)}
    <h2>Subtasks</h2>
    <${Table} empty="No task has a watermark." head=${["Task", "#Subtask", "#Watermark", "#Behind the clock", "#In/s"]}
      rows=${page.vertices.flatMap((v) => v.subtasks.filter((s) => s.watermark != null || v.source).map((s) => [
        v.name, nth(s.subtask), watermark(s.watermark), s.watermark == null ? UNKNOWN : lag(s.watermark, page.now), count(s.in_per_s),
      ]))} />`;
}

function Splits({ vertex, now, late }) {
  const { splits, idle, without_watermark: without, shown, highest } = vertex.splits;
  const named = new Set(late.filter((f) => f.severity === "cause" && f.vertex === vertex.number).map((f) => f.split));
  const state = (s) => s.idle ? "idle" : named.has(s.split) ? "holds back event time" : s.watermark == null ? "no watermark yet" : "";
  const most = Math.max(1, ...shown.map((s) => (s.watermark == null || highest == null ? 0 : highest - s.watermark)));
  const behind = (s) => s.watermark == null || highest == null ? UNKNOWN
    : html`${duration(highest - s.watermark)} <meter min="0" max=${most} value=${highest - s.watermark} aria-hidden="true"></meter>`;
  return html`<h2>Splits of ${vertex.name}</h2>
    <p class="muted">${splits} split${splits === 1 ? "" : "s"}, ${idle} idle, ${without} without a watermark.${shown.length < splits ? ` The slowest ${shown.length} are shown.` : ""}</p>
    <${Table} head=${["Split", "#Subtask", "#Watermark", "#Behind the clock", "#Behind the fastest", "#Last record", "State"]}
      rows=${shown.map((s) => [s.split, nth(s.subtask), watermark(s.watermark), s.watermark == null ? UNKNOWN : lag(s.watermark, now), behind(s),
        duration(1000 * s.silent_s) + " ago", state(s) && html`<span class=${"state " + (named.has(s.split) ? "FAILED" : "pending")}>${state(s)}</span>`])} />`;
}
