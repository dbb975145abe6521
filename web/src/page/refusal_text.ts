/** What a refusal by the server says to the user. Pure. */

/** The fields of an error that describe it. */
export interface Refused {
  code: string | null;
  message: string;
}

const CONTEXT_TOKENS = /maximum context length is ([\d,]+) tokens/;
/** What is too long, as the server words it. */
const ADDED_TOKENS = /adds ([\d,]+) tokens to the ([\d,]+) of the conversation/;
const TEXT_TOKENS_MIN = /at least ([\d,]+) tokens/;
const TEXT_TOKENS_ABOVE = /is more than ([\d,]+) tokens/;
const PROMPT_TOKENS = /prompt of this response is ([\d,]+) tokens/;
const BUFFER_CHARS = /would hold ([\d,]+) characters; it holds ([\d,]+)/;
const REQUEST_CHARS = /are ([\d,]+) characters together .* limit is ([\d,]+)/;

/** Returns why a message or a response was refused; for most errors what the server says. */
export function describeRefusal({ code, message }: Refused): string {
  switch (code) {
    case 'context_length_exceeded':
      return describeContextOverflow(message) ?? message;
    case 'string_above_max_length': {
      const match = BUFFER_CHARS.exec(message) ?? REQUEST_CHARS.exec(message);
      return match ? `Your message is too long: ${match[1]} characters; at most ${match[2]} are accepted.` : message;
    }
    case 'frame_too_large':
      return 'Your message is too long to send.';
    default:
      return message;
  }
}

/** Returns null if the message is worded in another way. */
function describeContextOverflow(message: string): string | null {
  const limit = numberIn(CONTEXT_TOKENS, message);
  if (!limit) return null;
  const takes = `this model takes ${limit.toLocaleString('en')}`;
  const added = ADDED_TOKENS.exec(message);
  if (added) {
    const [, tokens = '', before = ''] = added;
    if (toNumber(tokens) > limit) return `Your message is too long: ${tokens} tokens; ${takes}.`;
    return `The conversation is too long: your message adds ${tokens} tokens to ${before}; ${takes}.`;
  }
  const prompt = PROMPT_TOKENS.exec(message)?.[1];
  if (prompt) return `The conversation is too long: ${prompt} tokens; ${takes}, with the response.`;
  const least = TEXT_TOKENS_MIN.exec(message)?.[1];
  if (least) return `Your message is too long: at least ${least} tokens; ${takes}.`;
  const above = TEXT_TOKENS_ABOVE.exec(message)?.[1];
  return above ? `Your message is too long: more than ${above} tokens; ${takes}.` : null;
}

function numberIn(pattern: RegExp, message: string): number {
  return toNumber(pattern.exec(message)?.[1] ?? '');
}

function toNumber(text: string): number {
  return Number(text.replaceAll(',', ''));
}
