// Numbers, times and sizes as text. What is not known is shown as "n/a", never as NaN.

// What stands for a job in addresses: its name, unless that would need quoting, which not all servers leave as it is.
export const address = (job) => (/^\w[\w.-]*$/.test(job.job) ? job.job : job.jid);

// Number of a subtask for people, as in messages and logs; data and addresses have its index.
export const nth = (subtask) => subtask + 1;

export const UNKNOWN = "n/a";
const MAX_WATERMARK = 2 ** 63 - 1;

export function count(n) {
  if (n == null || Number.isNaN(n)) return UNKNOWN;
  if (n >= 1e7) return (n / 1e6).toFixed(1) + "M";
  if (n >= 1e4) return (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + "k";
  return n >= 100 || Number.isInteger(n) ? n.toFixed(0) : n.toFixed(1);
}

export function percent(share) {
  return share == null || Number.isNaN(share) ? UNKNOWN : Math.round(share * 100) + " %";
}

export function bytes(n) {
  if (n == null) return UNKNOWN;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return (unit === "B" ? n : n.toFixed(1)) + " " + unit;
    n /= 1024;
  }
  return n.toFixed(1) + " TiB";
}

export function duration(ms) {
  if (ms == null || ms < 0) return UNKNOWN;
  if (ms < 1000) return Math.round(ms) + " ms";
  const s = ms / 1000;
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

export function time(ms) {
  return ms == null || ms <= 0 ? UNKNOWN : new Date(ms).toLocaleString();
}

export function watermark(ms) {
  if (ms == null) return UNKNOWN;
  if (ms >= MAX_WATERMARK / 2) return "end of input";
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? ms + " ms" : date.toISOString().replace("T", " ").replace("Z", "");
}

export function lag(ms, now) {
  if (ms == null || ms >= MAX_WATERMARK / 2) return UNKNOWN;
  return now < ms ? "ahead of the clock" : duration(now - ms);
}
