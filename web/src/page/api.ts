/** What the server answers over HTTP, and what goes wrong there, in plain words. */

import { Ended } from '../client/index.js';

export interface Model {
  id: string;
  max_model_len: number;
}

export interface EngineBooks {
  pages_total: number;
  pages_free: number;
  pages_tree: number;
  pages_leased: number;
  sessions: number;
  active_turns: number;
  queued_turns: number;
  steps: number;
  tokens_computed: number;
  tokens_drawn: number;
  model_s: number;
  failed_steps: number;
  retractions: number;
  evicted_pages: number;
  host_pages_total: number;
  host_pages_used: number;
}

export interface ServerStats {
  model: string;
  device: string;
  dtype: string;
  max_model_len: number;
  page_size: number;
  up_s: number;
  sessions: number;
  engine: EngineBooks | null;
  warnings: { at: number; level: string; message: string }[];
}

/** Tokens, and pages of the engine. */
export interface SessionKV {
  place: 'device' | 'host' | 'none';
  tokens: number;
  pages: number;
  host_tokens: number;
  host_pages: number;
  /** Their KV was there, and is computed again. */
  lost_tokens: number;
}

export interface SessionStatus {
  id: string;
  state: string;
  tokens: number;
  items: number;
  dropped_items: number;
  kv: SessionKV;
}

/** The server answered, and refused. */
export class Denied extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.name = 'Denied';
    this.status = status;
    this.code = code;
  }
}

const KEY = 'continuo.key';
/** The server's own words are for developers. */
const NO_KEY = 'This server wants a key. Whoever runs it can give you one.';

/** Kept for this tab alone, until it is closed. */
export const key = {
  get: (): string => sessionStorage.getItem(KEY) ?? '',
  set: (value: string): void => {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },
};

export async function ask<T>(path: string, init: RequestInit = {}): Promise<T> {
  const headers: Record<string, string> = { Accept: 'application/json' };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let answer: Response;
  try {
    answer = await fetch(path, { ...init, headers });
  } catch {
    throw new Error('the server cannot be reached');
  }
  const body = (await answer.json().catch(() => null)) as {
    error?: { code: string; message: string };
  } | null;
  if (answer.ok) return body as T;
  const { code, message } = body?.error ?? { code: `http_${answer.status}`, message: '' };
  const words = code === 'missing_api_key' ? NO_KEY : message;
  throw new Denied(answer.status, code, words || `The server answered ${answer.status}.`);
}

export const models = async (): Promise<Model[]> =>
  (await ask<{ data: Model[] }>('/v1/models')).data;

export const stats = (): Promise<ServerStats> => ask('/v1/stats');

export const sessions = (): Promise<{ data: SessionStatus[]; has_more: boolean }> =>
  ask('/v1/realtime/sessions');

export const session = (id: string): Promise<SessionStatus> =>
  ask(`/v1/realtime/sessions/${encodeURIComponent(id)}`);

/** Also when the page is just being left. */
export const endSession = (id: string): Promise<unknown> =>
  ask(`/v1/realtime/sessions/${encodeURIComponent(id)}`, { method: 'DELETE', keepalive: true });

/** A short-lived key for one connection, where the server wants keys at all. */
export async function credentials(): Promise<string | undefined> {
  try {
    if (!key.get()) {
      await models();
      return undefined;
    }
    const body = JSON.stringify({ session: { type: 'realtime' } });
    const minted = await ask<{ value: string }>('/v1/realtime/client_secrets', {
      method: 'POST',
      body,
    });
    return minted.value;
  } catch (error) {
    if (error instanceof Denied && (error.status === 401 || error.status === 403)) {
      throw new Ended(error.code, error.message);
    }
    throw error;
  }
}
