/** Metrics of the server in Prometheus' text format: rates and quantiles over a window of the last samples. */

const SERIES = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

export function parseMetrics(text: string): Sample[] {
  return text.split('\n').flatMap((line) => {
    const found = SERIES.exec(line);
    if (!found) return [];
    const [, name = '', labels = '', value = ''] = found;
    const pairs = [...labels.matchAll(LABEL)].map(([, label, text]) => [label, text]);
    return [{ name, labels: Object.fromEntries(pairs) as Record<string, string>, value: parseNumber(value) }];
  });
}

function parseNumber(text: string): number {
  return text === '+Inf' ? Infinity : Number(text);
}

interface Snapshot {
  at: number;
  samples: Sample[];
}

/** The samples of the last `windowMs`, and what changed between the oldest and the newest of them. */
export class MetricsWindow {
  readonly #windowMs: number;
  #snapshots: Snapshot[] = [];

  constructor(windowMs: number) {
    this.#windowMs = windowMs;
  }

  /** Add the samples of time `at`. Older ones are dropped if the server has restarted since. */
  add(at: number, samples: Sample[]): void {
    const started = startTime(samples);
    const kept = this.#snapshots.filter(
      (one) => one.at >= at - this.#windowMs && startTime(one.samples) === started,
    );
    this.#snapshots = [...kept, { at, samples }];
  }

  /** Sum of the increases of a counter a second. Returns null before there are two samples. */
  rate(name: string): number | null {
    const [first, last] = this.#ends();
    if (!first || !last || last.at <= first.at) return null;
    return (sum(last, name) - sum(first, name)) / ((last.at - first.at) / 1000);
  }

  /** Quantile `q` of what a histogram has observed in the window. Returns null if nothing. */
  quantile(q: number, name: string): number | null {
    const [first, last] = this.#ends();
    if (!first || !last) return null;
    const bounds = buckets(last, name).map(({ bound, count }, index) => ({
      bound,
      count: count - (buckets(first, name)[index]?.count ?? 0),
    }));
    const total = bounds.at(-1)?.count ?? 0;
    if (total <= 0) return null;
    const rank = q * total;
    const index = bounds.findIndex(({ count }) => count >= rank);
    const [before, bucket] = [bounds[index - 1], bounds[index]];
    if (!bucket) return null;
    const [low, below] = [before?.bound ?? 0, before?.count ?? 0];
    if (bucket.bound === Infinity) return low;
    const share = bucket.count > below ? (rank - below) / (bucket.count - below) : 1;
    return low + (bucket.bound - low) * share;
  }

  #ends(): [Snapshot | undefined, Snapshot | undefined] {
    return [this.#snapshots[0], this.#snapshots.at(-1)];
  }
}

function startTime(samples: Sample[]): number {
  return samples.find(({ name }) => name === 'process_start_time_seconds')?.value ?? 0;
}

function sum(snapshot: Snapshot, name: string): number {
  return snapshot.samples.filter((one) => one.name === name).reduce((total, one) => total + one.value, 0);
}

function buckets(snapshot: Snapshot, name: string): { bound: number; count: number }[] {
  return snapshot.samples
    .filter((one) => one.name === `${name}_bucket`)
    .map(({ labels, value }) => ({ bound: parseNumber(labels.le ?? ''), count: value }));
}
