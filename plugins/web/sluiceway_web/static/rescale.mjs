// Controls and history of changes of a job's parallelism.

import { html, useState } from "./vendor/htm-preact.mjs";
import { duration, time } from "./format.mjs";
import { send } from "./live.mjs";
import { State, Table } from "./parts.mjs";

export const rescaled = (r) => `Rescaled: the job was stopped for ${duration(r.stopped_ms)}.`;

export function RescaleTask({ job, vertex }) {
  const [told, tell] = useState("");
  const change = async (by) => {
    const upperBound = vertex.parallelism + by;
    try {
      await send("PUT", `jobs/${encodeURIComponent(job)}/resource-requirements`, { [vertex.id]: { parallelism: { lowerBound: 1, upperBound } } });
      tell(`The task is being rescaled to ${upperBound}.`);
    } catch (error) { tell(error.message); }
  };
  return html`<span> · parallelism ${vertex.parallelism} <button aria-label="One subtask less" disabled=${vertex.parallelism < 2} onClick=${() => change(-1)}>−</button>
    <button aria-label="One subtask more" onClick=${() => change(1)}>+</button> <span role="status"> ${told}</span></span>`;
}

export function Rescales({ rescales }) {
  return html`<${Table} head=${["Time", "State", "Parallelism", "#Checkpoint", "#Stopped for", ""]}
    rows=${rescales.map((r) => [time(r.requested_ms), html`<${State} state=${r.status} />`,
      r.changes.map(([name, before, after]) => html`<div>${name}: ${before} → ${after}</div>`), r.checkpoint || "",
      r.stopped_ms === null ? "" : duration(r.stopped_ms), r.reason])} />`;
}
