/** Rendering of responses: Markdown, code, formulas, hostile text, and long responses as they are streamed. */

import { afterAll, beforeAll, expect, it } from 'vitest';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { EXAMPLE_ANSWER } from './example_answer.js';
import { type Replacement, replaceResponses } from './replaced_response.js';
import { browser, server } from './shared.js';

let chat: ChatPage;
let replacement: Replacement;
beforeAll(async () => {
  const context = await browser.newContext({ viewport: { width: 390, height: 780 } });
  await replaceResponses(context, () => replacement);
  chat = await ChatPage.openTab(context, server.url);
  chat.page.setDefaultTimeout(60_000);
  await chat.waitForConnection();
});
afterAll(async () => {
  await chat.close();
});

it('shows tables, code, formulas, tasks and images as readers expect them', async () => {
  replacement = { text: EXAMPLE_ANSWER };
  await chat.sendAndWait('How large is the KV cache?');
  const body = chat.responses.last();

  const table = await body.locator('.table').evaluate((box) => {
    const brokenWords: string[] = [];
    const texts = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode as Text;
      for (const { index, 0: word } of text.data.matchAll(/\S+/g)) {
        const range = new Range();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        if (range.getClientRects().length > 1) brokenWords.push(word);
      }
    }
    const alignments = [...box.querySelectorAll('tbody tr:first-child td')].map((cell) => getComputedStyle(cell).textAlign);
    return { brokenWords, alignments, scrolls: box.scrollWidth > box.clientWidth, focusable: box.tabIndex };
  });
  expect(table).toEqual({
    brokenWords: [],
    alignments: ['left', 'right', 'right', 'right', 'left'],
    scrolls: true,
    focusable: 0,
  });
  expect(await chat.page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);

  const code = body.locator('.code-block');
  expect(await code.locator('.language').innerText()).toBe('python');
  await code.locator('.hljs-keyword').first().waitFor();
  await chat.page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await code.getByRole('button', { name: 'Copy code' }).click();
  await code.locator('.done').waitFor();
  const copied = await chat.page.evaluate(() => navigator.clipboard.readText());
  expect(copied).toMatch(/^from dataclasses import dataclass\n[^]*57,344 bytes$/);
  expect(EXAMPLE_ANSWER).toContain(copied);

  await body.locator('.math-block math mtable').waitFor();
  expect(await body.locator('math').count()).toBe(6);
  expect(await body.locator('math').nth(5).evaluate((formula) => formula.textContent)).toBe('n⋅b');
  const tasks = await body.getByRole('checkbox').evaluateAll((all) => all.map((box) => [box.ariaLabel, (box as HTMLInputElement).checked]));
  expect(tasks).toEqual([['Done', true], ['To do', false]]);
  const image = body.getByRole('link', { name: 'Layout of a page' });
  expect(await image.getAttribute('href')).toBe('https://example.org/page.png');
  expect(await image.getAttribute('rel')).toContain('noreferrer');
  expect(await body.locator('img').count()).toBe(0);
  expect([...chat.requestedHosts]).toEqual([new URL(server.url).host]);
  expect(await body.locator('h3').allInnerTexts()).toEqual(['How large is it?', 'Measure it']);
  expect(await violations(chat)).toEqual([]);
  expect(chat.consoleErrors).toEqual([]);
});

