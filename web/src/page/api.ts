/** HTTP requests of the page, and their errors. */

import { ConnectionClosedError, OFFLINE_REASON } from '../client/index.js';

export interface Model {
  id: string;
  max_model_len: number;
}

export interface EngineStats {
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
  /** `tenant.stats` if the key permits no more than its own tenant's. */
  object: 'server.stats' | 'tenant.stats';
  model: string;
  device: string;
  dtype: string;
  max_model_len: number;
  page_size: number;
  up_s: number;
  sessions: number;
  engine: EngineStats | null;
  warnings: { at: number; level: string; message: string }[];
}

/** Where a session's KV is, in tokens and in pages. */
export interface SessionKV {
  place: 'device' | 'host' | 'none';
  tokens: number;
  pages: number;
  host_tokens: number;
  host_pages: number;
  /** Tokens whose KV was evicted and has to be recomputed. */
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

/** A session as operators see it. */
export interface AdminSession extends SessionStatus {
  tenant: string;
  is_connected: boolean;
  age_s: number;
}

/** An error response of the server. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.code = code;
  }
}

const API_KEY_STORAGE_KEY = 'continuo.key';
/** Replaces the server's message, which is written for developers. */
const MISSING_KEY_MESSAGE = 'This server requires an API key. Ask its operator for one.';

/** The API key, stored for this tab only, until it is closed. */
export const apiKey = {
  get: (): string => sessionStorage.getItem(API_KEY_STORAGE_KEY) ?? '',
  set: (value: string): void => {
    if (value) sessionStorage.setItem(API_KEY_STORAGE_KEY, value);
    else sessionStorage.removeItem(API_KEY_STORAGE_KEY);
  },
};

/** The absolute URL of a path relative to this page, which a proxy may serve under a prefix. */
export const serverUrl = (path: string): string => new URL(path, location.href).href;

/** Send a request and return its JSON body. Throws ApiError for an error response. */
export async function fetchJson<T>(path: string, init: RequestInit = {}): Promise<T> {
  return (await (await send(path, 'application/json', init)).json()) as T;
}

/** Send a request with the API key. Throws ApiError for an error response. */
async function send(path: string, accept: string, init: RequestInit = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: accept, ...(init.headers as Record<string, string>) };
  if (apiKey.get()) headers.Authorization = `Bearer ${apiKey.get()}`;
  let response: Response;
  try {
    response = await fetch(serverUrl(path), { ...init, headers });
  } catch {
    throw new Error(navigator.onLine ? 'the server cannot be reached' : OFFLINE_REASON);
  }
  if (response.ok) return response;
  const body = (await response.json().catch(() => null)) as {
    error?: { code: string; message: string };
  } | null;
  const { code, message } = body?.error ?? { code: `http_${response.status}`, message: '' };
  const text = code === 'missing_api_key' ? MISSING_KEY_MESSAGE : message;
  throw new ApiError(response.status, code, text || `The server returned status ${response.status}.`);
}

export const fetchModels = async (): Promise<Model[]> =>
  (await fetchJson<{ data: Model[] }>('v1/models')).data;

export const fetchStats = (): Promise<ServerStats> => fetchJson('v1/stats');

/** The sessions of all tenants in the memory of this gateway. */
export const fetchAllSessions = (): Promise<{ data: AdminSession[]; has_more: boolean }> =>
  fetchJson('v1/admin/sessions');

/** Unload a session from memory; its client resumes it from the store. */
export const evictSession = (id: string): Promise<unknown> =>
  fetchJson(`v1/admin/sessions/${encodeURIComponent(id)}/evict`, { method: 'POST' });

/** End a session of any tenant and delete it. */
export const endSession = (id: string): Promise<unknown> =>
  fetchJson(`v1/admin/sessions/${encodeURIComponent(id)}`, { method: 'DELETE' });

/** Stop the gateway when its responses have ended. */
export const drainServer = (): Promise<unknown> => fetchJson('v1/admin/drain', { method: 'POST' });

export const fetchMetrics = async (): Promise<string> => (await send('metrics', 'text/plain')).text();

/** Whether the page's API key, or none, permits to see and control the server. */
export const isOperator = (): Promise<boolean> =>
  fetchStats().then(
    (stats) => stats.object === 'server.stats',
    () => false,
  );

export const fetchSession = (id: string): Promise<SessionStatus> =>
  fetchJson(`v1/realtime/sessions/${encodeURIComponent(id)}`);

/** Delete a session; completes even while the page is being closed. */
export const deleteSession = (id: string): Promise<unknown> =>
  fetchJson(`v1/realtime/sessions/${encodeURIComponent(id)}`, { method: 'DELETE', keepalive: true });

/** Returns a short-lived key for one connection, or undefined if the server requires no key. */
export async function fetchClientSecret(): Promise<string | undefined> {
  try {
    if (!apiKey.get()) {
      await fetchModels();
      return undefined;
    }
    const body = JSON.stringify({ session: { type: 'realtime' } });
    const secret = await fetchJson<{ value: string }>('v1/realtime/client_secrets', {
      method: 'POST',
      body,
    });
    return secret.value;
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
      throw new ConnectionClosedError(error.code, error.message);
    }
    throw error;
  }
}
