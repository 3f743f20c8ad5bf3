// Page of a job on an engine with micro-batches: how long each took, and what it read.

import { html } from "./vendor/htm-preact.mjs";
import { bytes, count, duration, time } from "./format.mjs";
import { Lines, Table } from "./parts.mjs";

// A link to elsewhere comes from the engine: only web addresses are followed.
export function EnginePages({ url }) {
  return /^https?:/.test(url) ? html`<a href=${url} rel="noreferrer">Pages of the engine</a>` : null;
}

export function Batches({ page }) {
  const batches = page.micro_batches;
  const line = (name, value) => [{ name, points: batches.map((b) => [b.at_ms, value(b)]) }];
  return html`<p><${EnginePages} url=${page.engine_url} /></p>
    <h2>Duration</h2><${Lines} series=${line("duration", (b) => b.duration_ms)} unit=${duration} label="Duration of each micro-batch" />
    <h2>Records per second</h2><${Lines} series=${line("in", (b) => b.records_per_s)} unit=${count} label="Records per second of each micro-batch" />
    <h2>Micro-batches</h2>
    <${Table} empty="No micro-batch is complete yet." head=${["#Micro-batch", "At", "#Duration", "#Records", "#Records/s", "#State rows", "#State memory", "Longest phase"]}
      rows=${batches.toReversed().map((b) => {
        const [phase, ms] = Object.entries(b.phases).reduce((most, one) => (one[1] > most[1] ? one : most), ["", -1]);
        return [b.number, time(b.at_ms), duration(b.duration_ms), count(b.records), count(b.records_per_s), count(b.state_rows), bytes(b.state_bytes),
          ms < 0 ? "" : `${phase} ${duration(ms)}`];
      })} />`;
}
