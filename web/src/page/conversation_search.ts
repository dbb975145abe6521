/** Search over the stored conversations. */

import { textOf } from '../client/index.js';
import { search, searchable, type SearchableMessage, type SearchHit } from './search.js';
import {
  type ConversationSummary,
  conversationOf,
  itemsOf,
  listConversations,
  listVersions,
  loadConversation,
} from './storage.js';

export interface ConversationHit {
  summary: ConversationSummary;
  /** The version that contains what was found. */
  version: string;
  hit: SearchHit;
}

class ConversationSearch {
  /** Messages of each version as of its last update. */
  readonly #messages = new Map<string, { updated: number; messages: SearchableMessage[] }>();

  /** Returns the conversations that match, the most recently updated first. */
  find(query: string): ConversationHit[] {
    const versions = listVersions();
    return listConversations().flatMap((summary) => {
      const { conversation, title } = summary;
      const hits = versions
        .filter((one) => conversationOf(one) === conversation)
        .flatMap(({ id, updated }) => {
          const hit = search({ title, messages: this.#messagesOf(id, updated) }, query);
          return hit ? [{ summary, version: id, hit }] : [];
        });
      return hits.find(({ hit }) => hit.message) ?? hits[0] ?? [];
    });
  }

  #messagesOf(id: string, updated: number): SearchableMessage[] {
    const known = this.#messages.get(id);
    if (known?.updated === updated) return known.messages;
    const stored = loadConversation(id);
    const items = stored ? itemsOf(stored).filter((item) => item.type === 'message') : [];
    const messages = items.map((item) => searchable(item.id, textOf(item)));
    this.#messages.set(id, { updated, messages });
    return messages;
  }
}

export const conversationSearch = new ConversationSearch();
