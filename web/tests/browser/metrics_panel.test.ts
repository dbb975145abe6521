/** The metrics panel shows what the server reported. */

import { expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { failing } from './shared.js';

it('shows the latency and tokens of each turn, KV usage, and server status', async () => {
  const chat = await ChatPage.open(failing.url, { responseTokens: 20 });
  await chat.openPanel();
  const { page, wire } = chat;
  await expect.poll(() => page.locator('.panel .explanation:visible').count()).toBe(4);
  const statOf = (name: string) => page.locator('.panel .facts > div', { hasText: name }).locator('dd');
  const [latency, tokens] = [page.locator('.chart').first(), page.locator('.chart').last()];
  await expect.poll(() => latency.innerText()).toContain('No turns yet.');

  for (const [n, text] of ['Hello?', 'Is it you?'].entries()) {
    await chat.sendAndWait(text);
    const usage = wire.receivedOf('response.done').at(-1)?.response.usage;
    const prefilled = usage?.input_token_details.prefilled_after_commit ?? 0;
    const caption = `Turn ${n + 1}: ${prefilled} prefilled, ${(usage?.input_tokens ?? 0) - prefilled} reused`;
    await tokens.getByText(caption, { exact: true }).waitFor();
    const times = new RegExp(`^Turn ${n + 1}: first token \\d.* m?s, (then \\d.* m?s per token|the others together)$`);
    await latency.getByText(times).waitFor();
  }
  await expect.poll(() => latency.locator('.legend').innerText()).toMatch(/first token\s*per output token/);
  await expect.poll(() => tokens.locator('.legend').innerText()).toMatch(/reused from the KV cache\s*prefilled/);
  const meanings = await page.locator('.panel').evaluate((panel) => {
    const colorOf = ({ backgroundColor, backgroundImage }: CSSStyleDeclaration) => backgroundColor + backgroundImage;
    const keys = [...panel.querySelectorAll('.key')].map((key): [string, string] => [
      colorOf(getComputedStyle(key, '::before')),
      key.textContent,
    ]);
    const segments = [...panel.querySelectorAll('.bar span')].map((segment) => colorOf(getComputedStyle(segment)));
    return { keys, segments };
  });
  const labels = meanings.keys.map(([, label]) => label);
  expect(labels.slice(0, 4)).toEqual(['first token', 'per output token', 'reused from the KV cache', 'prefilled']);
  expect(labels.slice(4, 7)).toEqual(['On the device', 'In host memory', 'To be recomputed']);
  expect(labels.slice(7)).toEqual(['Leased by sessions', 'Cached for sharing']);
  const keyColors = meanings.keys.map(([color]) => color);
  expect(new Set(keyColors).size).toBe(9); // one meaning each
  expect(meanings.segments).toHaveLength(5);
  for (const color of meanings.segments) expect(keyColors).toContain(color);
  for (const chart of [latency, tokens]) {
    const colors = await chart.locator('canvas').evaluate((canvas: HTMLCanvasElement) => {
      const pixels = canvas.getContext('2d')?.getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(pixels?.buffer ?? new ArrayBuffer(0))).size;
    });
    expect(colors).toBeGreaterThan(2);
  }
  const usage = page.locator('.message.assistant .usage').last();
  await expect.poll(() => usage.getAttribute('title')).toMatch(/^20 tokens; first token \d.* (per token|together)\. Read: \d+ prefilled, \d+ reused\.$/);

  expect(wire.receivedOf('response.done').at(-1)?.response.usage?.residency).toBe('hot');
  await statOf('At the last turn').getByText('already on device').waitFor();
  await statOf('On the device').getByText(/^\d+ of \d+ tokens$/).waitFor();
  await statOf('In host memory').getByText('none').waitFor();
  await page.locator('.panel .facts dd', { hasText: /^[\d,]+ of 1,024 free$/ }).waitFor();
  await expect.poll(() => page.locator('.panel .pages').getAttribute('aria-label')).toMatch(/Pages: [1-9]\d* leased/);

  await chat.limitResponseTokens(1000);
  await chat.send('And now?');
  await statOf('Active turns').getByText('1', { exact: true }).waitFor();
  await statOf('Queued turns').getByText('0', { exact: true }).waitFor();
  await page.keyboard.press('Escape');
  await statOf('Active turns').getByText('0', { exact: true }).waitFor();
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('is folded at first, and stays as the user leaves it after a reload', async () => {
  const chat = await ChatPage.open(failing.url);
  const panel = chat.page.locator('.panel');
  await chat.waitForConnection();
  expect(await panel.isVisible()).toBe(false);
  await chat.openPanel();
  await chat.page.reload();
  await chat.waitForConnection();
  await panel.waitFor();
  await chat.page.getByRole('button', { name: 'Live metrics' }).click();
  await panel.waitFor({ state: 'hidden' });
  await chat.page.reload();
  await chat.waitForConnection();
  expect(await panel.isVisible()).toBe(false);
  await chat.close();
});

it('filters, expands and exports the event log', async () => {
  const chat = await ChatPage.open(failing.url, { responseTokens: 20 });
  await chat.sendAndWait('Hello?');
  await chat.openPanel();
  const rows = chat.page.locator('.events > li');
  await chat.page.locator('.log > summary').click();
  await chat.page.getByLabel('Filter events').fill('response.done');
  await expect.poll(() => rows.count()).toBe(1);
  await rows.locator('summary').click();
  const done = chat.wire.receivedOf('response.done').at(-1);
  await expect.poll(() => rows.locator('pre').innerText()).toBe(JSON.stringify(done, null, 2));
  await chat.page.getByLabel('Filter events').fill('');
  await rows.locator('.times', { hasText: /× \d+/ }).first().waitFor();
  const [download] = await Promise.all([
    chat.page.waitForEvent('download'),
    chat.page.getByRole('button', { name: 'Export' }).click(),
  ]);
  const text = (await (await download.createReadStream()).toArray()).join('');
  const lines = text.split('\n').map((line) => JSON.parse(line) as { sent: boolean; event: unknown });
  const exported = (sent: boolean) => lines.filter((line) => line.sent === sent).map((line) => line.event);
  expect(exported(true)).toEqual(chat.wire.sent);
  expect(exported(false)).toEqual(chat.wire.received);
  await chat.close();
});
