/** Export of a conversation as Markdown or JSON, and import of that JSON. Pure. */

import {
  type ClientEvent,
  type Item,
  type NewItem,
  type SessionSettings,
  textOf,
} from '../client/index.js';
import { nameOfModel } from './format.js';
import { itemsOf, newConversation, randomId, type StoredConversation, titleFrom, titleOf } from './storage.js';

const FORMAT = 'continuo.conversation';
const FORMAT_VERSION = 1;
export const IMPORT_ITEMS_MAX = 2000;

/** An exported conversation; its field names are part of the format of the file. */
interface ExportedConversation {
  format: typeof FORMAT;
  version: typeof FORMAT_VERSION;
  exported: string;
  title: string;
  /** Whether the user chose the title. */
  renamed: boolean;
  /** Of a branch, as it is stored. */
  branch?: StoredConversation['branch'];
  model: string | null;
  settings: SessionSettings;
  /** The items of the version that was open. */
  items: NewItem[];
  /** The items of the other versions, in the order in which these were made. */
  versions: NewItem[][];
  /** How many of these were made before the version that was open. */
  before: number;
}

/** A file that cannot be imported; the message is for the user. */
export class ImportError extends Error {}

// ---------------------------------------------------------------- export

export function toMarkdown(stored: StoredConversation, model: string | null): string {
  const name = nameOfModel(model);
  const sections = itemsOf(stored).map((item) => itemToMarkdown(item, name)).filter(Boolean);
  const source = model === null ? '' : `\n\nA conversation with the model \`${model}\`.`;
  return `# ${stored.title || 'Untitled'}${source}\n\n${sections.join('\n\n')}\n`;
}

function itemToMarkdown(item: Item, model: string): string {
  switch (item.type) {
    case 'message': {
      const heading = { user: 'You', assistant: model, system: 'System' }[item.role];
      const note = item.status === 'incomplete' ? '\n\n*(incomplete)*' : '';
      return `## ${heading}\n\n${textOf(item).trim()}${note}`;
    }
    case 'function_call':
      return `## ${model}\n\nCalled \`${item.name}\`:\n\n${fenced(item.arguments, 'json')}`;
    case 'function_call_output':
      return `## Tool\n\n${fenced(item.output, '')}`;
  }
}

/** Returns a code block, fenced by more backticks than the text contains in a row. */
function fenced(text: string, language: string): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = '`'.repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

/** `versions`: all versions of the conversation, `stored` among them. */
export function toJson(
  stored: StoredConversation,
  versions: StoredConversation[],
  model: string | null,
): string {
  const madeAt = (one: StoredConversation): number => one.version?.made ?? 0;
  const others = versions
    .filter((one) => one.id !== stored.id && itemsOf(one).length > 0)
    .sort((a, b) => madeAt(a) - madeAt(b));
  const exported: ExportedConversation = {
    format: FORMAT,
    version: FORMAT_VERSION,
    exported: new Date().toISOString(),
    title: stored.title,
    renamed: stored.renamed === true,
    ...(stored.branch && { branch: stored.branch }),
    model,
    settings: stored.settings,
    items: itemsOf(stored),
    versions: others.map(itemsOf),
    before: others.filter((one) => madeAt(one) < madeAt(stored)).length,
  };
  return `${JSON.stringify(exported, null, 2)}\n`;
}

/** Returns a name for the exported file, without its extension. */
export function fileNameOf(title: string): string {
  const words = title.toLowerCase().match(/[\p{Letter}\p{Number}]+/gu) ?? [];
  return words.join('-').slice(0, 48).replace(/-$/, '') || 'conversation';
}

// ---------------------------------------------------------------- import

/** Returns the versions of a new conversation with the content of an exported one, the one to open first.
 * Its items are created on the server when it is opened. Throws ImportError. */
