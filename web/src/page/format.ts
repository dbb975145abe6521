/** Numbers, and what they are about, as people read them. */

import type { Residency } from '../client/index.js';

/** Where an answer has found the KV of what was said before. */
export const WHERE: Record<Residency, string> = {
  hot: 'was on the device',
  host: 'came back from host memory',
  recomputed: 'was computed again',
  none: 'was not there before',
};

export function ms(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value >= 10_000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 1000) return `${Number((value / 1000).toFixed(1))} s`;
  return `${Number(value.toFixed(value < 10 ? 1 : 0))} ms`;
}

export function count(value: number): string {
  return value.toLocaleString('en');
}

/** Of a whole, rounded; never 0 for what is there. */
export function share(part: number, whole: number): string {
  const percent = (100 * part) / whole;
  return part > 0 && percent < 1 ? '< 1 %' : `${Math.round(percent)} %`;
}

export function duration(s: number): string {
  const parts: [number, string][] = [
    [86_400, 'd'],
    [3600, 'h'],
    [60, 'min'],
  ];
  const [size, unit] = parts.find(([size]) => s >= size) ?? [1, 's'];
  return `${Math.floor(s / size)} ${unit}`;
}

export function clock(at: number): string {
  return new Date(at).toLocaleTimeString('en-GB');
}
