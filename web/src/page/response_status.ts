/** Descriptions of incomplete and missing responses. Pure. */

import type { Conversation, Turn } from '../client/index.js';

/** Why the last message has no complete response, and the label of the button that requests one. */
export interface MissingResponse {
  reason: string;
  action: string;
}

/** Failed component by error code. */
const FAILED_COMPONENTS: Record<string, string> = {
  turn_failed: 'The model failed',
  model_error: 'The model failed',
  engine_lost: 'The engine was lost',
  server_error: 'The server failed',
};

/** Returns the note below a response that is not complete. */
export function incompleteNote(turn: Turn | undefined): string {
  switch (turn?.response.status) {
    case 'failed':
      return 'Interrupted by an error';
    case 'incomplete':
      return 'Maximum response length reached';
    default:
      return 'Stopped';
  }
}

/** Describe the missing response to the last message. Returns null if it has a response, or while a tool
 * result is awaited. `refusal`: why the last request for a response was refused. */
export function describeMissingResponse(
  conversation: Conversation,
  awaitsToolResult: boolean,
  refusal: string,
): MissingResponse | null {
  const last = conversation.turns.findLast((turn) => turn.response.conversation_id !== null);
  const failed = last?.response.status === 'failed' ? last : undefined;
  if (conversation.needsResponse && !awaitsToolResult) {
    if (refusal) return { reason: `No response. ${asSentence(refusal)}`, action: 'Try again' };
    if (failed?.items.length === 0) return { reason: describeFailure(failed), action: 'Try again' };
    return { reason: 'This message has no response yet.', action: 'Generate response' };
  }
  const incomplete = failed?.items.includes(conversation.items.at(-1)?.id ?? '');
  return failed && incomplete ? { reason: describeFailure(failed), action: 'Try again' } : null;
}

function describeFailure(turn: Turn): string {
  const { code, message } = turn.response.status_details?.error ?? { code: '', message: '' };
  const when = turn.items.length > 0 ? 'during the response' : 'before the response';
  const component = FAILED_COMPONENTS[code];
  const summary = component ? `${component} ${when}.` : 'The response failed.';
  return [summary, asSentence(message)].join(' ').trim();
}

/** Returns the text with a capital and a full stop. */
function asSentence(text: string): string {
  const capital = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$|^$/.test(capital) ? capital : `${capital}.`;
}
