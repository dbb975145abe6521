/** Conversations as this browser keeps them. */

import type {
  ClientEvent,
  Position,
  Residency,
  Response,
  Saved,
  SessionSettings,
} from '../client/index.js';

/** What one answer cost. Times in milliseconds, seen from here. */
export interface TurnMetrics {
  id: string;
  /** null where nobody was here to see it asked for. */
  ttft: number | null;
  /** Mean time between tokens after the first; null where all came at once, or nobody was here. */
  itl: number | null;
  tokens: number;
  prefilled: number;
  reused: number;
  residency: Residency | null;
}

export interface Kept {
  id: string;
  title: string;
  /** The conversation it was branched from. */
  parent: string | null;
  updated: number;
  position: Position | null;
  saved: Saved;
  settings: SessionSettings;
  model: string | null;
  metrics: TurnMetrics[];
  draft: string;
  pending: ClientEvent[];
}

const PREFIX = 'continuo.talk.';
const INDEX = 'continuo.index';
const SETTINGS = 'continuo.settings';
/** Conversations that are kept; the longest untouched goes first. */
export const KEPT_MAX = 50;

export function fresh(parent: Kept | null = null): Kept {
  return {
    id: crypto.getRandomValues(new Uint32Array(2)).reduce((id, n) => id + n.toString(36), ''),
    title: '',
    parent: parent?.id ?? null,
    updated: Date.now(),
    position: null,
    saved: { items: [], turns: [] },
    settings: parent?.settings ?? defaults.get(),
    model: parent?.model ?? null,
    metrics: [],
    draft: '',
    pending: [],
  };
}

/** Settings that new conversations begin with. */
export const defaults = {
  get: (): SessionSettings => read<SessionSettings>(SETTINGS) ?? {},
  set: (settings: SessionSettings): void => {
    write(SETTINGS, settings);
  },
};

export function load(id: string): Kept | null {
  return read<Kept>(PREFIX + id);
}

/** What a list shows of a conversation. */
export type Listed = Pick<Kept, 'id' | 'title' | 'parent' | 'updated'>;

/** The youngest first. */
export function all(): Listed[] {
  const index = read<Record<string, Listed>>(INDEX) ?? {};
  return Object.values(index).sort((a, b) => b.updated - a.updated);
}

export function keep(kept: Kept): void {
  const turns = kept.saved.turns.map((turn) => ({ ...turn, response: slim(turn.response) }));
  write(PREFIX + kept.id, { ...kept, saved: { ...kept.saved, turns } });
  const { id, title, parent, updated } = kept;
  const others = all().filter((one) => one.id !== id);
  for (const old of others.splice(KEPT_MAX - 1)) localStorage.removeItem(PREFIX + old.id);
  reindex([{ id, title, parent, updated }, ...others]);
}

export function forget(id: string): void {
  localStorage.removeItem(PREFIX + id);
  reindex(all().filter((one) => one.id !== id));
}

function reindex(listed: Listed[]): void {
  write(INDEX, Object.fromEntries(listed.map((one) => [one.id, one])));
}

/** A full store makes room: the longest untouched conversation goes. */
function write(name: string, value: unknown): void {
  const text = JSON.stringify(value);
  for (let attempt = 0; attempt < KEPT_MAX; attempt += 1) {
    try {
      localStorage.setItem(name, text);
      return;
    } catch {
      const oldest = all().findLast((one) => PREFIX + one.id !== name);
      if (!oldest) return;
      localStorage.removeItem(PREFIX + oldest.id);
    }
  }
}

function read<T>(name: string): T | null {
  try {
    return JSON.parse(localStorage.getItem(name) ?? 'null') as T | null;
  } catch {
    return null;
  }
}

/** The items stand in the conversation already. */
function slim(response: Response): Response {
  return { ...response, output: [] };
}
