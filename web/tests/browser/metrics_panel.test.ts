/** The live panel: what it shows is what the server said. */

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Command, freePort } from './subprocess.js';
import { launch, Visit } from './chat_page.js';

let browser: Browser;
/** Slow enough to be watched while it answers. */
let slow: Command;
let url: string;
beforeAll(async () => {
  const port = await freePort();
  url = `http://127.0.0.1:${port}/`;
  slow = Command.python('tests.browser.failing', ['--port', String(port)], 'Listening on');
  [browser] = await Promise.all([launch(), slow.start()]);
});
afterAll(async () => {
  await browser.close();
  await slow.stop();
});

it('shows latency and tokens of each turn, where its KV is, and what the server does', async () => {
  const visit = await Visit.begin(browser, url);
  await visit.limit(20);
  const { page, wire } = visit;
  const fact = (name: string) => page.locator('.panel .facts > div', { hasText: name }).locator('dd');
  const [latency, tokens] = [page.locator('.chart').first(), page.locator('.chart').last()];
  await expect.poll(() => latency.innerText()).toContain('Nothing was said yet.');

  for (const [n, words] of ['Hello?', 'Is it you?'].entries()) {
    await visit.say(words);
    const usage = wire.heard('response.done').at(-1)?.response.usage;
    const cached = usage?.input_token_details.cached_tokens ?? 0;
    const prefilled = (usage?.input_tokens ?? 0) - cached;
    const said = `Turn ${n + 1}: ${prefilled} prefilled, ${cached} reused`;
    await tokens.getByText(said, { exact: true }).waitFor();
    const times = new RegExp(`^Turn ${n + 1}: first token \\d.* m?s, then \\d.* m?s each$`);
    await latency.getByText(times).waitFor();
  }
  await expect.poll(() => latency.locator('.legend').innerText()).toMatch(/first token\s*each next token/);
  await expect.poll(() => tokens.locator('.legend').innerText()).toMatch(/reused from KV\s*prefilled/);
  for (const chart of [latency, tokens]) {
    const colours = await chart.locator('canvas').evaluate((canvas: HTMLCanvasElement) => {
      const drawn = canvas.getContext('2d')?.getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(drawn?.buffer ?? new ArrayBuffer(0))).size;
    });
    expect(colours).toBeGreaterThan(2);
  }
  const figure = page.locator('.message.assistant .cost').last();
  await expect.poll(() => figure.getAttribute('title')).toMatch(/20 tokens; \d+ prefilled, \d+ reused from KV/);

  expect(wire.heard('response.done').at(-1)?.response.usage?.residency).toBe('hot');
  await fact('At the last turn').getByText('was on the device').waitFor();
  await fact('On the device').getByText(/^\d+ of \d+ tokens$/).waitFor();
  await fact('In host memory').getByText('none').waitFor();
  await page.locator('.panel .facts dd', { hasText: /^[\d,]+ of 1,024 free$/ }).waitFor();
  await expect.poll(() => page.locator('.panel .pages').getAttribute('aria-label')).toMatch(/Pages: [1-9]\d* held/);

  await visit.limit(1000);
  await visit.send('And now?');
  await fact('Answering').getByText('1', { exact: true }).waitFor();
  await fact('Waiting').getByText('0', { exact: true }).waitFor();
  await page.keyboard.press('Escape');
  await fact('Answering').getByText('0', { exact: true }).waitFor();
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

it('can be put away, and stays so', async () => {
  const visit = await Visit.begin(browser, url);
  const panel = visit.page.locator('.panel');
  await panel.waitFor();
  await visit.page.getByRole('button', { name: 'Live figures' }).click();
  await panel.waitFor({ state: 'hidden' });
  await visit.page.reload();
  await visit.connected();
  await expect.poll(() => panel.isVisible()).toBe(false);
  await visit.page.getByRole('button', { name: 'Live figures' }).click();
  await panel.waitFor();
  await visit.close();
});

it('logs the events, filtered, opened and exported', async () => {
  const visit = await Visit.begin(browser, url);
  await visit.limit(20);
  await visit.say('Hello?');
  const rows = visit.page.locator('.events > li');
  await visit.page.locator('.log > summary').click();
  await visit.page.getByLabel('Filter events').fill('response.done');
  await expect.poll(() => rows.count()).toBe(1);
  await rows.locator('summary').click();
  const done = visit.wire.heard('response.done').at(-1);
  await expect.poll(() => rows.locator('pre').innerText()).toBe(JSON.stringify(done, null, 2));
  await visit.page.getByLabel('Filter events').fill('');
  await rows.locator('.times', { hasText: /× \d+/ }).first().waitFor();
  const [download] = await Promise.all([
    visit.page.waitForEvent('download'),
    visit.page.getByRole('button', { name: 'Export' }).click(),
  ]);
  const text = (await (await download.createReadStream()).toArray()).join('');
  const lines = text.split('\n').map((line) => JSON.parse(line) as { sent: boolean; event: unknown });
  const exported = (sent: boolean) => lines.filter((line) => line.sent === sent).map((line) => line.event);
  expect(exported(true)).toEqual(visit.wire.sent);
  expect(exported(false)).toEqual(visit.wire.received);
  await visit.close();
});
