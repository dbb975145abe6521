/** Titles of conversations, branches and versions. */

import { expect, it } from 'vitest';
import type { Item } from '../../src/client/index.js';
import { forkConversation, newConversation, titleOf } from '../../src/page/storage.js';

const message = (id: string, role: 'user' | 'assistant', text: string): Item => ({
  id,
  type: 'message',
  role,
  content: [{ type: role === 'user' ? 'input_text' : 'output_text', text }],
});
const ITEMS = [message('u1', 'user', 'My name is Ada.'), message('a1', 'assistant', 'Hello!')];
const OWN = message('u2', 'user', 'Who am I?');

const parent = { ...newConversation(), title: 'Names', renamed: true, saved: { items: ITEMS, turns: [] } };

it('names a branch after its own first message, and until then after its parent', () => {
  const branch = forkConversation(parent, parent.saved, 2, false);
  expect(branch).toMatchObject({ title: 'Branch: Names', parent: parent.id, branch: { shared: 2, of: 'Names' } });
  expect(branch.renamed).toBeUndefined();
  expect(titleOf(ITEMS, branch.branch)).toBe('Branch: Names');
  expect(titleOf(ITEMS, branch.branch, 'On its way')).toBe('On its way');
  expect(titleOf([...ITEMS, OWN], branch.branch)).toBe('Who am I?');
  expect(titleOf([...ITEMS, OWN], undefined)).toBe('My name is Ada.');
  expect(titleOf([], undefined)).toBe('');
});

it('lets a version keep the name, and the title of a branch follow a message edited in it', () => {
  expect(forkConversation(parent, parent.saved, 1, true)).toMatchObject({ title: 'Names', renamed: true, parent: null });
  const branch = { ...forkConversation(parent, parent.saved, 2, false), title: 'Who am I?' };
  const saved = { items: [...ITEMS, OWN], turns: [] };
  const version = forkConversation(branch, saved, 2, true); // in which its own first message is replaced
  expect(version).toMatchObject({ title: 'Who am I?', parent: parent.id, branch: { shared: 2 } });
  const earlier = forkConversation(branch, saved, 0, true); // in which the first of all is
  expect(titleOf([message('u3', 'user', 'My name is Bo.')], earlier.branch)).toBe('My name is Bo.');
});
