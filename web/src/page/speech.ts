/**
 * Voice input and output, where the browser supports the Web Speech API: recognized speech fills the
 * composer as the user talks, and responses are read aloud sentence by sentence. Barge-in cancels the
 * response and truncates it to the part read aloud.
 */

import { type Item, textOf } from '../client/index.js';
import type { ConversationController } from './conversation_controller.js';
import { iconButton } from './dom.js';

interface RecognitionEvent {
  readonly resultIndex: number;
  readonly results: ArrayLike<ArrayLike<{ transcript: string }> & { isFinal: boolean }>;
}

interface Recognizer extends EventTarget {
  continuous: boolean;
  interimResults: boolean;
  lang: string;
  onresult: ((event: RecognitionEvent) => void) | null;
  onend: (() => void) | null;
  onerror: ((event: { error: string }) => void) | null;
  start(): void;
  abort(): void;
}

type RecognizerConstructor = new () => Recognizer;

export interface SpeechHandler {
  conversation(): ConversationController | null;
  /** The transcript of the next message so far. */
  interimTranscript(text: string): void;
  /** The transcript is final. */
  finalTranscript(): void;
  /** Recognition has stopped because of an error. */
  recognitionFailed(reason: string): void;
}

/** Progress of the response that is read aloud. */
interface Playback {
  id: string;
  /** Characters queued for synthesis. */
  queuedChars: number;
  /** Characters read aloud. */
  spokenChars: number;
}

/** Errors after which recognition continues. */
const TRANSIENT_ERRORS = new Set(['no-speech', 'aborted']);
const ERROR_MESSAGES: Record<string, string> = {
  'not-allowed': 'Microphone access is blocked. Allow it in the browser and try again.',
  'service-not-allowed': 'The browser does not allow speech recognition on this page.',
  'audio-capture': 'No usable microphone was found.',
  network: 'The speech recognition service cannot be reached. You can still type.',
};

/** End of a sentence; complete sentences are read aloud. */
const SENTENCE_END = /[.!?…]["')\]]?\s|\n/g;

export class Speech {
  readonly buttons: HTMLElement[] = [];
  readonly #handler: SpeechHandler;
  readonly #RecognizerClass: RecognizerConstructor | undefined;
  #recognizer: Recognizer | null = null;
  #playback: Playback | null = null;

  constructor(handler: SpeechHandler) {
    this.#handler = handler;
    const { SpeechRecognition, webkitSpeechRecognition } = window as {
      SpeechRecognition?: RecognizerConstructor;
      webkitSpeechRecognition?: RecognizerConstructor;
    };
    this.#RecognizerClass = SpeechRecognition ?? webkitSpeechRecognition;
    if (!this.#RecognizerClass || !('speechSynthesis' in window)) return;
    this.buttons.push(
      iconButton('mic', 'Voice input', () => {
        if (this.#recognizer) this.stop();
        else this.#startRecognition();
      }),
    );
  }

  /** Stop recognition and speech synthesis. */
  stop(): void {
    const recognizer = this.#recognizer;
    this.#recognizer = null;
    recognizer?.abort();
    this.stopSynthesis();
    this.#updateButtons();
  }

  /** Stop speech synthesis. */
  stopSynthesis(): void {
    this.#playback = null;
    if (this.buttons.length > 0) speechSynthesis.cancel();
  }

  /** Queue newly completed sentences of the response for speech synthesis. */
  onConversationChange(): void {
    if (!this.#recognizer) return;
    const item = this.#lastAssistantMessage();
    if (!item) return;
    if (this.#playback?.id !== item.id) this.#playback = { id: item.id, queuedChars: 0, spokenChars: 0 };
    const text = textOf(item);
    const running = this.#handler.conversation()?.isResponding === true;
    const rest = text.slice(this.#playback.queuedChars);
    const end = running ? lastSentenceEnd(rest) : rest.length;
    if (end > 0) this.#speak(rest.slice(0, end), this.#playback);
  }

  #startRecognition(): void {
    if (!this.#RecognizerClass) return;
    const recognizer = new this.#RecognizerClass();
    this.#recognizer = recognizer;
    this.#playback = null;
    const item = this.#lastAssistantMessage();
    // An earlier response is not read aloud.
    if (item) this.#playback = { id: item.id, queuedChars: textOf(item).length, spokenChars: Infinity };
    recognizer.continuous = true;
    recognizer.interimResults = true;
    recognizer.lang = document.documentElement.lang;
    recognizer.onresult = (event) => {
      this.#onResult(event);
    };
    recognizer.onerror = ({ error }) => {
      if (TRANSIENT_ERRORS.has(error)) return;
      this.stop();
      this.#handler.recognitionFailed(ERROR_MESSAGES[error] ?? `Speech recognition failed: ${error}.`);
    };
    recognizer.onend = () => {
      if (recognizer === this.#recognizer) recognizer.start(); // browsers end recognition after a silence
    };
    recognizer.start();
    this.#updateButtons();
  }

  #onResult({ results, resultIndex }: RecognitionEvent): void {
    const parts = Array.from(results).slice(resultIndex);
    const text = parts.map((part) => part[0]?.transcript ?? '').join('');
    if (!text.trim()) return;
    this.#bargeIn();
    this.#handler.interimTranscript(text.trim());
    if (parts.at(-1)?.isFinal) this.#handler.finalTranscript();
  }

  /** Barge-in: the user talks over the response, which is truncated to the part read aloud. */
  #bargeIn(): void {
    const playback = this.#playback;
    const conversation = this.#handler.conversation();
    const item = playback && conversation?.client.conversation.findItem(playback.id);
    const unspoken = item && playback.spokenChars < textOf(item).length;
    if (!conversation || !item) return;
    if (!conversation.isResponding && !(unspoken && speechSynthesis.speaking)) return;
    const { spokenChars } = playback;
    speechSynthesis.cancel();
    this.#playback = { id: item.id, queuedChars: Infinity, spokenChars: Infinity };
    void conversation.truncateToSpoken(item, spokenChars);
  }

  #speak(text: string, playback: Playback): void {
    const begin = playback.queuedChars;
    playback.queuedChars += text.length;
    const utterance = new SpeechSynthesisUtterance(text);
    utterance.onboundary = ({ charIndex }) => {
      playback.spokenChars = begin + charIndex;
    };
    utterance.onend = () => {
      playback.spokenChars = Math.max(playback.spokenChars, begin + text.length);
    };
    speechSynthesis.speak(utterance);
  }

  #lastAssistantMessage(): Item | undefined {
    const items = this.#handler.conversation()?.client.conversation.items ?? [];
    return items.findLast((item) => item.type === 'message' && item.role === 'assistant');
  }

  #updateButtons(): void {
    for (const button of this.buttons) {
      const isOn = this.#recognizer !== null;
      button.classList.toggle('on', isOn);
      button.setAttribute('aria-pressed', String(isOn));
    }
  }
}

function lastSentenceEnd(text: string): number {
  let end = 0;
  for (const match of text.matchAll(SENTENCE_END)) end = match.index + match[0].length;
  return end;
}