export function fromJson(text: string): [StoredConversation, ...StoredConversation[]] {
  const exported = parse(text);
  const itemLists = [exported.items, ...exported.versions];
  const total = itemLists.reduce((sum, items) => sum + items.length, 0);
  if (exported.items.length === 0) throw new ImportError('The file contains no messages.');
  if (total > IMPORT_ITEMS_MAX) {
    throw new ImportError(
      `The file has ${total.toLocaleString('en')} messages; at most ` +
        `${IMPORT_ITEMS_MAX.toLocaleString('en')} can be imported.`,
    );
  }
  const now = Date.now();
  const opened = importedVersion(exported, exported.items, now);
  const others = exported.versions.map((items, i) => importedVersion(exported, items, now - i - 1));
  const ordered = others.toSpliced(exported.before, 0, opened);
  const [first = opened] = ordered;
  for (const [i, one] of ordered.entries()) {
    if (one !== first) one.version = { of: first.id, made: now + i };
  }
  return [opened, ...others];
}

function importedVersion(exported: ExportedConversation, items: NewItem[], updated: number): StoredConversation {
  const events = items.map((item): ClientEvent => {
    return { type: 'conversation.item.create', event_id: `event_${randomId()}`, item };
  });
  const { branch, renamed, settings, title } = exported;
  return {
    ...newConversation(),
    updated,
    settings,
    title: renamed ? title : titleOf(items as Item[], branch) || title,
    ...(renamed && { renamed }),
    ...(branch && { branch }),
    pending: events,
  };
}

function parse(text: string): ExportedConversation {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    throw new ImportError('The file is not JSON. Choose one that this page exported.');
  }
  if (!isObject(json) || json.format !== FORMAT) {
    throw new ImportError('The file is not a conversation that this page exported as JSON.');
  }
  if (json.version !== FORMAT_VERSION) {
    throw new ImportError(`The file has version ${String(json.version)} of the format; this page reads version 1.`);
  }
  const versions = Array.isArray(json.versions) ? json.versions : [];
  return {
    format: FORMAT,
    version: FORMAT_VERSION,
    exported: '',
    title: typeof json.title === 'string' ? titleFrom(json.title) : '',
    renamed: json.renamed === true,
    ...parseBranch(json.branch),
    model: null,
    settings: isObject(json.settings) ? json.settings : {},
    before: typeof json.before === 'number' ? json.before : 0,
    items: parseItems(json.items, 'items'),
    versions: versions.map((items, i) => parseItems(items, `versions[${i}]`)),
  };
}

function parseBranch(json: unknown): Pick<ExportedConversation, 'branch'> {
  if (!isObject(json) || typeof json.shared !== 'number' || typeof json.of !== 'string') return {};
  return { branch: { shared: json.shared, of: titleFrom(json.of) } };
}

function parseItems(json: unknown, path: string): NewItem[] {
  if (!Array.isArray(json)) throw new ImportError(`The file is damaged: '${path}' is not a list.`);
  const ids = new Set<string>();
  return json.map((item, i) => {
    const parsed = isObject(item) ? parseItem(item) : null;
    if (parsed === null) throw new ImportError(`The file is damaged: '${path}[${i}]' is not a message.`);
    if (ids.has(parsed.id)) throw new ImportError(`The file is damaged: '${path}[${i}].id' occurs twice.`);
    ids.add(parsed.id);
    return parsed;
  });
}

/** Returns an item with its known fields only, or null if one of these is missing or malformed. */
function parseItem(json: Record<string, unknown>): (NewItem & { id: string }) | null {
  const text = (name: string): string => (typeof json[name] === 'string' ? json[name] : '');
  const id = text('id');
  if (!/^[\w.-]{1,128}$/.test(id)) return null;
  switch (json.type) {
    case 'message': {
      const { role, content } = json;
      if (role !== 'user' && role !== 'assistant' && role !== 'system') return null;
      if (!Array.isArray(content) || !content.every(isTextPart)) return null;
      const type = role === 'assistant' ? 'output_text' : 'input_text';
      const parts = content.map((part) => ({ type, text: part.text ?? part.transcript ?? '' }) as const);
      return { id, type: 'message', role, content: parts };
    }
    case 'function_call':
      if (!text('call_id') || !text('name')) return null;
      return { id, type: 'function_call', call_id: text('call_id'), name: text('name'), arguments: text('arguments') };
    case 'function_call_output':
      if (!text('call_id')) return null;
      return { id, type: 'function_call_output', call_id: text('call_id'), output: text('output') };
    default:
      return null;
  }
}

function isTextPart(part: unknown): part is { text?: string; transcript?: string } {
  if (!isObject(part)) return false;
  return typeof (part.text ?? part.transcript) === 'string';
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
