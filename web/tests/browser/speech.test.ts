/** Speaking. A machine without ears and a mouth: what the browser would hear and say is scripted, as
 * what it tells the page of it; the rest is real. */

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

interface Scripted {
  recogniser: { onresult(event: unknown): void };
  said: SpeechSynthesisUtterance[];
  speaking: boolean;
}

let server: Server;
let browser: Browser;
beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});

function script(): void {
  const scripted = window as unknown as Scripted & Record<string, unknown>;
  scripted.said = [];
  scripted.speaking = false;
  const recogniser = function (this: Scripted['recogniser'] & Record<string, unknown>): void {
    this.start = () => (scripted.recogniser = this);
    this.abort = () => undefined;
  };
  Object.assign(window, { SpeechRecognition: recogniser, webkitSpeechRecognition: recogniser });
  Object.defineProperty(speechSynthesis, 'speaking', { get: () => scripted.speaking });
  speechSynthesis.speak = (utterance) => {
    scripted.said.push(utterance);
    scripted.speaking = true;
  };
  speechSynthesis.cancel = () => {
    scripted.speaking = false;
  };
}

async function hear(visit: Visit, transcript: string, isFinal: boolean): Promise<void> {
  await visit.page.evaluate(
    ([transcript, isFinal]) => {
      const result = Object.assign([{ transcript }], { isFinal });
      const { recogniser } = window as unknown as Scripted;
      recogniser.onresult({ resultIndex: 0, results: [result] });
    },
    [transcript, isFinal] as const,
  );
}

it('hears words as they are said, and keeps of an answer what was spoken aloud', async () => {
  const context = await browser.newContext();
  await context.addInitScript(script);
  const visit = await Visit.tab(context, server.url);
  await visit.connected();
  await visit.page.getByLabel('Speak').click();
  await hear(visit, 'Tell me a', false);
  await expect.poll(() => visit.field.inputValue()).toBe('Tell me a');
  await hear(visit, 'Tell me a short story.', true);
  await visit.page.locator('.message.assistant').waitFor();
  const story = await visit.finished();
  const said = await visit.page.evaluate(() =>
    (window as unknown as Scripted).said.map((utterance) => utterance.text).join(''),
  );
  expect(said.trim()).toBe(story);

  await visit.page.evaluate(() => {
    const [first] = (window as unknown as Scripted).said;
    first?.onboundary?.({ charIndex: 9 } as SpeechSynthesisEvent);
  });
  await hear(visit, 'What is 3', false);
  await hear(visit, 'What is 3 plus 4?', true);
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  expect(await visit.finished()).toContain('7');
  await expect.poll(async () => (await visit.answers.first().innerText()).trim()).toMatch(/^Once upon(\s*stopped)?$/);
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

it('is not offered where the browser cannot', async () => {
  const context = await browser.newContext();
  await context.addInitScript(() => {
    Object.assign(window, { SpeechRecognition: undefined, webkitSpeechRecognition: undefined });
  });
  const visit = await Visit.tab(context, server.url);
  await visit.connected();
  await expect.poll(() => visit.page.getByLabel('Speak').count()).toBe(0);
  await visit.close();
});

it('says why it cannot hear, and listens no more', async () => {
  const context = await browser.newContext();
  await context.addInitScript(script);
  const visit = await Visit.tab(context, server.url);
  await visit.connected();
  const button = visit.page.getByLabel('Speak');
  const fail = (error: string) =>
    visit.page.evaluate((error) => {
      const { recogniser } = window as unknown as { recogniser: { onerror(event: unknown): void } };
      recogniser.onerror({ error });
    }, error);
  await button.click();
  await expect.poll(() => button.getAttribute('aria-pressed')).toBe('true');
  await fail('no-speech');
  await expect.poll(() => button.getAttribute('aria-pressed')).toBe('true');
  await fail('audio-capture');
  await visit.page.locator('.notice').getByText('There is no microphone').waitFor();
  await expect.poll(() => button.getAttribute('aria-pressed')).toBe('false');
  expect(visit.complaints).toEqual([]);
  await visit.close();
});
