/** The demonstrations of the welcome screen. Each sends real messages in the open conversation, step by step
 * and in view, and returns its result with the figures of its last turn. */

import { countCodePoints, type Item, textOf } from '../client/index.js';
import { fetchSession } from './api.js';
import { killEngine } from './demo_mode.js';
import type { BarContent } from './demonstration_bar.js';
import type { DemonstrationRun } from './demonstration_run.js';
import { formatCount, formatMs } from './format.js';
import { countTokens, describeTurn } from './turn_figures.js';

export interface Demonstration {
  name: 'remember' | 'interrupt' | 'cut' | 'kill' | 'branch' | 'type';
  title: string;
  /** What it does, on its card. */
  summary: string;
  play: (run: DemonstrationRun) => Promise<DemonstrationResult>;
}

export type DemonstrationResult = Pick<BarContent, 'text' | 'action'>;

export const DEMONSTRATIONS: readonly Demonstration[] = [
  {
    name: 'remember',
    title: 'Ask ten turns later',
    summary: 'Say your name, chat for ten turns, then ask. Only what is new is read.',
    play: remember,
  },
  {
    name: 'interrupt',
    title: 'Interrupt a story',
    summary: 'Stop it anywhere. The model then knows only what you have heard.',
    play: interrupt,
  },
  {
    name: 'cut',
    title: 'Cut the connection',
    summary: 'In mid-sentence. The page connects again and misses nothing.',
    play: cut,
  },
  {
    name: 'kill',
    title: 'Kill the engine',
    summary: 'End the program that writes the answer, in mid-sentence. Another one finishes it.',
    play: kill,
  },
  {
    name: 'branch',
    title: 'Branch a conversation',
    summary: 'Go on in two ways from one beginning, which is read only once.',
    play: branch,
  },
  {
    name: 'type',
    title: 'Type, and watch',
    summary: 'Your words are read while you type, before you press Enter.',
    play: type,
  },
];

const NAME = 'Marlow';
const FACT = `My name is ${NAME}.`;
const QUESTION = 'What is my name?';
const STORY = 'Tell me a story.';
const SMALL_TALK = [
  'What is 3 plus 4?',
  'Count from one to five.',
  'What can you do?',
  'What is 2 plus 6?',
  'How are you today?',
  'Count from one to ten.',
  'What is 5 plus 1?',
  'Do you like music?',
  'What is 4 plus 4?',
  'Count from one to three.',
];
/** For models that answer small talk at length. */
const SHORT = { max_output_tokens: 60 };
/** Length of the story at which its connection is cut. */
const CUT_CHARS = 40;
/** Pace of reading aloud. */
const SPOKEN_CHARS_PER_S = 30;
const SPEECH_FRAME_MS = 60;
const POLL_MS = 150;

async function remember(run: DemonstrationRun): Promise<DemonstrationResult> {
  const steps = SMALL_TALK.length + 2;
  run.show('First, a fact.', { progress: [0, steps] });
  await run.ask(FACT, SHORT);
  for (const [n, question] of SMALL_TALK.entries()) {
    const text = `Small talk, turn ${n + 1} of ${SMALL_TALK.length}. Each turn reads only what is new.`;
    run.show(text, { progress: [n + 1, steps] });
    await run.ask(question, SHORT);
  }
  run.show('Now the question about the first turn.', { progress: [steps - 1, steps] });
  const { text, metrics } = await run.ask(QUESTION, SHORT);
  const verdict = text.includes(NAME)
    ? 'It remembers.'
    : 'It has read the name, even though this model did not repeat it.';
  if (!metrics) return { text: verdict };
  const all = countTokens(metrics.prefilled + metrics.reused);
  return {
    text: `${verdict} ${describeTurn(metrics)} Without the KV of the session, all ${all} would be read again.`,
  };
}

async function interrupt(run: DemonstrationRun): Promise<DemonstrationResult> {
  const { conversation } = run;
  run.show('A story, shown at the pace of speech. The model writes ahead of it.');
  await run.type(STORY);
  const firstDelta = run.nextEvent('response.output_text.delta');
  const turn = run.nextTurn();
  run.stage.send();
  const { item_id } = await firstDelta;
  const story = (): string => {
    const item = conversation.client.conversation.findItem(item_id);
    return item ? textOf(item) : '';
  };

  let isInterrupted = false;
  const action = {
    label: 'Interrupt',
    run: () => {
      isInterrupted = true;
    },
  };
  const startedAt = performance.now();
  const heardSoFar = (): number => {
    const spoken = Math.floor(((performance.now() - startedAt) / 1000) * SPOKEN_CHARS_PER_S);
    const text = story();
    return spoken >= text.length ? text.length : Math.max(text.lastIndexOf(' ', spoken), 0);
  };
  let heard = 0;
  while (!(isInterrupted as boolean)) {
    heard = heardSoFar();
    const written = story().length;
    if (heard === written && !conversation.isResponding) {
      await turn;
      return { text: 'You have heard the whole story. Start again, and interrupt it before its end.' };
    }
    conversation.shown = { itemId: item_id, chars: heard };
    run.show(`Heard: ${formatCount(heard)} of the ${formatCount(written)} characters written so far.`, { action });
    await run.sleep(SPEECH_FRAME_MS);
  }

  const written = story().length;
  const truncated = run.nextEvent('conversation.item.truncated');
  const item = conversation.client.conversation.findItem(item_id);
  if (item) await conversation.truncateToSpoken(item, heard);
  const { rewind } = await truncated;
  conversation.shown = null;
  const cut = `The model now knows the ${formatCount(heard)} characters that you heard, and not the other ${formatCount(written - heard)}.`;
  run.show(cut);
  await run.pause(4);
  const { metrics } = await run.ask('Go on with the story.');
  const kept = rewind ? ` The cut kept the KV of ${countTokens(rewind.kept_tokens)}.` : '';
  return { text: `${cut}${kept}${metrics ? ` The next turn: ${lowerFirst(describeTurn(metrics))}` : ''}` };
}

