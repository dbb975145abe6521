/** Dialogs: the settings of a conversation (instructions, sampling, tools), with each refusal shown beside
 * its field, and the API key. */

import { EventRefusedError, type ReasoningEffort, type SessionSettings, type Tool } from '../client/index.js';
import type { Model } from './api.js';
import { h } from './dom.js';
import { EXAMPLE_TOOLS } from './example_tools.js';

type NumberKey =
  | 'temperature'
  | 'top_p'
  | 'top_k'
  | 'repetition_penalty'
  | 'max_output_tokens'
  | 'seed';

const NUMBER_FIELDS: [key: NumberKey, label: string, hint: string, step: string][] = [
  ['temperature', 'Temperature', '0 to 2; 0 always selects the most likely token', '0.1'],
  ['top_p', 'Top p', 'above 0, up to 1', '0.05'],
  ['top_k', 'Top k', '0 for no limit', '1'],
  ['repetition_penalty', 'Repetition penalty', '1 for none', '0.05'],
  ['max_output_tokens', 'Maximum response tokens', 'empty for no limit', '1'],
  ['seed', 'Seed', 'empty for a random seed', '1'],
];

const EFFORTS: [value: ReasoningEffort | '', label: string][] = [
  ['', 'As little as the model can'],
  ['low', 'Low'],
  ['medium', 'Medium'],
  ['high', 'High'],
];

export interface ChosenSettings {
  settings: SessionSettings;
  model: string | null;
}

export interface SettingsDialogOptions {
  current: SessionSettings;
  model: string | null;
  models: Model[];
  /** Apply the chosen settings. Rejects with EventRefusedError. */
  apply(chosen: ChosenSettings): Promise<void>;
}

interface Field {
  element: HTMLElement;
  input: HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;
  error: HTMLElement;
}

