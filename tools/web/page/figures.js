// What the page knows: the intervals of two windows, and the latest news of each topic.

export const figures = {
  recent: [], hour: [], events: [],
  state: null, curves: null, plan: null, objects: null, formerObjects: null, sets: {}, files: null,
  shown: "recent",
  // When the last news came, by this machine's clock.
  heardMs: 0,
};

// As many as the server keeps.
const INTERVALS_MAX = 360;

export function load(history) {
  figures.recent = history.recent;
  figures.hour = history.hour;
}

export function take(topic, data) {
  if (topic === "interval") {
    const last = figures.recent.at(-1);
    // After a reconnect the history may have it already.
    if (last && last.time_ms >= data.time_ms) return;
    figures.recent.push(data);
    figures.recent.splice(0, figures.recent.length - INTERVALS_MAX);
    return;
  }
  if (topic === "objects") figures.formerObjects = figures.objects;
  if (topic === "events") figures.events = data.events;
  else figures[topic] = data;
}

export function shown() {
  return figures.shown === "hour" ? figures.hour : figures.recent;
}

export function names() {
  return figures.state?.server?.partitions.map((partition) => partition.name)
    ?? figures.recent.at(-1)?.partitions.map((row) => row.name) ?? [];
}

export function numberOf(name) {
  return Math.max(0, names().indexOf(name));
}

export function rowOf(interval, name) {
  return interval.partitions.find((row) => row.name === name);
}

// The sum of a count over the partitions of an interval.
export function sum(interval, count) {
  return interval.partitions.reduce((total, row) => total + row.counts[count], 0);
}

export function rate(interval, count) {
  return interval.length_ms > 0 ? (1000 * sum(interval, count)) / interval.length_ms : 0;
}

// The buckets of one kind of requests in some partitions: a map from their end to their count.
export function bucketsOf(intervals, kind, name) {
  const buckets = new Map();
  for (const interval of intervals) {
    for (const row of interval.partitions) {
      if (name && row.name !== name) continue;
      for (const [end, count] of row.latency[kind]?.buckets ?? []) {
        buckets.set(end, (buckets.get(end) ?? 0) + count);
      }
    }
  }
  return buckets;
}

// The time that a share of the requests did not exceed; null without requests.
export function quantile(buckets, share) {
  const sorted = [...buckets].sort(([one], [other]) => one - other);
  const total = sorted.reduce((sum, [, count]) => sum + count, 0);
  let rank = Math.ceil(total * share);
  for (const [end, count] of sorted) {
    rank -= count;
    if (rank <= 0) return end;
  }
  return null;
}

// The intervals of the last `ms`: rates over one second of a quiet server are noise.
export function latest(ms) {
  const last = figures.recent.at(-1);
  return last ? figures.recent.filter((interval) => interval.time_ms > last.time_ms - ms) : [];
}
