/** Page object of the chat page (and of the admin page): actions of a user, and what the page shows. */

import type { BrowserContext, BrowserContextOptions, Locator, Page } from 'playwright-core';
import { browser } from './shared.js';
import { WebSocketLog } from './websocket_log.js';

export interface OpenOptions extends BrowserContextOptions {
  /** Maximum length of responses. */
  responseTokens?: number;
}

export class ChatPage {
  readonly page: Page;
  readonly context: BrowserContext;
  /** Errors in the console, except those of lost connections. */
  readonly consoleErrors: string[] = [];
  readonly requestedHosts = new Set<string>();
  readonly wire: WebSocketLog;

  private constructor(context: BrowserContext, page: Page) {
    this.context = context;
    this.page = page;
    this.wire = new WebSocketLog(page);
    page.setDefaultTimeout(30_000);
    page.on('pageerror', (error) => this.consoleErrors.push(error.message));
    page.on('console', (message) => {
      const connectionError = /WebSocket|ERR_|Failed to load resource/.test(message.text());
      if (message.type() === 'error' && !connectionError) this.consoleErrors.push(message.text());
    });
    page.on('request', (request) => this.requestedHosts.add(new URL(request.url()).host));
  }

  /** Open the page as a new visitor. */
  static async open(url: string, { responseTokens, ...options }: OpenOptions = {}): Promise<ChatPage> {
    const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, ...options });
    if (responseTokens !== undefined) {
      await context.addInitScript((max_output_tokens) => {
        localStorage['continuo.settings'] ??= JSON.stringify({ max_output_tokens });
      }, responseTokens);
    }
    return ChatPage.openTab(context, url);
  }

  static async openTab(context: BrowserContext, url: string): Promise<ChatPage> {
    const chat = new ChatPage(context, await context.newPage());
    await chat.page.goto(url);
    return chat;
  }

  get input(): Locator {
    return this.page.getByLabel('Message', { exact: true });
  }

  get responses(): Locator {
    return this.page.locator('.message.assistant .body');
  }

  get userMessages(): Locator {
    return this.page.locator('.message.user .body');
  }

  get banner(): Locator {
    return this.page.locator('.foot .banner');
  }

  /** Type a message key by key, and send it. */
  async send(text: string): Promise<void> {
    await this.input.click();
    await this.page.keyboard.type(text);
    await this.page.keyboard.press('Enter');
  }

  /** Send a message and return the response once it is complete. */
  async sendAndWait(text: string): Promise<string> {
    const last = this.page.locator('.message.assistant').last();
    const previousId = (await last.count()) > 0 ? await last.getAttribute('data-id') : null;
    await this.send(text);
    await this.page.waitForFunction((previousId) => {
      const messages = [...document.querySelectorAll<HTMLElement>('.message.assistant')];
      return (messages.at(-1)?.dataset.id ?? null) !== previousId;
    }, previousId);
    return this.waitForResponse();
  }

  /** Wait until no message or response is in progress, and return the last response. */
  async waitForResponse(): Promise<string> {
    await this.page.waitForFunction(() => {
      const inProgress = '.message.open, .pending, .unsent, .send.stop';
      const last = document.querySelector('.transcript > .message:nth-last-child(2)');
      return !document.querySelector(inProgress) && last?.classList.contains('assistant');
    });
    return (await this.responses.last().innerText()).trim();
  }

  /** Choose an option in the menu of a conversation in the sidebar, with the keyboard. */
  async chooseOption(title: string, option: string): Promise<void> {
    await this.page.getByRole('button', { name: `Options of “${title}”` }).press('Enter');
    await this.page.getByRole('menuitem', { name: option }).press('Enter');
  }

  /** Drop the connection, with the menu for developers. */
  async dropConnection(): Promise<void> {
    await this.page.getByRole('button', { name: 'Developer' }).click();
    await this.page.getByRole('menuitem', { name: 'Drop the connection' }).click();
  }

  /** Returns the version that a message shows, such as '2/3'. */
  versionAt(message: Locator): Promise<string> {
    return message.locator('.versions span').innerText();
  }

  /** Set the maximum length of responses. */
  async limitResponseTokens(tokens: number): Promise<void> {
    await this.page.getByLabel('Settings', { exact: true }).click();
    await this.page.getByLabel('Maximum response tokens').fill(String(tokens));
    await this.page.getByRole('button', { name: 'Save' }).click();
    await this.page.locator('dialog').waitFor({ state: 'detached' });
  }

  /** Press the stop button as soon as the response has this many characters. */
  async stopAtCharacters(characters: number): Promise<void> {
    await this.page.waitForFunction(
      (characters) => {
        const body = document.querySelector('.message.open .body');
        if ((body?.textContent.length ?? 0) < characters) return false;
        const button = document.querySelector<HTMLElement>('[aria-label="Stop (Escape)"]');
        button?.click();
        return button !== null;
      },
      characters,
      { polling: 10 },
    );
  }

  /** Wait until the response in progress has this many characters. */
  async waitForCharacters(characters: number): Promise<void> {
    await this.page.waitForFunction(
      (characters) => {
        const body = document.querySelector('.message.open .body');
        return (body?.textContent.length ?? 0) >= characters;
      },
      characters,
      { polling: 10 },
    );
  }

  /** Returns the texts of all items as stored by the page, without the effects of rendering. */
  async storedTexts(): Promise<string[]> {
    return this.page.evaluate(() => {
      dispatchEvent(new Event('pagehide')); // the page stores the conversation when it is closed
      const stored = localStorage.getItem(`continuo.talk.${location.hash.slice(1)}`) ?? '';
      const { saved } = JSON.parse(stored) as { saved: { items: { content: { text: string }[] }[] } };
      return saved.items.map(({ content }) => content.map(({ text }) => text).join(''));
    });
  }

  /** Show the metrics panel, which is folded at first. */
  async openPanel(): Promise<void> {
    await this.page.getByRole('button', { name: 'Live metrics' }).click();
    await this.page.locator('.panel').waitFor();
  }

  async waitForConnection(): Promise<void> {
    await this.page.locator('.status[data-phase="open"]').waitFor();
  }

  async close(): Promise<void> {
    await this.context.close();
  }
}