export function openSettingsDialog(options: SettingsDialogOptions): void {
  const fields = new Map<string, Field>();
  const addField = (key: string, label: string, hint: string, input: Field['input']): HTMLElement => {
    const id = `field-${key}`;
    const error = h('p', { class: 'error', id: `${id}-error`, role: 'alert' });
    input.id = id;
    input.setAttribute('aria-describedby', `${id}-hint ${id}-error`);
    const element = h(
      'div',
      { class: 'field' },
      h('label', { for: id }, label),
      input,
      h('p', { class: 'hint', id: `${id}-hint` }, hint),
      error,
    );
    fields.set(key, { element, input, error });
    return element;
  };
  const value = (key: string): string => fields.get(key)?.input.value.trim() ?? '';
  const { current } = options;

  const modelOptions = options.models.map((model) => h('option', { value: model.id }, model.id));
  const modelSelect = h('select', {}, ...modelOptions);
  modelSelect.value = options.model ?? options.models[0]?.id ?? '';
  const instructions = h('textarea', { rows: '3' });
  instructions.value = current.instructions ?? '';
  const numberInputs = NUMBER_FIELDS.map(([key, label, hint, step]) => {
    const input = h('input', { type: 'number', step, inputmode: 'decimal' });
    const initial = current[key];
    input.value = typeof initial === 'number' ? String(initial) : '';
    return addField(key, label, hint, input);
  });
  const effort = h('select', {}, ...EFFORTS.map(([value, label]) => h('option', { value }, label)));
  const currentEffort = current.reasoning?.effort ?? '';
  effort.value = EFFORTS.some(([value]) => value === currentEffort) ? currentEffort : '';
  const tools = h('textarea', { rows: '5', spellcheck: 'false', class: 'code' });
  tools.value = current.tools?.length ? JSON.stringify(current.tools, null, 2) : '';
  const exampleButton = h(
    'button',
    {
      type: 'button',
      onclick: () => {
        tools.value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
      },
    },
    'Insert example',
  );

  const dialog = h('dialog', { class: 'settings', 'aria-labelledby': 'settings-title' });
  const generalError = h('p', { class: 'error', role: 'alert' });
  const saveButton = h('button', { type: 'submit', class: 'primary' }, 'Save');
  const close = (): void => {
    dialog.close();
  };
  const submit = async (): Promise<void> => {
    for (const field of fields.values()) field.error.textContent = '';
    generalError.textContent = '';
    const parsedTools = parseTools(value('tools'));
    if (typeof parsedTools === 'string') {
      (fields.get('tools')?.error ?? generalError).textContent = parsedTools;
      return;
    }
    const numberSettings = NUMBER_FIELDS.map(([key]) => [key, value(key) === '' ? null : Number(value(key))]);
    const settings: SessionSettings = {
      instructions: value('instructions') || null,
      tools: parsedTools,
      reasoning: effort.value === '' ? null : { effort: effort.value as ReasoningEffort },
      ...(Object.fromEntries(numberSettings) as SessionSettings),
    };
    saveButton.disabled = true;
    saveButton.textContent = 'Saving …'; // lasts until the server acknowledges the settings
    try {
      await options.apply({ settings, model: modelSelect.value || null });
      close();
    } catch (error) {
      const param = error instanceof EventRefusedError ? (error.param ?? '') : '';
      const key = /^session\.(\w+)/.exec(param)?.[1] ?? '';
      const errorElement = fields.get(key)?.error ?? generalError;
      errorElement.textContent = describeFieldError(error);
      fields.get(key)?.input.focus();
    }
    saveButton.disabled = false;
    saveButton.textContent = 'Save';
  };
  const form = h(
    'form',
    {
      onsubmit: (event: Event) => {
        event.preventDefault();
        void submit();
      },
    },
    h('h2', { id: 'settings-title' }, 'Conversation settings'),
    addField('model', 'Model', 'another model begins a new conversation', modelSelect),
    addField('instructions', 'Instructions', 'system instructions for the model', instructions),
    h('div', { class: 'numbers' }, ...numberInputs),
    addField('reasoning', 'Reasoning', 'how much the model thinks before it answers', effort),
    addField('tools', 'Tools', 'a JSON list in OpenAI’s format; you submit the results yourself', tools),
    exampleButton,
    generalError,
    h('div', { class: 'row end' }, h('button', { type: 'button', onclick: close }, 'Cancel'), saveButton),
  );
  dialog.append(form);
  dialog.addEventListener('close', () => {
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
}

const BOUNDS = { '<=': 'at most', '>=': 'at least', '<': 'less than', '>': 'more than' };

/** Returns what is wrong with a field. Its name, with which the server's message begins, is beside it. */
function describeFieldError(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  const reason = message
    .replace(/^Invalid '[^']*': /, '')
    .replace(/^expected a value (<=|>=|<|>) ([\d.]*\d)/, (_, sign: keyof typeof BOUNDS, bound) => `${BOUNDS[sign]} ${Number(bound)}`);
  return reason.charAt(0).toUpperCase() + reason.slice(1);
}

/** Returns the tools, or an error message. */
function parseTools(text: string): Tool[] | string {
  if (!text) return [];
  try {
    const parsed = JSON.parse(text) as unknown;
    return Array.isArray(parsed) ? (parsed as Tool[]) : 'Expected a JSON list: [ … ]';
  } catch (error) {
    return `Invalid JSON: ${error instanceof Error ? error.message : ''}`;
  }
}

export interface KeyPromptResult {
  /** The key that was entered; null if none was. */
  key: string | null;
  /** Whether the user wants the conversations in this browser to be forgotten. */
  isForgetting: boolean;
}

/** Ask the user for an API key, and, where there are any, whether to forget the `stored` conversations. */
export function promptForApiKey(message: string, stored = 0): Promise<KeyPromptResult> {
  return new Promise((resolve) => {
    const input = h('input', {
      type: 'password',
      autocomplete: 'off',
      id: 'key',
      required: true,
      'aria-describedby': 'key-hint',
    });
    const dialog = h('dialog', { class: 'settings narrow', 'aria-labelledby': 'key-title' });
    const conversations = stored === 1 ? 'one conversation' : `${stored} conversations`;
    const question = `Forget the ${conversations} stored in this browser? The server may have no copy.`;
    const result: KeyPromptResult = { key: null, isForgetting: false };
    const forget = async (): Promise<void> => {
      result.isForgetting = await confirmAction(question, 'Forget');
      if (result.isForgetting) dialog.close();
    };
    const form = h(
      'form',
      {
        onsubmit: (event: Event) => {
          event.preventDefault();
          result.key = input.value.trim();
          dialog.close();
        },
      },
      h('h2', { id: 'key-title' }, 'Enter your API key'),
      h('p', {}, message),
      h(
        'div',
        { class: 'field' },
        h('label', { for: 'key' }, 'API key'),
        input,
        h(
          'p',
          { class: 'hint', id: 'key-hint' },
          'Stored in this tab until you close it, and sent only to this server, ' +
            'which issues a short-lived key for each connection.',
        ),
      ),
      stored > 0 &&
        h(
          'div',
          { class: 'field' },
          h('p', { class: 'hint' }, `This browser keeps ${conversations}, also without a key.`),
          h('button', { type: 'button', onclick: () => void forget() }, 'Forget conversations …'),
        ),
      h(
        'div',
        { class: 'row end' },
        h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'),
        h('button', { type: 'submit', class: 'primary' }, 'Continue'),
      ),
    );
    dialog.append(form);
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Ask the user to confirm an action that destroys something. Resolves with whether it was confirmed. */
export function confirmAction(message: string, action: string): Promise<boolean> {
  return new Promise((resolve) => {
    const dialog = h('dialog', { class: 'settings narrow', 'aria-labelledby': 'confirm-message' });
    let isConfirmed = false;
    const close = (confirmed: boolean) => (): void => {
      isConfirmed = confirmed;
      dialog.close();
    };
    const cancelButton = h('button', { type: 'button', onclick: close(false) }, 'Cancel');
    const confirmButton = h('button', { type: 'button', class: 'primary destructive', onclick: close(true) }, action);
    dialog.append(
      h('p', { id: 'confirm-message' }, message),
      h('div', { class: 'row end' }, cancelButton, confirmButton),
    );
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(isConfirmed);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
