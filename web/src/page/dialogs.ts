/** How the model is asked: instructions, sampling, tools. Refusals stand beside what they are about. */

import { Refused, type SessionSettings, type Tool } from '../client/index.js';
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

const NUMBERS: [key: NumberKey, label: string, hint: string, step: string][] = [
  ['temperature', 'Temperature', '0 takes the likeliest token, up to 2', '0.1'],
  ['top_p', 'Top p', 'above 0, up to 1', '0.05'],
  ['top_k', 'Top k', '0 for no limit', '1'],
  ['repetition_penalty', 'Repetition penalty', '1 for none', '0.05'],
  ['max_output_tokens', 'Longest answer, in tokens', 'empty for no limit', '1'],
  ['seed', 'Seed', 'empty for another one each time', '1'],
];

export interface Chosen {
  settings: SessionSettings;
  model: string | null;
}

export interface Asked {
  now: SessionSettings;
  model: string | null;
  models: Model[];
  /** Rejects with Refused. */
  apply(chosen: Chosen): Promise<void>;
}

interface Field {
  element: HTMLElement;
  input: HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;
  error: HTMLElement;
}

export function openSettings(asked: Asked): void {
  const fields = new Map<string, Field>();
  const add = (key: string, label: string, hint: string, input: Field['input']): HTMLElement => {
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
  const { now } = asked;

  const names = asked.models.map((model) => h('option', { value: model.id }, model.id));
  const picker = h('select', {}, ...names);
  picker.value = asked.model ?? asked.models[0]?.id ?? '';
  const instructions = h('textarea', { rows: '3' });
  instructions.value = now.instructions ?? '';
  const numbers = NUMBERS.map(([key, label, hint, step]) => {
    const input = h('input', { type: 'number', step, inputmode: 'decimal' });
    const given = now[key];
    input.value = typeof given === 'number' ? String(given) : '';
    return add(key, label, hint, input);
  });
  const tools = h('textarea', { rows: '5', spellcheck: 'false', class: 'code' });
  tools.value = now.tools?.length ? JSON.stringify(now.tools, null, 2) : '';
  const example = h(
    'button',
    {
      type: 'button',
      onclick: () => {
        tools.value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
      },
    },
    'Put an example in',
  );

  const dialog = h('dialog', { class: 'settings', 'aria-labelledby': 'settings-title' });
  const general = h('p', { class: 'error', role: 'alert' });
  const save = h('button', { type: 'submit', class: 'primary' }, 'Save');
  const close = (): void => {
    dialog.close();
  };
  const submit = async (): Promise<void> => {
    for (const field of fields.values()) field.error.textContent = '';
    general.textContent = '';
    const toolbox = parseTools(value('tools'));
    if (typeof toolbox === 'string') {
      (fields.get('tools')?.error ?? general).textContent = toolbox;
      return;
    }
    const numbered = NUMBERS.map(([key]) => [key, value(key) === '' ? null : Number(value(key))]);
    const settings: SessionSettings = {
      instructions: value('instructions') || null,
      tools: toolbox,
      ...(Object.fromEntries(numbered) as SessionSettings),
    };
    save.disabled = true;
    save.textContent = 'Saving …'; // which takes as long as there is no connection
    try {
      await asked.apply({ settings, model: picker.value || null });
      close();
    } catch (error) {
      const key = error instanceof Refused ? (/^session\.(\w+)/.exec(error.param ?? '')?.[1] ?? '') : '';
      const place = fields.get(key)?.error ?? general;
      place.textContent = error instanceof Error ? error.message : String(error);
      fields.get(key)?.input.focus();
    }
    save.disabled = false;
    save.textContent = 'Save';
  };
  const form = h(
    'form',
    {
      onsubmit: (event: Event) => {
        event.preventDefault();
        void submit();
      },
    },
    h('h2', { id: 'settings-title' }, 'Settings of this conversation'),
    add('model', 'Model', 'another one begins a new conversation', picker),
    add('instructions', 'Instructions', 'what the model is told first', instructions),
    h('div', { class: 'numbers' }, ...numbers),
    add('tools', 'Tools', 'a JSON list, as OpenAI has it; you answer the calls yourself', tools),
    example,
    general,
    h('div', { class: 'row end' }, h('button', { type: 'button', onclick: close }, 'Cancel'), save),
  );
  dialog.append(form);
  dialog.addEventListener('close', () => {
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** The tools, or what is wrong with them. */
function parseTools(text: string): Tool[] | string {
  if (!text) return [];
  try {
    const parsed = JSON.parse(text) as unknown;
    return Array.isArray(parsed) ? (parsed as Tool[]) : 'A list is expected: [ … ]';
  } catch (error) {
    return `This is not JSON: ${error instanceof Error ? error.message : ''}`;
  }
}

/** Asks for a key; `null` if none was given. */
export function askKey(message: string): Promise<string | null> {
  return new Promise((resolve) => {
    const input = h('input', {
      type: 'password',
      autocomplete: 'off',
      id: 'key',
      required: true,
      'aria-describedby': 'key-hint',
    });
    const dialog = h('dialog', { class: 'settings narrow', 'aria-labelledby': 'key-title' });
    let given: string | null = null;
    const form = h(
      'form',
      {
        onsubmit: (event: Event) => {
          event.preventDefault();
          given = input.value.trim();
          dialog.close();
        },
      },
      h('h2', { id: 'key-title' }, 'Enter your key'),
      h('p', {}, message),
      h(
        'div',
        { class: 'field' },
        h('label', { for: 'key' }, 'API key'),
        input,
        h(
          'p',
          { class: 'hint', id: 'key-hint' },
          'Kept in this tab until you close it, and shown only to this server, ' +
            'which gives a short-lived one for each connection.',
        ),
      ),
      h('div', { class: 'row end' }, h('button', { type: 'submit', class: 'primary' }, 'Enter')),
    );
    dialog.append(form);
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
