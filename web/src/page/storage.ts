/** Conversations stored in this browser (localStorage). */

import {
  type ClientEvent,
  type ConversationJson,
  type Item,
  type KVResidency,
  type RealtimeResponse,
  type ResumePoint,
  type SessionSettings,
  textOf,
} from '../client/index.js';
import { deleteQueue, loadQueue, type MessageQueue, QUEUE_STORAGE_KEY_PREFIX, type QueuedMessage } from './message_queue.js';
import { type Thought, Thoughts } from './thoughts.js';

/** Metrics of one turn; times in milliseconds, measured in the page. */
export interface TurnMetrics {
  id: string;
  /** Time to first token; null if the page was not open, or not connected, meanwhile. */
  ttft: number | null;
  /** Mean time per output token after the first; null if it could not be measured. */
  itl: number | null;
  /** Whether it could not because the tokens arrived together. */
  together?: boolean;
  tokens: number;
  prefilled: number;
  reused: number;
  residency: KVResidency | null;
}

/** One version of a conversation as stored; its field names are part of the stored format. */
export interface StoredConversation {
  id: string;
  title: string;
  /** Whether the user named the conversation; otherwise the title follows its first message. */
  renamed?: boolean;
  /** The conversation that this is a version of (the id of its first version), and when an edit or a
   * regeneration made it. Absent in the first version. */
  version?: { of: string; made: number };
  /** Id of the conversation it was branched from. */
  parent: string | null;
  /** Of a branch: how many of its first items it shares with that conversation, and the title of that then.
   * Its own title follows its first message after those. */
  branch?: { shared: number; of: string };
  updated: number;
  /** Resume point of the session; null if it has none. */
  position: ResumePoint | null;
  saved: ConversationJson;
  settings: SessionSettings;
  model: string | null;
  metrics: TurnMetrics[];
  /** What the model thought before its responses, by their ids. The server does not send it again. */
  thoughts?: Record<string, Thought>;
  draft: string;
  pending: ClientEvent[];
  /** Messages that wait for the connection, or for the response to the message before, as of when it was
   * loaded; they are stored under keys of their own (`MessageQueue`). */
  queue?: QueuedMessage[];
}

const CONVERSATION_STORAGE_KEY_PREFIX = 'continuo.talk.';
export const INDEX_STORAGE_KEY = 'continuo.index';
const SETTINGS_STORAGE_KEY = 'continuo.settings';
/** Maximum number of stored conversations; the least recently updated is removed first. */
export const CONVERSATIONS_MAX = 50;
/** Maximum number of stored versions of one conversation. */
export const VERSIONS_MAX = 20;
/** A longer one, such as with a draft of megabytes, removes no others. */
const REMOVAL_CHARS_MAX = 1_000_000;
const TITLE_CHARS_MAX = 60;

let onNotice: (text: string) => void = () => undefined;

/** Call `listener` with a sentence for the user when the storage is full. */
export function onStorageNotice(listener: (text: string) => void): void {
  onNotice = listener;
}

