/** How answers ended that are not whole, in plain words. Pure. */

import type { Conversation, Turn } from '../client/index.js';

/** Why the last message has no answer, or none that is whole, and what can be done about it. */
export interface Unanswered {
  why: string;
  way: string;
}

/** By the code of what went wrong. */
const WHO: Record<string, string> = {
  turn_failed: 'The model failed',
  model_error: 'The model failed',
  engine_lost: 'The engine was lost',
  server_error: 'The server failed',
};

/** What is written below the words that came. */
export function cutBecause(turn: Turn | undefined): string {
  switch (turn?.response.status) {
    case 'failed':
      return 'broke off';
    case 'incomplete':
      return 'ends here: no longer answer is allowed';
    default:
      return 'stopped';
  }
}

/** null: the last message has its answer, or a tool is called (`calling`) and may return.
 * `refusal`: why no answer was begun. */
export function unanswered(
  conversation: Conversation,
  calling: boolean,
  refusal: string,
): Unanswered | null {
  const last = conversation.turns.findLast((turn) => turn.response.conversation_id !== null);
  const failed = last?.response.status === 'failed' ? last : undefined;
  if (conversation.awaitsAnswer && !calling) {
    if (refusal) return { why: `No answer. ${sentence(refusal)}`, way: 'Try again' };
    if (failed?.items.length === 0) return { why: failure(failed), way: 'Try again' };
    return { why: 'This has no answer yet.', way: 'Ask for one' };
  }
  const broken = failed?.items.includes(conversation.items.at(-1)?.id ?? '');
  return failed && broken ? { why: failure(failed), way: 'Try again' } : null;
}

function failure(turn: Turn): string {
  const { code, message } = turn.response.status_details?.error ?? { code: '', message: '' };
  const when = turn.items.length > 0 ? 'while it answered' : 'before it answered';
  const who = WHO[code];
  return [who ? `${who} ${when}.` : 'The answer failed.', sentence(message)].join(' ').trim();
}

/** With a capital and a full stop. */
function sentence(words: string): string {
  const capital = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$|^$/.test(capital) ? capital : `${capital}.`;
}
