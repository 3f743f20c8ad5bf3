// Page of state: sizes of each keyed state in the last checkpoint, and look-up of a key.

import { html, useState } from "./vendor/htm-preact.mjs";
import { bytes, count, time } from "./format.mjs";
import { send } from "./live.mjs";
import { Table } from "./parts.mjs";

export function State({ page, job }) {
  const [sizes, set] = useState(null);
  const [problem, tell] = useState("");
  const path = `jobs/${encodeURIComponent(job)}/state`;
  const measure = async () => {
    tell("The last checkpoint is being read.");
    try { set(await send("GET", path)); tell(""); } catch (error) { tell(error.message); }
  };
  const most = Math.max(1, ...(sizes?.states ?? []).map((s) => s.size));
  const names = stepNames(page);
  return html`<h2>Sizes</h2>
    <p><button onClick=${measure}>${sizes ? "Measure again" : "Measure"}</button> <span class="muted" role="status">${problem || "All state in the last checkpoint is read for this."}</span></p>
    ${sizes && html`<p class="muted">From <code>${sizes.place}</code>. Sizes are without compression.</p>
      <${Table} empty="There is no keyed state." head=${["Step", "State", "Kind", "#Keys", "#Entries", "#Size", "", "Largest key", "#Its size"]}
        rows=${sizes.states.map((s) => [html`<span title=${"uid " + s.uid}>${names.get(s.uid) ?? s.uid}</span>`, s.state, s.kind, count(s.keys), count(s.entries), bytes(s.size),
          html`<meter min="0" max=${most} value=${s.size} aria-hidden="true"></meter>`, html`<code>${s.largest_key}</code>`, bytes(s.largest_size)])} />`}
    <${LookUp} key=${job} page=${page} path=${path} sizes=${sizes} />`;
}

// Names of steps by uid: state belongs to a uid, which may be one that the plan has made up.
function stepNames(page) {
  const steps = page.vertices.flatMap((v) => v.steps);
  const times = new Map();
  for (const s of steps) times.set(s.name, (times.get(s.name) ?? 0) + 1);
  return new Map(steps.map((s) => [s.uid, times.get(s.name) > 1 ? `${s.name} (${s.uid})` : s.name]));
}

function LookUp({ page, path, sizes }) {
  const keyed = page.vertices.filter((v) => v.keyed).flatMap((v) => v.steps.filter((s) => s.stateful).map((s) => s.uid));
  const uids = [...new Set([...(sizes?.states ?? []).map((s) => s.uid), ...keyed])];
  const steps = stepNames(page);
  const [asked, change] = useState({ uid: uids[0] ?? "", state: "", key: "", live: false });
  const [found, set] = useState(null);
  const [problem, tell] = useState("");
  const put = (name) => (event) => change({ ...asked, [name]: name === "live" ? event.target.checked : event.target.value });
  const look = async (event) => {
    event.preventDefault();
    tell("Reading…");
    set(null);
    const query = new URLSearchParams({ uid: asked.uid, state: asked.state, key: asked.key, live: String(asked.live) });
    try { set(await send("GET", `${path}/key?${query}`)); tell(""); } catch (error) { tell(error.message); }
  };
  const names = [...new Set((sizes?.states ?? []).filter((s) => s.uid === asked.uid).map((s) => s.state))];
  return html`<h2>Look up a key</h2>
    <form class="choices" onSubmit=${look}>
      <label>Step ${uids.length ? html`<select value=${asked.uid} onChange=${put("uid")}>${uids.map((u) => html`<option value=${u}>${steps.get(u) ?? u}</option>`)}</select>`
        : html`<input required value=${asked.uid} placeholder="uid" onInput=${put("uid")} />`}</label>
      <label>State <input list="state-names" required value=${asked.state} onInput=${put("state")} /></label><datalist id="state-names">${names.map((n) => html`<option value=${n} />`)}</datalist>
      <label>Key <input required value=${asked.key} placeholder="as JSON or text" onInput=${put("key")} /></label>
      <label><input type="checkbox" checked=${asked.live} onChange=${put("live")} /> from the running task</label>
      <button>Look up</button></form>
    <p role="status">${problem}</p>
    ${found && html`<p class="muted">${found.place ? html`From <code>${found.place}</code>` : "From the running task"}${found.namespaces > found.values.length ? `; the first ${found.values.length} of ${found.namespaces} namespaces` : ""}.</p>
      <${Table} head=${["Namespace", "Kind", "Value", "Last touched"]} rows=${found.values.map((v) => [v.namespace === "[]" ? "" : v.namespace, v.kind,
        html`<code>${v.value}${v.shortened ? " …" : ""}</code>`, v.touched_ms == null ? "" : time(v.touched_ms)])} />`}`;
}