async function cut(run: DemonstrationRun): Promise<DemonstrationResult> {
  const { client } = run.conversation;
  run.show('A story. In the middle of it, the connection is cut.');
  await run.type(STORY);
  const received = (id: string): number => textLength(client.conversation.findItem(id));
  const middle = run.nextEvent('response.output_text.delta', ({ item_id }) => received(item_id) >= CUT_CHARS);
  const turn = run.nextTurn();
  run.stage.send();
  const cutIn = await Promise.race([middle, turn.then(() => null)]);
  if (cutIn === null) return { text: 'The response was complete before the connection could be cut. Try again.' };
  const before = received(cutIn.item_id);
  const cutAt = performance.now();
  client.reconnect('this demonstration has cut the connection');
  run.show(`Cut after ${formatCount(before)} characters. The server goes on writing, and the page connects again.`);
  await Promise.race([run.nextConnection(), turn]);
  const away = formatMs(performance.now() - cutAt);
  const { item } = await turn;
  return {
    text:
      `The page had ${formatCount(before)} of ${formatCount(textLength(item))} characters when its connection was cut. ` +
      `${away} later it was connected again and got the rest from the next character on: nothing is missing, ` +
      'nothing is repeated, and the model was asked only once.',
  };
}

async function kill(run: DemonstrationRun): Promise<DemonstrationResult> {
  run.show('A story. In the middle of it, the engine process is killed.');
  await run.type(STORY);
  const interrupted = run.nextEvent('response.interrupted');
  const turn = run.nextTurn();
  const killing = killEngine(); // waits on the server: a small model writes a story in a tenth of a second
  killing.catch(() => undefined);
  run.stage.send();
  const pid = await killing;
  const killedAt = performance.now();
  run.show(`The engine, process ${pid}, is dead. The server starts another one.`);
  const lost = await Promise.race([interrupted, turn.then(() => null)]);
  if (lost === null) return { text: 'The response was complete before the engine died. Try again.' };
  await Promise.race([run.nextEvent('response.output_text.delta'), turn]);
  const away = formatMs(performance.now() - killedAt);
  const { text, metrics } = await turn;
  const prompt = metrics ? ` It prefilled the prompt again, ${countTokens(metrics.prefilled)}, and the text so far.` : '';
  return {
    text:
      `Process ${pid} died after ${formatCount(lost.upto)} of ${formatCount(countCodePoints(text))} characters. ${away} later, ` +
      `another one continued with the next: nothing is missing, nothing is repeated.${prompt}`,
  };
}

async function branch(run: DemonstrationRun): Promise<DemonstrationResult> {
  const parentId = run.conversation.record.id;
  run.show('One beginning …', { progress: [0, 3] });
  const { item } = await run.ask(FACT, SHORT);
  run.show('… which goes on in one way here …', { progress: [1, 3] });
  await run.ask('Count from one to five.', SHORT);
  await run.pause(3);
  run.branch(item.id);
  run.show('… and in another way in a branch.', { progress: [2, 3] });
  await run.pause(3);
  const { metrics } = await run.ask(QUESTION, SHORT);
  return {
    text: `Two conversations share their beginning, and its KV.${metrics ? ` The branch: ${lowerFirst(describeTurn(metrics))}` : ''}`,
    action: {
      label: 'Show the other one',
      run: () => {
        run.stage.openConversation(parentId);
      },
    },
  };
}

async function type(run: DemonstrationRun): Promise<DemonstrationResult> {
  const { conversation } = run;
  const instruction = 'Type a question. Each finished word is read at once.';
  run.acceptsInput = true;
  run.show(instruction);
  run.stage.focusComposer();
  const turn = run.nextTurn();
  let isDone = false;
  void turn.then(
    () => (isDone = true),
    () => (isDone = true),
  );
  const hasDraft = (): boolean => conversation.record.draft !== '' && !conversation.isResponding;
  let prefilled = 0;
  let earlier = 0;
  while (!(isDone as boolean)) {
    const id = conversation.client.resumePoint?.sessionId;
    const status = hasDraft() && id !== undefined ? await fetchSession(id).catch(() => null) : null;
    if (status && hasDraft()) {
      earlier = status.tokens;
      prefilled = Math.max(status.kv.tokens - earlier, 0);
      run.show(`${countTokens(prefilled)} of your message prefilled so far. Press Enter when it is complete.`);
    } else if (conversation.isEmpty && !conversation.isResponding) run.show(instruction);
    await run.sleep(POLL_MS);
  }
  const { metrics } = await turn;
  if (!metrics) return { text: `While you typed, ${countTokens(prefilled)} of your message were prefilled.` };
  const all = Math.max(metrics.prefilled + metrics.reused - earlier, prefilled);
  return {
    text:
      `Your message took ${countTokens(all)} of the prompt: ${formatCount(prefilled)} were prefilled while you typed, ` +
      `${formatCount(all - prefilled)} after Enter. First token after ${formatMs(metrics.ttft)}.`,
  };
}

/** Returns the length of a message in characters. */
function textLength(item: Item | undefined): number {
  return item ? countCodePoints(textOf(item)) : 0;
}

function lowerFirst(text: string): string {
  return text.charAt(0).toLowerCase() + text.slice(1);
}
