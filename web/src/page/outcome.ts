/** How answers ended that are not whole, in plain words. Pure. */

import type { Turn } from '../client/index.js';

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

/** Why an answer failed. */
export function failure(turn: Turn): string {
  const { code, message } = turn.response.status_details?.error ?? { code: '', message: '' };
  const when = turn.items.length > 0 ? 'while it answered' : 'before it answered';
  const who = WHO[code];
  return [who ? `${who} ${when}.` : 'The answer failed.', sentence(message)].join(' ').trim();
}

/** What is said of a message that nothing answers; `why`: as far as it is known. */
export function unanswered(why: string): Unanswered {
  return why ? { why, way: 'Try again' } : { why: 'This has no answer yet.', way: 'Ask for one' };
}

/** With a capital and a full stop. */
export function sentence(words: string): string {
  const capital = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$|^$/.test(capital) ? capital : `${capital}.`;
}
