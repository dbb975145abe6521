/** Formatting of numbers, durations and KV residency for display. */

import type { KVResidency } from '../client/index.js';

/** Where the KV of the conversation so far was found at the last turn. */
export const RESIDENCY_TEXT: Record<KVResidency, string> = {
  hot: 'already on device',
  host: 'restored from host memory',
  recomputed: 'lost, then recomputed',
  none: 'not cached',
  unknown: 'known to the other server only',
};

/** Returns the name of a model without the folders or the organization before it, such as `Qwen2.5-7B-Instruct`. */
export function nameOfModel(id: string | null): string {
  return id?.split('/').findLast((part) => part !== '') ?? 'Model';
}

export function formatMs(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value >= 10_000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 1000) return `${Number((value / 1000).toFixed(1))} s`;
  return `${Number(value.toFixed(value < 10 ? 1 : 0))} ms`;
}

export function formatCount(value: number): string {
  return value.toLocaleString('en');
}

/** Returns a size such as `87 B` or `1.2 kB`. */
export function formatBytes(n: number): string {
  if (n < 1000) return `${n} B`;
  return n < 999_500 ? `${(n / 1000).toPrecision(n < 100_000 ? 2 : 3)} kB` : `${(n / 1_000_000).toFixed(1)} MB`;
}

/** Returns a rounded percentage; at least '< 1%' if `part` is not 0. */
export function formatPercent(part: number, whole: number): string {
  const percent = (100 * part) / whole;
  return part > 0 && percent < 1 ? '< 1%' : `${Math.round(percent)}%`;
}

export function formatDuration(s: number): string {
  const parts: [number, string][] = [
    [86_400, 'd'],
    [3600, 'h'],
    [60, 'min'],
  ];
  const [size, unit] = parts.find(([size]) => s >= size) ?? [1, 's'];
  return `${Math.floor(s / size)} ${unit}`;
}

export function formatTime(at: number): string {
  return new Date(at).toLocaleTimeString('en-GB');
}