/** Returns an empty conversation; a branch takes over the settings and the model of its `parent`. */
export function newConversation(parent: StoredConversation | null = null): StoredConversation {
  return {
    id: randomId(),
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

/** Returns a new conversation, or with `isVersion` a new version of `parent`, that begins with its first
 * `count` items. */
export function forkConversation(
  parent: StoredConversation,
  { items, turns }: ConversationJson,
  count: number,
  isVersion: boolean,
): StoredConversation {
  const shared = items.slice(0, count);
  const ids = new Set(shared.map((item) => item.id));
  const sharedTurns = turns.filter((turn) => turn.items.some((id) => ids.has(id)));
  return {
    ...newConversation(parent),
    ...(isVersion ? versionFields(parent, count) : branchFields(parent, count)),
    saved: { items: shared, turns: sharedTurns },
    metrics: parent.metrics.filter((metrics) => sharedTurns.some((turn) => turn.id === metrics.id)),
    thoughts: new Thoughts(parent.thoughts).toJSON(sharedTurns.map(({ id }) => id)),
  };
}

function versionFields(parent: StoredConversation, count: number): Partial<StoredConversation> {
  const { title, renamed, branch } = parent;
  return {
    parent: parent.parent,
    version: { of: conversationOf(parent), made: Date.now() },
    title,
    ...(renamed && { renamed }),
    ...(branch && { branch: { ...branch, shared: Math.min(branch.shared, count) } }),
  };
}

function branchFields({ title }: StoredConversation, count: number): Partial<StoredConversation> {
  const branch = { shared: count, of: title };
  return { branch, title: titleOf([], branch) };
}

export function randomId(): string {
  return crypto.getRandomValues(new Uint32Array(2)).reduce((id, n) => id + n.toString(36), '');
}

/** Returns the title of a conversation that begins with the message `text`. */
export function titleFrom(text: string): string {
  const line = text.slice(0, 10 * TITLE_CHARS_MAX).replace(/\s+/g, ' ').trim();
  return line.length > TITLE_CHARS_MAX ? `${line.slice(0, TITLE_CHARS_MAX - 1).trimEnd()}…` : line;
}

/** Returns the title of a conversation that nobody has named: its first message, or that of its own if it is a
 * branch. `waiting`: a message that is not among the items yet. */
export function titleOf(items: readonly Item[], branch: StoredConversation['branch'], waiting = ''): string {
  const own = items.slice(branch?.shared ?? 0).find((item) => item.type === 'message' && item.role === 'user');
  return titleFrom(own ? textOf(own) : waiting) || (branch ? titleFrom(`Branch: ${branch.of}`) : '');
}

/** Returns the items of a stored conversation, with those the server has yet to create. */
export function itemsOf({ saved, pending }: StoredConversation): Item[] {
  const known = new Set(saved.items.map((item) => item.id));
  const created = pending.flatMap((event) =>
    event.type === 'conversation.item.create' && !known.has(event.item.id ?? '') ? [event.item as Item] : [],
  );
  return [...saved.items, ...created];
}

/** Settings of new conversations. */
export const defaultSettings = {
  get: (): SessionSettings => readJson<SessionSettings>(SETTINGS_STORAGE_KEY) ?? {},
  set: (settings: SessionSettings): void => {
    writeJson(SETTINGS_STORAGE_KEY, settings);
  },
};

export function loadConversation(id: string): StoredConversation | null {
  const stored = readJson<StoredConversation>(CONVERSATION_STORAGE_KEY_PREFIX + id);
  // Earlier versions of this page stored the queue with the conversation.
  return stored && { ...stored, queue: [...(stored.queue ?? []), ...loadQueue(id)] };
}

/** What is known of a stored version without loading it; its field names are part of the stored format. */
export interface VersionSummary
  extends Pick<StoredConversation, 'id' | 'title' | 'parent' | 'updated' | 'version'> {
  /** Whether it has a draft only. */
  empty?: boolean;
}

/** A conversation as the sidebar lists it. */
export interface ConversationSummary {
  /** Id of the conversation: that of its first version. */
  conversation: string;
  /** The version that was open last, with its title. */
  id: string;
  title: string;
  /** The conversation it was branched from. */
  parent: string | null;
  updated: number;
}

/** Returns the id of the conversation of which this is a version. */
export function conversationOf({ id, version }: Pick<StoredConversation, 'id' | 'version'>): string {
  return version?.of ?? id;
}

/** Returns all conversations that contain messages, the most recently updated first. */
export function listConversations(): ConversationSummary[] {
  const versions = listVersions();
  const conversationOfVersion = new Map(versions.map((one) => [one.id, conversationOf(one)]));
  const listed = versions.filter((one) => !one.empty);
  return [...firstOfEach(listed).entries()].map(([conversation, { id, title, parent, updated }]) => ({
    conversation,
    id,
    title,
    parent: parent && (conversationOfVersion.get(parent) ?? parent),
    updated,
  }));
}

/** Load the versions of a conversation, except one. */
export function loadVersions(conversation: string, except = ''): StoredConversation[] {
  const ids = versionsOf(conversation).map(({ id }) => id);
  return ids.filter((id) => id !== except).flatMap((id) => loadConversation(id) ?? []);
}

/** Store a conversation, without its queue. Returns whether there was room, made by the removal of others if
 * necessary, which the user is told. */
export function saveConversation(stored: StoredConversation): boolean {
  return makeRoom(stored, JSON.stringify(stored).length, () => storeWithoutRemoval(stored));
}

/** Store a queued message of a conversation, with the removal of others if necessary. */
export function saveQueued(stored: StoredConversation, queue: MessageQueue, message: QueuedMessage): void {
  if (!makeRoom(stored, message.text.length, () => queue.add(message))) queue.addUnstored(message);
}

/** Repeat `store`, which returns false if the storage is full, and remove the oldest other conversation each
 * time. Returns whether it succeeded. */
function makeRoom(stored: StoredConversation, chars: number, store: () => boolean): boolean {
  const removed: string[] = [];
  while (!store()) {
    const others = listConversations().filter((one) => one.conversation !== conversationOf(stored));
    const oldest = chars <= REMOVAL_CHARS_MAX ? others.at(-1) : undefined;
    if (!oldest) {
      onNotice(
        'This browser’s storage for this page is full: this conversation is no longer saved here. ' +
          'Export it to keep it, or delete others.',
      );
      return false;
    }
    removed.push(`“${oldest.title}”`);
    deleteConversation(oldest.conversation);
  }
  if (removed.length > 0) {
    onNotice(`This browser’s storage for this page is full. Removed to make room: ${removed.join(', ')}.`);
  }
  return true;
}

/** Store a conversation. Returns false if the storage is full. */
export function storeWithoutRemoval(stored: StoredConversation): boolean {
  const turns = stored.saved.turns.map((turn) => ({ ...turn, response: withoutOutput(turn.response) }));
  const value = { ...stored, saved: { ...stored.saved, turns }, queue: undefined };
  if (!writeJson(CONVERSATION_STORAGE_KEY_PREFIX + stored.id, value)) return false;
  const { id, title, parent, updated, version } = stored;
  const isEmpty = itemsOf(stored).length === 0 && !stored.pending.some(isCommit) && loadQueue(stored.id).length === 0;
  const summary = { id, title, parent, updated, ...(version && { version }), ...(isEmpty && { empty: true }) };
  return writeIndex([summary, ...listVersions().filter((one) => one.id !== id)]) && removeExcess(stored);
}

function isCommit(event: ClientEvent): boolean {
  return event.type === 'input_text_buffer.commit';
}

/** Remove what exceeds the maximum number of conversations and of versions. */
function removeExcess(stored: StoredConversation): true {
  const conversation = conversationOf(stored);
  const excess = [...firstOfEach(listVersions()).keys()].filter((one) => one !== conversation);
  for (const old of excess.splice(CONVERSATIONS_MAX - 1)) deleteConversation(old);
  const versions = versionsOf(conversation).filter(({ id }) => id !== stored.id);
  for (const { id } of versions.splice(VERSIONS_MAX - 1)) {
    deleteVersion(id);
    onNotice(`A conversation keeps ${VERSIONS_MAX} versions: the one not opened for the longest time was removed.`);
  }
  return true;
}

/** Name all versions of a conversation; an empty name lets the title follow the first message again. */
export function renameConversation(conversation: string, title: string): void {
  for (const stored of loadVersions(conversation)) {
    saveConversation({ ...stored, renamed: title !== '', title: title || titleOf(itemsOf(stored), stored.branch) });
  }
}

/** Delete all versions of a conversation. */
export function deleteConversation(conversation: string): void {
  for (const { id } of versionsOf(conversation)) deleteVersion(id);
}

/** Remove all conversations from this browser, with their queued messages and the settings of new ones. The tabs
 * of this page notice that the index is gone. */
export function forgetConversations(): void {
  const prefixes = [CONVERSATION_STORAGE_KEY_PREFIX, QUEUE_STORAGE_KEY_PREFIX, SETTINGS_STORAGE_KEY, INDEX_STORAGE_KEY];
  for (const key of Object.keys(localStorage)) {
    if (prefixes.some((prefix) => key.startsWith(prefix))) localStorage.removeItem(key);
  }
}

export function deleteVersion(id: string): void {
  deleteQueue(id);
  localStorage.removeItem(CONVERSATION_STORAGE_KEY_PREFIX + id);
  writeIndex(listVersions().filter((one) => one.id !== id));
}

/** Returns all stored versions, the most recently updated first. */
export function listVersions(): VersionSummary[] {
  const index = readJson<Record<string, VersionSummary>>(INDEX_STORAGE_KEY) ?? {};
  return Object.values(index).sort((a, b) => b.updated - a.updated);
}

function versionsOf(conversation: string): VersionSummary[] {
  return listVersions().filter((one) => conversationOf(one) === conversation);
}

/** Returns the first version in the list of each conversation. */
function firstOfEach(versions: VersionSummary[]): Map<string, VersionSummary> {
  const first = new Map<string, VersionSummary>();
  for (const one of versions) {
    if (!first.has(conversationOf(one))) first.set(conversationOf(one), one);
  }
  return first;
}

function writeIndex(summaries: VersionSummary[]): boolean {
  return writeJson(INDEX_STORAGE_KEY, Object.fromEntries(summaries.map((one) => [one.id, one])));
}

/** Write a value. Returns false if the storage is full. */
function writeJson(name: string, value: unknown): boolean {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
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
