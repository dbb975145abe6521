/**
 * Speaking, where the browser offers it (Web Speech API): what is heard goes into the composer while
 * it is said; the answer is spoken sentence by sentence; speaking over it stops it, and history keeps
 * what was spoken aloud.
 */

import { type Item, textOf } from '../client/index.js';
import { iconButton } from './dom.js';
import type { Talk } from './conversation_controller.js';

interface Heard {
  readonly resultIndex: number;
  readonly results: ArrayLike<ArrayLike<{ transcript: string }> & { isFinal: boolean }>;
}

interface Recognition extends EventTarget {
  continuous: boolean;
  interimResults: boolean;
  lang: string;
  onresult: ((event: Heard) => void) | null;
  onend: (() => void) | null;
  onerror: ((event: { error: string }) => void) | null;
  start(): void;
  abort(): void;
}

type Recogniser = new () => Recognition;

export interface Speaking {
  talk(): Talk | null;
  /** What was said so far of the next message. */
  heard(text: string): void;
  /** The message is finished. */
  said(): void;
  /** It does not listen any more, and why. */
  failed(why: string): void;
}

/** After these it goes on to listen. */
const PASSING = new Set(['no-speech', 'aborted']);
const WHY: Record<string, string> = {
  'not-allowed': 'The browser does not let this page use the microphone. Allow it, and try again.',
  'service-not-allowed': 'The browser does not let this page turn speech into words.',
  'audio-capture': 'There is no microphone, or it cannot be used.',
  network: 'The browser cannot reach the service that turns speech into words. Typing still works.',
};

/** The end of a sentence, behind which its speaking may begin. */
const SENTENCE = /[.!?…]["')\]]?\s|\n/g;

export class Speech {
  readonly buttons: HTMLElement[] = [];
  readonly #speaking: Speaking;
  readonly #recogniser: Recogniser | undefined;
  #recognition: Recognition | null = null;
  /** The answer that is read aloud: handed to the voice up to `given`, spoken up to `spoken`. */
  #reading: { id: string; given: number; spoken: number } | null = null;

  constructor(speaking: Speaking) {
    this.#speaking = speaking;
    const known = window as { SpeechRecognition?: Recogniser; webkitSpeechRecognition?: Recogniser };
    this.#recogniser = known.SpeechRecognition ?? known.webkitSpeechRecognition;
    if (!this.#recogniser || !('speechSynthesis' in window)) return;
    this.buttons.push(
      iconButton('mic', 'Speak', () => {
        if (this.#recognition) this.stop();
        else this.#listen();
      }),
    );
  }

  /** Neither hears nor speaks any more. */
  stop(): void {
    const recognition = this.#recognition;
    this.#recognition = null;
    recognition?.abort();
    this.hush();
    this.#show();
  }

  /** Speaks no more. */
  hush(): void {
    this.#reading = null;
    if (this.buttons.length > 0) speechSynthesis.cancel();
  }

  /** The conversation has changed: what is finished of an answer can be spoken. */
  changed(): void {
    if (!this.#recognition) return;
    const item = this.#answer();
    if (!item) return;
    if (this.#reading?.id !== item.id) this.#reading = { id: item.id, given: 0, spoken: 0 };
    const text = textOf(item);
    const running = this.#speaking.talk()?.running === true;
    const rest = text.slice(this.#reading.given);
    const end = running ? lastSentence(rest) : rest.length;
    if (end > 0) this.#say(rest.slice(0, end), this.#reading);
  }

  #listen(): void {
    if (!this.#recogniser) return;
    const recognition = new this.#recogniser();
    this.#recognition = recognition;
    this.#reading = null;
    const item = this.#answer();
    // What was answered before is not read out now.
    if (item) this.#reading = { id: item.id, given: textOf(item).length, spoken: Infinity };
    recognition.continuous = true;
    recognition.interimResults = true;
    recognition.lang = document.documentElement.lang;
    recognition.onresult = (event) => {
      this.#hear(event);
    };
    recognition.onerror = ({ error }) => {
      if (PASSING.has(error)) return;
      this.stop();
      this.#speaking.failed(WHY[error] ?? `This browser cannot hear you: ${error}.`);
    };
    recognition.onend = () => {
      if (recognition === this.#recognition) recognition.start(); // browsers end it after a silence
    };
    recognition.start();
    this.#show();
  }

  #hear({ results, resultIndex }: Heard): void {
    const parts = Array.from(results).slice(resultIndex);
    const text = parts.map((part) => part[0]?.transcript ?? '').join('');
    if (!text.trim()) return;
    this.#interrupt();
    this.#speaking.heard(text.trim());
    if (parts.at(-1)?.isFinal) this.#speaking.said();
  }

  /** Somebody speaks over the answer: what was not spoken was never said. */
  #interrupt(): void {
    const reading = this.#reading;
    const talk = this.#speaking.talk();
    const item = reading && talk?.client.conversation.find(reading.id);
    const unspoken = item && reading.spoken < textOf(item).length;
    if (!talk || !item || !(talk.running || (unspoken && speechSynthesis.speaking))) return;
    const { spoken } = reading;
    speechSynthesis.cancel();
    this.#reading = { id: item.id, given: Infinity, spoken: Infinity };
    void talk.interrupt(item, spoken);
  }

  #say(text: string, reading: { given: number; spoken: number }): void {
    const begin = reading.given;
    reading.given += text.length;
    const utterance = new SpeechSynthesisUtterance(text);
    utterance.onboundary = ({ charIndex }) => {
      reading.spoken = begin + charIndex;
    };
    utterance.onend = () => {
      reading.spoken = Math.max(reading.spoken, begin + text.length);
    };
    speechSynthesis.speak(utterance);
  }

  #answer(): Item | undefined {
    const items = this.#speaking.talk()?.client.conversation.items ?? [];
    return items.findLast((item) => item.type === 'message' && item.role === 'assistant');
  }

  #show(): void {
    for (const button of this.buttons) {
      const on = this.#recognition !== null;
      button.classList.toggle('on', on);
      button.setAttribute('aria-pressed', String(on));
    }
  }
}

function lastSentence(text: string): number {
  let end = 0;
  for (const match of text.matchAll(SENTENCE)) end = match.index + match[0].length;
  return end;
}
