/** Blocks of Markdown: what they contain, what stays text, and that streaming does not change them. */

import { describe, expect, it } from 'vitest';
import { PIECE_CHARS_MAX } from '../../src/page/bounded_text.js';
import { type Block, GrowingMarkdown } from '../../src/page/markdown/blocks.js';

/** Returns the blocks of a complete text. */
function parse(text: string): Block[] {
  return new GrowingMarkdown().parse(text, true).closed;
}

/** Returns the blocks of a text received in parts of `size` characters. */
function stream(text: string, size: number): { closed: Block[]; openMax: number } {
  const parser = new GrowingMarkdown();
  const closed: Block[] = [];
  let openMax = 0;
  for (let end = size; end < text.length; end += size) {
    const result = parser.parse(text.slice(0, end), false);
    closed.push(...result.closed);
    openMax = Math.max(openMax, result.open.length);
  }
  closed.push(...parser.parse(text, true).closed);
  return { closed, openMax };
}

function childrenOf(block: Block | undefined): Block[] {
  return block && 'children' in block ? block.children : [];
}

/** Returns types and contents of the tokens of a line of text. */
function inline(source: string): string[] {
  return new GrowingMarkdown()
    .parseInline(source)
    .filter(({ type, content }) => type !== 'text' || content)
    .map((token) => {
      const address = token.attrGet('href') ?? token.attrGet('src');
      return [token.type, token.content, address].filter(Boolean).join(' ');
    });
}

const ANSWER = `# Title

A paragraph with **bold**, \`code\` and $x^2$
and a second line.

> A quotation
lazily continued.

| Name | Count |
|:-----|------:|
| a    |     1 |
| b    |     2 |

1. first

   \`\`\`python
   print("1\\n\\n2")
   \`\`\`
2. second
   - [ ] open
   - [x] done

$$
\\frac{a}{b}

+ c
$$

Setext
------

\\[ E = mc^2 \\]

~~~
# no heading
~~~

See [the notes][1].

***

[1]: https://example.org/notes
`;

describe('blocks', () => {
  it('have the kinds and contents of the Markdown', () => {
    const blocks = parse(ANSWER);
    expect(blocks.map(({ kind }) => kind)).toEqual(
      ['h3', 'p', 'blockquote', 'table', 'ol', 'math', 'h4', 'math', 'code', 'p', 'hr'],
    );
    expect(blocks[5]).toMatchObject({ source: '\\frac{a}{b}\n\n+ c', isClosed: true });
    expect(blocks[7]).toMatchObject({ source: 'E = mc^2' });
    const table = JSON.stringify(blocks[3]);
    expect(table).toContain('"source":"2","isTight":false,"align":"right"');
    const list = JSON.stringify(blocks[4]);
    expect(list).toContain('"kind":"code","source":"print(\\"1\\\\n\\\\n2\\")\\n","language":"python"');
    expect(list).toContain('"source":"open"');
    expect(list).toMatch(/"task":"open".*"task":"done"/);
  });

  it('have headings that begin at the third level, below those of the page', () => {
    const kinds = (text: string): string[] => parse(text).map(({ kind }) => kind);
    expect(kinds('## a\n\n### b\n\n## c\n\n# d\n\n###### e')).toEqual(['h3', 'h4', 'h3', 'h3', 'h6']);
    expect(kinds('###### a\n\n- # b')).toEqual(['h3', 'ul']);
  });

  it('are the same whatever parts the text is received in, and few are parsed again', () => {
    const expected = parse(ANSWER);
    for (const size of [1, 2, 3, 7, 16, 61]) {
      const { closed, openMax } = stream(ANSWER, size);
      expect(closed, `parts of ${size}`).toEqual(expected);
      expect(openMax).toBeLessThanOrEqual(4);
    }
  });

  it('are the same if a line that has begun changes its meaning', () => {
    const texts = ['> quote\n--- not a rule\n', '> quote\n| a | b |\n|-- not a table\n', 'text\n\n$$ 5 $$ paid\n\nend'];
    for (const text of texts) expect(stream(text, 1).closed, text).toEqual(parse(text));
  });

  it('resolve links that are defined at the end, without a definition that is incomplete', () => {
    const parser = new GrowingMarkdown();
    const source = 'See [the notes][1].';
    parser.parse(`${source}\n\n[1]: https://exa`, false);
    expect(parser.parseInline(source).some(({ type }) => type === 'link_open')).toBe(false);
    const text = `${source}\n\n[1]: https://example.org/`;
    expect(parser.parse(text, true).hasNewReferences).toBe(true);
    expect(parser.parseInline(source).find(({ type }) => type === 'link_open')?.attrGet('href')).toBe('https://example.org/');
  });

  it('are parsed in a time that does not grow with the text before them', () => {
    const parser = new GrowingMarkdown();
    const text = ANSWER.repeat(150);
    let parsed = 0;
    for (let end = 40; end < text.length; end += 40) {
      const { closed, open } = parser.parse(text.slice(0, end), false);
      parsed += closed.length + open.length;
    }
    expect(parsed / (text.length / 40)).toBeLessThan(6);
  });
});

