/** Charts over the turns of a conversation: latency, and tokens prefilled or reused. */

import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { h } from './dom.js';
import { formatCount, formatMs } from './format.js';
import type { TurnMetrics } from './storage.js';
import { describeTimes, describeTokens } from './turn_figures.js';

const HEIGHT_PX = 120;

interface ChartSeries {
  label: string;
  color: string;
  bars?: boolean;
}

class Chart {
  readonly element: HTMLElement;
  readonly #plot = h('div', { class: 'plot', role: 'img' });
  readonly #caption = h('p', { class: 'caption' });
  readonly #series: ChartSeries[];
  readonly #captionOf: (index: number) => string;
  readonly #formatValue: (value: number) => string;
  #chart: uPlot | null = null;
  #data: uPlot.AlignedData = [[]];

  constructor(
    title: string,
    explanation: string,
    series: ChartSeries[],
    formatValue: (value: number) => string,
    captionOf: (index: number) => string,
  ) {
    this.#series = series;
    this.#captionOf = captionOf;
    this.#formatValue = formatValue;
    const legend = series.map(({ color, label }) =>
      h('span', { class: `key ${color.slice(2)}` }, label),
    );
    this.element = h(
      'section',
      { class: 'chart' },
      h('h2', {}, title),
      h('p', { class: 'explanation' }, explanation),
      h('p', { class: 'legend' }, ...legend),
      this.#plot,
      this.#caption,
    );
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      this.redraw();
    });
    new ResizeObserver(() => {
      const width = this.#plot.clientWidth;
      if (width > 0) this.#chart?.setSize({ width, height: HEIGHT_PX });
    }).observe(this.#plot);
  }

  draw(data: uPlot.AlignedData): void {
    this.#data = data;
    this.#plot.classList.toggle('no-data', data[0].length === 0);
    if (this.#chart === null) this.redraw();
    else this.#chart.setData(data);
    this.#showCaption(data[0].length - 1);
  }

  /** Draw the chart again in the current colors. */
  redraw(): void {
    this.#chart?.destroy();
    this.#chart = null;
    if (this.#plot.clientWidth === 0) return;
    const color = (name: string): string => {
      this.#plot.style.color = `var(${name})`;
      return getComputedStyle(this.#plot).color; // resolved to a color that the canvas accepts
    };
    const line = { stroke: color('--faint'), width: 1 };
    const axis: uPlot.Axis = {
      stroke: color('--quiet'),
      font: '11px ui-sans-serif, system-ui, sans-serif',
      grid: line,
      ticks: { show: false },
    };
    const bars = uPlot.paths.bars?.({ size: [0.7, 14], align: 0 });
    const series = this.#series.map((one): uPlot.Series => {
      const stroke = color(one.color);
      if (one.bars === true && bars) {
        return { label: one.label, stroke, fill: stroke, width: 0, paths: bars, points: { show: false } };
      }
      return { label: one.label, stroke, width: 1.75, points: { size: 4, fill: stroke } };
    });
    this.#chart = new uPlot(
      {
        width: this.#plot.clientWidth,
        height: HEIGHT_PX,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
          x: { time: false, range: (_, __, max) => [0.4, Math.max(max, 8) + 0.6] },
          y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] },
        },
        axes: [
          { ...axis, size: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] },
          { ...axis, size: 50, space: 32, values: (_, ticks) => ticks.map(this.#formatValue) },
        ],
        series: [{}, ...series],
        hooks: {
          setCursor: [
            (chart) => {
              this.#showCaption(chart.cursor.idx ?? this.#data[0].length - 1);
            },
          ],
        },
      },
      this.#data,
      this.#plot,
    );
  }

  #showCaption(at: number): void {
    const caption = at >= 0 ? this.#captionOf(at) : 'No turns yet.';
    this.#caption.textContent = caption;
    this.#plot.setAttribute('aria-label', caption);
  }
}

export class Charts {
  readonly element: HTMLElement;
  readonly #latency: Chart;
  readonly #tokens: Chart;
  #turns: TurnMetrics[] = [];

  constructor() {
    this.#latency = new Chart(
      'Latency per turn',
      'Time from the request to the first token, then from each token to the next if they came one by one.',
      [
        { label: 'first token', color: '--first-token' },
        { label: 'per output token', color: '--per-token' },
      ],
      formatMs,
      (index) => {
        const turn = this.#turns[index];
        if (!turn) return '';
        return `Turn ${index + 1}: ${describeTimes(turn)}`;
      },
    );
    this.#tokens = new Chart(
      'Tokens per turn',
      'Reused: in the KV cache already at the request. Prefilled: computed after it.',
      [
        { label: 'reused from the KV cache', color: '--reused', bars: true },
        { label: 'prefilled', color: '--prefilled', bars: true },
      ],
      formatCount,
      (index) => {
        const turn = this.#turns[index];
        if (!turn) return '';
        return `Turn ${index + 1}: ${describeTokens(turn)}`;
      },
    );
    this.element = h('div', {}, this.#latency.element, this.#tokens.element);
  }

  draw(metrics: TurnMetrics[]): void {
    this.#turns = metrics;
    const turns = metrics.map((_, index) => index + 1);
    this.#latency.draw([turns, metrics.map((turn) => turn.ttft), metrics.map((turn) => turn.itl)]);
    // The bar of prefilled tokens is drawn over the bar of all tokens, whose visible rest is reused.
    const totals = metrics.map((turn) => turn.prefilled + turn.reused);
    this.#tokens.draw([turns, totals, metrics.map((turn) => turn.prefilled)]);
  }

  /** Draw both charts again in the current colors and size. */
  redraw(): void {
    this.#latency.redraw();
    this.#tokens.redraw();
  }
}
