/** Voice input and output, with scripted speech recognition and synthesis, because test machines have no
 * audio devices. The rest is real. */

import { expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { browser, server } from './shared.js';

interface ScriptedSpeech {
  recognizer: { onresult(event: unknown): void };
  utterances: SpeechSynthesisUtterance[];
  speaking: boolean;
}

function installScriptedSpeech(): void {
  const speech = window as unknown as ScriptedSpeech & Record<string, unknown>;
  speech.utterances = [];
  speech.speaking = false;
  const recognizer = function (this: ScriptedSpeech['recognizer'] & Record<string, unknown>): void {
    this.start = () => (speech.recognizer = this);
    this.abort = () => undefined;
  };
  Object.assign(window, { SpeechRecognition: recognizer, webkitSpeechRecognition: recognizer });
  Object.defineProperty(speechSynthesis, 'speaking', { get: () => speech.speaking });
  speechSynthesis.speak = (utterance) => {
    speech.utterances.push(utterance);
    speech.speaking = true;
  };
  speechSynthesis.cancel = () => {
    speech.speaking = false;
  };
}

async function recognize(chat: ChatPage, transcript: string, isFinal: boolean): Promise<void> {
  await chat.page.evaluate(
    ([transcript, isFinal]) => {
      const result = Object.assign([{ transcript }], { isFinal });
      const { recognizer } = window as unknown as ScriptedSpeech;
      recognizer.onresult({ resultIndex: 0, results: [result] });
    },
    [transcript, isFinal] as const,
  );
}

it('fills the composer from speech, and truncates a response at barge-in', async () => {
  const context = await browser.newContext();
  await context.addInitScript(installScriptedSpeech);
  const chat = await ChatPage.openTab(context, server.url);
  await chat.waitForConnection();
  await chat.page.getByLabel('Voice input').click();
  await recognize(chat, 'Tell me a', false);
  await expect.poll(() => chat.input.inputValue()).toBe('Tell me a');
  await recognize(chat, 'Tell me a short story.', true);
  await chat.page.locator('.message.assistant').waitFor();
  const story = await chat.waitForResponse();
  const utterances = await chat.page.evaluate(() =>
    (window as unknown as ScriptedSpeech).utterances.map((utterance) => utterance.text).join(''),
  );
  expect(utterances.trim()).toBe(story);

  const heard = story.split(' ', 2).join(' ');
  await chat.page.evaluate((charIndex) => {
    const [first] = (window as unknown as ScriptedSpeech).utterances;
    first?.onboundary?.({ charIndex } as SpeechSynthesisEvent);
  }, heard.length);
  await recognize(chat, 'What is 3', false);
  await recognize(chat, 'What is 3 plus 4?', true);
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  expect(await chat.waitForResponse()).toContain('7');
  const shown = async () => (await chat.responses.first().innerText()).replace(/\s*stopped$/, '').trim();
  await expect.poll(shown).toBe(heard);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('is not offered without browser support', async () => {
  const context = await browser.newContext();
  await context.addInitScript(() => {
    Object.assign(window, { SpeechRecognition: undefined, webkitSpeechRecognition: undefined });
  });
  const chat = await ChatPage.openTab(context, server.url);
  await chat.waitForConnection();
  await expect.poll(() => chat.page.getByLabel('Voice input').count()).toBe(0);
  await chat.close();
});

it('reports a recognition error, and stops listening', async () => {
  const context = await browser.newContext();
  await context.addInitScript(installScriptedSpeech);
  const chat = await ChatPage.openTab(context, server.url);
  await chat.waitForConnection();
  const button = chat.page.getByLabel('Voice input');
  const failRecognition = (error: string) =>
    chat.page.evaluate((error) => {
      const { recognizer } = window as unknown as { recognizer: { onerror(event: unknown): void } };
      recognizer.onerror({ error });
    }, error);
  await button.click();
  await expect.poll(() => button.getAttribute('aria-pressed')).toBe('true');
  await failRecognition('no-speech');
  await expect.poll(() => button.getAttribute('aria-pressed')).toBe('true');
  await failRecognition('audio-capture');
  await chat.page.locator('.notice').getByText('No usable microphone').waitFor();
  await expect.poll(() => button.getAttribute('aria-pressed')).toBe('false');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});
