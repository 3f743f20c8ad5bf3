// Router of the pages: #/ is the list of jobs, #/job/ID a job, #/job/ID/PAGE one of its pages, #/cluster/PAGE the cluster.

import { html, render, useEffect, useState } from "./vendor/htm-preact.mjs";
import { Cluster } from "./cluster.mjs";
import { address } from "./format.mjs";
import { Job } from "./job.mjs";
import { Jobs } from "./jobs.mjs";
import { useLive } from "./live.mjs";

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function place() {
  const [, kind, job, tab, argument] = window.location.hash.split("/").map(decoded);
  if (kind === "cluster") return { page: "cluster", job: "", tab: job ?? "", argument: tab };
  return kind === "job" && job ? { page: "job", job, tab: tab ?? "", argument } : { page: "jobs", job: "", tab: "" };
}

function App() {
  const [at, go] = useState(place);
  const [config, set] = useState({});
  const features = config.features ?? {};
  useEffect(() => {
    const moved = () => go(place());
    window.addEventListener("hashchange", moved);
    fetch("config").then((answer) => answer.json()).then((told) => set(told), () => {});
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  const { data, error, lost } = useLive(at.page, at.job);
  const known = data && { jobs: "jobs", job: "vertices", cluster: "processes" }[at.page] in data ? data : null;
  const name = known?.job?.job ?? at.job;
  useEffect(() => { document.title = at.job ? name + " · Sluiceway" : at.page === "cluster" ? "Cluster · Sluiceway" : "Sluiceway"; }, [at.page, name]);
  return html`<header><a class="brand" href="#/">Sluiceway</a>${at.page !== "jobs" && html`<a href="#/">All jobs</a>`}
      ${at.page !== "cluster" && html`<a href="#/cluster">Cluster</a>`}
      <span class="facts">${known ? new Date(known.now).toLocaleTimeString() : ""}</span></header>
    ${(error || lost) && html`<p class="lost" role="alert">${error ?? "The connection is lost: the job has ended, or its process is gone."} ${known ? "These are the last figures." : ""}</p>`}
    <main>${!known ? html`<p class="muted">${error ? "" : "Reading figures…"}</p>`
      : at.page === "jobs" ? html`<${Jobs} page=${known} canSubmit=${features["web-submit"]} />`
      : at.page === "cluster" ? html`<${Cluster} page=${known} tab=${at.tab} argument=${at.argument} readOnly=${!features["web-cancel"]} />`
      : html`<${Job} page=${known} job=${address(known.job)} tab=${at.tab} argument=${at.argument} readOnly=${!features["web-cancel"]} replay=${config.replay} />`}</main>`;
}

render(html`<${App} />`, document.getElementById("app"));
