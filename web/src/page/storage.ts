/** Conversations stored in this browser (localStorage). */

import type {
  ClientEvent,
  ConversationJson,
  KVResidency,
  RealtimeResponse,
  ResumePoint,
  SessionSettings,
} from '../client/index.js';

/** Metrics of one turn; times in milliseconds, measured in the page. */
export interface TurnMetrics {
  id: string;
  /** Time to first token; null if the page was not open when the response was requested. */
  ttft: number | null;
  /** Mean time per output token after the first; null if it could not be measured. */
  itl: number | null;
  tokens: number;
  prefilled: number;
  reused: number;
  residency: KVResidency | null;
}

/** A conversation as stored; its field names are part of the stored format. */
export interface StoredConversation {
  id: string;
  title: string;
  /** Id of the conversation it was branched from. */
  parent: string | null;
  updated: number;
  /** Resume point of the session; null if it has none. */
  position: ResumePoint | null;
  saved: ConversationJson;
  settings: SessionSettings;
  model: string | null;
  metrics: TurnMetrics[];
  draft: string;
  pending: ClientEvent[];
}

const CONVERSATION_STORAGE_KEY_PREFIX = 'continuo.talk.';
const INDEX_STORAGE_KEY = 'continuo.index';
const SETTINGS_STORAGE_KEY = 'continuo.settings';
/** Maximum number of stored conversations; the least recently updated is evicted first. */
export const CONVERSATIONS_MAX = 50;

/** Returns an empty conversation; a branch takes over the settings and the model of its `parent`. */
export function newConversation(parent: StoredConversation | null = null): StoredConversation {
  return {
    id: crypto.getRandomValues(new Uint32Array(2)).reduce((id, n) => id + n.toString(36), ''),
    title: '',
    parent: parent?.id ?? null,
    updated: Date.now(),
    position: null,
    saved: { items: [], turns: [] },
    settings: parent?.settings ?? defaultSettings.get(),
    model: parent?.model ?? null,
    metrics: [],
    draft: '',
    pending: [],
  };
}

/** Settings of new conversations. */
export const defaultSettings = {
  get: (): SessionSettings => readJson<SessionSettings>(SETTINGS_STORAGE_KEY) ?? {},
  set: (settings: SessionSettings): void => {
    writeJson(SETTINGS_STORAGE_KEY, settings);
  },
};

export function loadConversation(id: string): StoredConversation | null {
  return readJson<StoredConversation>(CONVERSATION_STORAGE_KEY_PREFIX + id);
}

/** The part of a conversation that the sidebar shows. */
export type ConversationSummary = Pick<StoredConversation, 'id' | 'title' | 'parent' | 'updated'>;

/** Returns all conversations, the most recently updated first. */
export function listConversations(): ConversationSummary[] {
  const index = readJson<Record<string, ConversationSummary>>(INDEX_STORAGE_KEY) ?? {};
  return Object.values(index).sort((a, b) => b.updated - a.updated);
}

export function saveConversation(stored: StoredConversation): void {
  const turns = stored.saved.turns.map((turn) => ({ ...turn, response: withoutOutput(turn.response) }));
  writeJson(CONVERSATION_STORAGE_KEY_PREFIX + stored.id, { ...stored, saved: { ...stored.saved, turns } });
  const { id, title, parent, updated } = stored;
  const others = listConversations().filter((one) => one.id !== id);
  for (const old of others.splice(CONVERSATIONS_MAX - 1)) {
    localStorage.removeItem(CONVERSATION_STORAGE_KEY_PREFIX + old.id);
  }
  writeIndex([{ id, title, parent, updated }, ...others]);
}

export function deleteConversation(id: string): void {
  localStorage.removeItem(CONVERSATION_STORAGE_KEY_PREFIX + id);
  writeIndex(listConversations().filter((one) => one.id !== id));
}

function writeIndex(summaries: ConversationSummary[]): void {
  writeJson(INDEX_STORAGE_KEY, Object.fromEntries(summaries.map((one) => [one.id, one])));
}

/** Write a value. If the storage is full, evict the least recently updated conversations. */
function writeJson(name: string, value: unknown): void {
  const text = JSON.stringify(value);
  for (let attempt = 0; attempt < CONVERSATIONS_MAX; attempt += 1) {
    try {
      localStorage.setItem(name, text);
      return;
    } catch {
      const oldest = listConversations().findLast((one) => CONVERSATION_STORAGE_KEY_PREFIX + one.id !== name);
      if (!oldest) return;
      localStorage.removeItem(CONVERSATION_STORAGE_KEY_PREFIX + oldest.id);
    }
  }
}

function readJson<T>(name: string): T | null {
  try {
    return JSON.parse(localStorage.getItem(name) ?? 'null') as T | null;
  } catch {
    return null;
  }
}

/** Returns a response without its output, which the conversation's items already contain. */
function withoutOutput(response: RealtimeResponse): RealtimeResponse {
  return { ...response, output: [] };
}
