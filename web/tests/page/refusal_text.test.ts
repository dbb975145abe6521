/** The messages are those of the server; the browser tests cover that it still words them so. */

import { expect, it } from 'vitest';
import { describeRefusal } from '../../src/page/refusal_text.js';

const overflow = (detail: string): string =>
  describeRefusal({
    code: 'context_length_exceeded',
    message: `This model's maximum context length is 2048 tokens. ${detail} (context_length_exceeded)`,
  });

it.each([
  [
    "'item.content' adds 57,002 tokens to the 5 of the conversation, together 57,007.",
    'Your message is too long: 57,002 tokens; this model takes 2,048.',
  ],
  [
    "'item' adds 300 tokens to the 1,900 of the conversation, together 2,200.",
    'The conversation is too long: your message adds 300 tokens to 1,900; this model takes 2,048.',
  ],
  [
    "'text' is 600,000 characters of text, at least 37,500 tokens.",
    'Your message is too long: at least 37,500 tokens; this model takes 2,048.',
  ],
  [
    "'text': a text of 24,000 characters is more than 4,096 tokens.",
    'Your message is too long: more than 4,096 tokens; this model takes 2,048.',
  ],
  [
    'The prompt of this response is 2,048 tokens, and one token must be left for the output.',
    'The conversation is too long: 2,048 tokens; this model takes 2,048, with the response.',
  ],
])('says how long a message is: %s', (detail, expected) => {
  expect(overflow(detail)).toBe(expected);
});

it('says how many characters are accepted', () => {
  const code = 'string_above_max_length';
  const buffer = 'The input text buffer would hold 600,000 characters; it holds 524,288.';
  expect(describeRefusal({ code, message: buffer })).toBe(
    'Your message is too long: 600,000 characters; at most 524,288 are accepted.',
  );
  const request = "The texts of this request are 9,000,000 characters together ('item'); the limit is 8,388,608.";
  expect(describeRefusal({ code, message: request })).toBe(
    'Your message is too long: 9,000,000 characters; at most 8,388,608 are accepted.',
  );
});

it('repeats what the server says of any other refusal, or in words that it does not know', () => {
  expect(describeRefusal({ code: 'rate_limit_exceeded', message: 'Wait 3 s.' })).toBe('Wait 3 s.');
  const unknown = { code: 'context_length_exceeded', message: 'Too long, somehow.' };
  expect(describeRefusal(unknown)).toBe('Too long, somehow.');
});