describe('hostile text', () => {
  it('has links to other sites only, and no HTML', () => {
    const sources = [
      '<script>alert(1)</script>', '<img src=x onerror=alert(1)>', '<svg/onload=alert(1)>', '<!-- hidden -->',
      '[a](javascript:alert(1))', '[a](JaVaScRiPt:alert(1))', '[a](&#106;avascript:alert(1))', '[a]( vbscript:x)',
      '[a](data:text/html,<script>alert(1)</script>)', '![a](javascript:alert(1))', '![a](data:image/svg+xml,<svg/>)',
      '<javascript:alert(1)>', '[a](/admin)', '[a](#conversation)', '[a](//other.example)', '[a](file:///etc/passwd)',
    ];
    for (const source of sources) {
      const types = inline(source).map((token) => token.split(' ')[0]);
      expect(types, source).toEqual(types.map(() => 'text'));
      expect(parse(source), source).toMatchObject([{ kind: 'p', source }]);
    }
    expect(inline('[a](https://x.test/"onclick="alert(1))')).toContain('link_open https://x.test/%22onclick=%22alert(1)');
    expect(inline('![cat](https://x.test/cat.png)')).toEqual(['image cat https://x.test/cat.png']);
    expect(inline('https://x.test/ but not README.md')[0]).toBe('link_open https://x.test/');
    expect(inline('see README.md')).toEqual(['text see README.md']);
  });

  it('is kept whole, and shown as it is, where it is nested too deeply or too wide', () => {
    const deep = '> '.repeat(500) + 'end';
    expect(parse(deep)).toEqual([{ kind: 'plain', source: deep }]);
    const wide = `|${'a|'.repeat(300)}\n|${'-|'.repeat(300)}\n|${'b|'.repeat(300)}`;
    expect(parse(wide)).toEqual([{ kind: 'plain', source: wide }]);
    const emphasis = '*a **b '.repeat(5000);
    expect(parse(emphasis).map((block) => ('source' in block ? block.source : '')).join('')).toBe(emphasis.trimEnd());
    expect(inline(emphasis).join('')).toContain('b');
  });

  it('takes no longer than its length', () => {
    const parts = ['$a ', '$$ ', '\\( ', '\\[', '[', '![', '`', '<', '*_', '> ', '- ', '|', '\n$$\n', '\n> $$\n', '\n\\[\n', '[^1]: '];
    for (const part of parts) {
      const text = part.repeat(Math.ceil(100_000 / part.length));
      const before = process.cpuUsage();
      for (const block of parse(text)) if ('source' in block) inline(block.source);
      const { user, system } = process.cpuUsage(before);
      expect((user + system) / 1000, JSON.stringify(part)).toBeLessThan(2000);
    }
  }, 60_000);
});

describe('long text', () => {
  it('is several paragraphs, and stays in each list and quotation', () => {
    const text = 'some words of a long paragraph '.repeat(1000).trimEnd();
    for (const [before, find] of [
      ['', (blocks: Block[]) => blocks],
      ['> ', ([quotation]: Block[]) => childrenOf(quotation)],
      ['- ', ([list]: Block[]) => childrenOf(childrenOf(list)[0])],
    ] as const) {
      const paragraphs = find(parse(`${before}${text}\n\nafter`)).filter(({ kind }) => kind === 'p');
      const sources = paragraphs.map((block) => ('source' in block ? block.source : ''));
      expect(sources.join('').replace(/after$/, '')).toBe(text);
      for (const source of sources) expect(source.length).toBeLessThanOrEqual(PIECE_CHARS_MAX);
    }
    expect(stream(`${text}\n\nafter`, 999).closed).toEqual(parse(`${text}\n\nafter`));
  });

  it('shows the source of a table with a very long cell', () => {
    const table = `| a |\n|---|\n| ${'b'.repeat(5000)} |`;
    expect(parse(table)).toEqual([{ kind: 'plain', source: table }]);
  });
});

describe('formulas', () => {
  it('are found between the delimiters that models write, and prices are not', () => {
    expect(inline('so $a_1$ and \\(b*c*d\\), $$x$$')).toEqual([
      'text so ', 'math_inline a_1', 'text  and ', 'math_inline b*c*d', 'text , ', 'math_inline x',
    ]);
    for (const text of ['from $5 to $10', 'a $ b $ c', '$5-$10', 'costs 5$', '\\$a\\$', '$$', '$', '\\(', '`$a$`']) {
      expect(inline(text).filter((token) => token.startsWith('math')), text).toEqual([]);
    }
    expect(inline('\\[ x +\n y \\] end')[0]).toBe('math_inline  x +\n y ');
  });

  it('remain inside the list item or quotation around them', () => {
    const [list, after] = parse('- formula:\n  $$\n  a\n  b\n  $$\n\nafter');
    expect(JSON.stringify(list)).toContain('"kind":"math","source":"a\\nb","isClosed":true');
    expect(after).toMatchObject({ kind: 'p', source: 'after' });
    expect(parse('> $$\n> a\n\nafter')).toMatchObject([{ kind: 'blockquote' }, { source: 'after' }]);
    expect(parse('$$\na\n\nb')).toEqual([{ kind: 'math', source: 'a\n\nb', isClosed: false }]);
  });
});