it('shows hostile text as text', async () => {
  const formulas = ['\\href{javascript:alert(1)}{x}', '\\style{position:fixed}{x}', '\\includegraphics{https://x.test/a.png}'];
  formulas.push('\\rule{99999em}{99999em}', '{'.repeat(2000) + '}'.repeat(2000), '\\def\\a{\\a\\a}\\a', '\\text{<img src=x onerror=alert(1)>}');
  formulas.push('\\url{javascript:alert(1)}', '\\class{app}{x}', '\\color{url(https://x.test/)}{x}');
  const parts = [
    '<script>document.title = "1"</script>', '<img src=https://x.test/a.png onerror="document.title = 1">',
    '<svg onload="document.title = 1"><use href="https://x.test/#a"/></svg>', '<!-- comment -->', '<iframe src="//x.test">',
    '[a](javascript:document.title=1) [b](data:text/html,x) [c](/admin) ![d](https://x.test/d.png "e")',
    '[link](https://x.test/"onmouseover="document.title=1 "title\\" onclick=")',
    '```<img/src=x onerror=alert(1)>\n<b>code</b>\n```', '```python" onload="x\nprint(1)\n```',
    `${'> '.repeat(400)}deep`, '*a **b '.repeat(300),
    `|${'a|'.repeat(200)}\n|${'-|'.repeat(200)}\n|${'<b>|'.repeat(200)}`, '[x]: javascript:alert(1)\n\n[x]',
    ...formulas.map((formula) => `$$${formula}$$ and \\(${formula}\\)`),
    `${'- '.repeat(200)}list`,
  ];
  replacement = { text: parts.join('\n\n'), deltaChars: 97 };
  await chat.sendAndWait('And now?');
  const body = chat.responses.last();
  await body.locator('math').first().waitFor({ state: 'attached' });
  const elements = await body.evaluate((root) => {
    const all = [...root.querySelectorAll('*')];
    const attributes = all.flatMap((element) => [...element.attributes].map(({ name }) => name));
    const links = [...root.querySelectorAll('a')].map((link) => link.getAttribute('href') ?? '');
    const depth = (element: Element): number => 1 + Math.max(0, ...[...element.children].map(depth));
    return { tags: [...new Set(all.map(({ localName }) => localName))], attributes: [...new Set(attributes)], links, depth: depth(root) };
  });
  for (const tag of ['script', 'img', 'iframe', 'object', 'form', 'use', 'b']) expect(elements.tags).not.toContain(tag);
  expect(elements.attributes.filter((name) => name.startsWith('on'))).toEqual([]);
  expect(elements.links.length).toBeGreaterThan(0);
  for (const link of elements.links) expect(link).toMatch(/^https:\/\/x\.test\//);
  expect(elements.depth).toBeLessThan(150);
  for (const part of ['<script>', '<!-- comment -->', '<b>code</b>', 'deep']) expect(await body.innerText()).toContain(part);
  expect(await body.evaluate((root) => root.getBoundingClientRect().height)).toBeLessThan(30_000);
  expect(await chat.page.title()).not.toBe('1');
  expect([...chat.requestedHosts]).toEqual([new URL(server.url).host]);
  expect(chat.consoleErrors).toEqual([]);
});

it('renders each part of a response of 100 KB at most twice', async () => {
  await chat.page.evaluate(() => {
    const counted = { added: 0 };
    Object.assign(window, { counted });
    const size = (node: Node) => 1 + (node instanceof Element ? node.querySelectorAll('*').length : 0);
    new MutationObserver((records) => {
      for (const { addedNodes } of records) for (const node of addedNodes) counted.added += size(node);
    }).observe(document.body, { childList: true, subtree: true });
  });
  const text = EXAMPLE_ANSWER.repeat(Math.ceil(100_000 / EXAMPLE_ANSWER.length));
  replacement = { text, deltaChars: 400 };
  await chat.sendAndWait('Tell me all of it.');
  await expect.poll(() => chat.responses.last().locator('.code-block').count()).toBe(text.split('```python').length - 1);
  const added = await chat.page.evaluate(() => (window as unknown as { counted: { added: number } }).counted.added);
  const shown = await chat.responses.last().evaluate((root) => root.querySelectorAll('*').length);
  expect(shown).toBeGreaterThan(5_000);
  expect(added).toBeLessThan(2 * shown);
  await chat.page.reload();
  await chat.waitForConnection();
  await expect.poll(() => chat.responses.last().locator('.code-block').count()).toBe(text.split('```python').length - 1);
  expect(chat.consoleErrors).toEqual([]);
}, 240_000);

it('lays out text that browsers are slow at in bounded pieces, of models and of users', async () => {
  const chars = 100_000;
  const repeat = (part: string): string => part.repeat(chars / part.length);
  const texts = [`a${repeat('\u0301')}`, `👋${repeat('🏽')}`, repeat('س'), repeat('א a '), repeat('a\u034f\u0301\u20dd')];
  const code = `\`\`\`python\n${texts[0]?.slice(0, 19_000) ?? ''}\n\`\`\``;
  const table = `| x |\n|---|\n| ${texts[0] ?? ''} |`;
  const text = [...texts, `# ${texts[0] ?? ''}`, code, table, `\`${texts[2] ?? ''}\``, `$${texts[0] ?? ''}$`, 'Finis.'].join('\n\n');
  const pieces = (root: Element): { marks: number; chars: number; words: number } => {
    const laidOut = [...root.querySelectorAll('.piece, p, h3, td, code, pre')].filter((one) => !one.querySelector('.piece, p, code'));
    const sizes = laidOut.map(({ textContent: text }) => text.length);
    const longest = (runs: RegExpMatchArray | null): number => Math.max(0, ...(runs ?? []).map((run) => Array.from(run).length));
    const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    let words = 0;
    while (nodes.nextNode()) words = Math.max(words, longest((nodes.currentNode as Text).data.match(/\S+/g)));
    return { marks: longest(root.textContent.match(/[\p{M}\p{Emoji_Modifier}]+/gu)), chars: Math.max(...sizes), words };
  };

  await chat.page.evaluate(({ user, assistant }) => {
    const item = (id: string, role: string, type: string, text: string) => ({ id, type: 'message', role, status: 'completed', content: [{ type, text }] });
    const items = [item('item_u', 'user', 'input_text', user), item('item_a', 'assistant', 'output_text', assistant)];
    const summary = { id: 'slow', title: 'Slow', parent: null, updated: Date.now() };
    const stored = { ...summary, position: null, saved: { items, turns: [] }, settings: {}, model: null, metrics: [], draft: '', pending: [] };
    localStorage.setItem('continuo.talk.slow', JSON.stringify(stored));
    localStorage.setItem('continuo.index', JSON.stringify({ slow: summary }));
  }, { user: `${texts.join(' ')} Finis.`, assistant: text });
  await chat.page.goto(`${server.url}?again#slow`);
  await chat.responses.last().getByText('Finis.').waitFor();
  await chat.userMessages.last().getByText('Finis.').waitFor();
  const ofModel = await chat.responses.last().evaluate(pieces);
  const ofUser = await chat.userMessages.last().evaluate(pieces);
  expect([ofModel.marks, ofUser.marks]).toEqual([32, 32]);
  for (const { words } of [ofModel, ofUser]) expect(words).toBeLessThanOrEqual(400);
  expect(ofModel.chars).toBeLessThanOrEqual(20_000); // of code that has colors
  expect(ofUser.chars).toBeLessThanOrEqual(4_000);
}, 240_000);
