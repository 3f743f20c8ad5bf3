// Page of one task: subtasks with a heat map, hottest keys, charts, steps, metrics of its functions.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.mjs";
import { count, duration, nth, percent } from "./format.mjs";
import { send } from "./live.mjs";
import { Findings, Lines, Shares, Table } from "./parts.mjs";
import { RescaleTask } from "./rescale.mjs";

export function Task({ page, job, argument, changes }) {
  const vertex = page.vertices.find((v) => String(v.number) === argument);
  if (!vertex) return html`<p>There is no such task in this job.</p>`;
  const points = (column) => page.history.filter((p) => p[1] === vertex.number && p[column] != null).map((p) => [p[0], p[column]]);
  const own = [...new Set(vertex.subtasks.flatMap((s) => Object.keys(s.user)))].sort();
  return html`<h2>${vertex.name}</h2>
    <${Findings} findings=${page.findings.filter((f) => f.vertex === vertex.number)} vertices=${page.vertices} job=${job} />
    <p><a href=${`#/job/${job}/flame/${vertex.number}`}>Flame graph of this task</a>${changes && html`<${RescaleTask} key=${"rescale-" + vertex.id} job=${job} vertex=${vertex} />`}</p>
    <${Table} head=${["#Subtask", "Worker", "#Attempt", "#In/s", "#Out/s", "#Busy", "#Blocked", "#Waiting", "#Idle", "Time", "#Queued", "#Backlog"]}
      empty="No subtask runs."
      rows=${vertex.subtasks.map((s) => [nth(s.subtask), s.worker, s.attempt, count(s.in_per_s), count(s.out_per_s), percent(s.busy), percent(s.blocked),
        percent(s.waiting), percent(s.idle), html`<${Shares} of=${s} />`, s.queued, s.backlog])} />
    <${Skew} subtasks=${vertex.subtasks} />
    <${HeatMap} key=${"heat-" + vertex.number} vertex=${vertex} now=${page.now} />
    ${vertex.keyed && html`<${HotKeys} key=${"keys-" + vertex.id} vertex=${vertex} job=${job} />`}
    <h2>Records per second</h2><${Lines} series=${[{ name: "in", points: points(2) }]} unit=${count} label="Records per second" />
    <h2>Busy${vertex.parallelism > 1 ? " (max)" : ""}</h2><${Lines} series=${[{ name: "busy", points: points(3) }]} unit=${percent} label="Share of the time of the busiest subtask" />
    <h2>Steps</h2><${Table} head=${["Step", "Kind", "uid", "State", "Description"]} rows=${vertex.steps.map((s) => [s.name, s.kind, s.uid, s.stateful ? "has state" : "", s.description ?? ""])} />
    <h2>Metrics of its functions</h2>
    <${Table} empty="Its functions have no metrics of their own." head=${["Metric", ...vertex.subtasks.map((s) => "#" + nth(s.subtask))]}
      rows=${own.map((name) => [name, ...vertex.subtasks.map((s) => count(s.user[name]))])} />`;
}

function Skew({ subtasks }) {
  if (subtasks.length < 2) return null;
  const mean = subtasks.reduce((sum, s) => sum + s.in_per_s, 0) / subtasks.length;
  if (!mean) return null;
  const deviation = Math.sqrt(subtasks.reduce((sum, s) => sum + (s.in_per_s - mean) ** 2, 0) / subtasks.length);
  const most = Math.max(...subtasks.map((s) => s.in_per_s));
  return html`<p class="muted">Skew of the records: ${Math.round((100 * deviation) / mean)} % (standard deviation over mean). The subtask with most has ${(most / mean).toFixed(1)} times the mean.</p>`;
}

const COLUMNS = 120, ROWS = 64;

// Shares of the time since the page was opened; a cell is a second, its height the busy share, so that colour alone says nothing.
function HeatMap({ vertex, now }) {
  const kept = useRef([]);
  useEffect(() => {
    const last = kept.current[kept.current.length - 1];
    if (last?.now !== now) kept.current = [...kept.current, { now, subtasks: vertex.subtasks }].slice(-COLUMNS);
  }, [now]);
  const shown = vertex.subtasks.slice(0, ROWS);
  if (shown.length < 2 || kept.current.length < 2) return null;
  const cell = 6, row = 16, left = 70, height = row * shown.length + 4;
  const cells = kept.current.flatMap(({ subtasks }, x) => shown.map(({ subtask }, y) => {
    const s = subtasks.find((one) => one.subtask === subtask);
    if (!s) return null;
    const full = row - 3, bar = Math.max(0.5, full * Math.min(1, s.busy));
    return html`<rect class="heat" x=${left + x * cell} y=${y * row + 2 + full - bar} width=${cell - 1} height=${bar}
      style=${{ opacity: 0.35 + 0.65 * Math.min(1, s.busy) }}><title>subtask ${nth(subtask)}: busy ${percent(s.busy)}, blocked ${percent(s.blocked)}</title></rect>`;
  }));
  return html`<h2>Busy by subtask</h2>
    <div class="scroll" tabindex="0"><svg class="chart" width=${left + COLUMNS * cell + 10} height=${height} role="img"
      aria-label=${"Busy share of each subtask over the last " + kept.current.length + " seconds; the table above has the numbers"}>
      ${shown.map(({ subtask }, y) => html`<text class="small" x="4" y=${y * row + 13}>subtask ${nth(subtask)}</text>`)}${cells}</svg></div>
    ${vertex.subtasks.length > ROWS ? html`<p class="muted">The first ${ROWS} of ${vertex.subtasks.length} subtasks are shown.</p>` : ""}`;
}

function HotKeys({ vertex, job }) {
  const [on, turn] = useState(false);
  const [found, set] = useState(null);
  const [problem, tell] = useState("");
  useEffect(() => {
    if (!on) return undefined;
    let closed = false;
    (async () => {
      while (!closed) {
        try {
          const told = await send("GET", `jobs/${encodeURIComponent(job)}/vertices/${vertex.id}/hot-keys?seconds=2`);
          if (!closed) { set(told); tell(""); }
        } catch (error) {
          if (!closed) tell(error.message);
          await new Promise((done) => setTimeout(done, 2000));
        }
      }
    })();
    return () => { closed = true; };
  }, [on, job, vertex.id]);
  return html`<h2>Hottest keys</h2>
    <p><button aria-pressed=${on} onClick=${() => turn(!on)}>${on ? "Stop counting" : "Count keys"}</button>
      <span class="muted"> ${on ? "Keys are counted for two seconds at a time." : "Records are counted by key only while you look."}</span></p>
    ${problem && html`<p class="finding notice" role="status">${problem}</p>`}
    ${found && html`<p class="muted">${count(found.records)} records in ${duration(1000 * found.seconds)}, skew ${Math.round(found.skew)} %${found.error ? `; numbers may be too low by ${count(found.error)}` : ""}.</p>
      <${Table} empty="No record has come." head=${["Key", "#Subtask", "#Records", "#Share", ""]}
        rows=${found.keys.slice(0, 20).map((k) => [html`<code>${k.key}</code>`, nth(k.subtask), count(k.records), percent(k.share),
          html`<meter min="0" max="1" value=${k.share} aria-hidden="true"></meter>`])} />`}`;
}
