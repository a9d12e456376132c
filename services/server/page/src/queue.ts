// One batch queue: its load, its frontier, and the sliders that ask before they change anything.

import { get, reason, tune } from './api.ts';
import type { Frontier, Queue, Tuned } from './api.ts';
import type { Admin } from './admin.ts';
import { attribute, Figure, h, show, text } from './dom.ts';
import { duration, milliseconds, number, parseDuration, percent, plural, short } from './format.ts';
import { FrontierChart } from './frontier.ts';
import * as scale from './scale.ts';
import { compare, describe, difference, isEmpty } from './tuning.ts';

const DEBOUNCE_MS = 150;

class Slider {
  readonly root: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly output: HTMLOutputElement;
  private readonly scale: scale.Scale;
  private readonly words: (value: number) => string;
  /** The value itself; a position is only near it. */
  value = 0;

  constructor(id: string, label: string, of: scale.Scale, words: (value: number) => string, moved: () => void) {
    this.scale = of;
    this.words = words;
    this.input = h('input', { type: 'range', id, 'data-testid': id, min: 0, max: of.positions, step: 1 });
    this.output = h('output', { for: id });
    this.root = h('div', { class: 'slider' }, h('label', { for: id }, label), this.output, this.input);
    this.input.addEventListener('input', () => {
      this.value = of.value(Number(this.input.value));
      this.tell();
      moved();
    });
  }

  set(value: number): void {
    this.value = value;
    const position = String(this.scale.position(value));
    if (this.input.value !== position) this.input.value = position;
    this.tell();
  }

  private tell(): void {
    const words = this.words(this.value);
    text(this.output, words);
    attribute(this.input, 'aria-valuetext', words);
  }
}

export class QueueView {
  readonly root: HTMLElement;
  private readonly name: string;
  private readonly admin: Admin;
  private readonly figures: Record<string, Figure>;
  private readonly rows: Slider;
  private readonly delay: Slider;
  private readonly idle: HTMLInputElement;
  private readonly forecast: HTMLElement;
  private readonly trouble: HTMLElement;
  private readonly apply: HTMLButtonElement;
  private readonly reset: HTMLButtonElement;
  private readonly noPoints: HTMLElement;
  private readonly chartBox = h('div', { class: 'chart' });
  private readonly pointsBody = h('tbody');
  private chart: FrontierChart | null = null;
  private queue: Queue | null = null;
  private frontier: Frontier | null = null;
  /** Whether somebody turned something that is not applied. */
  private touched = false;
  private dry: Tuned | null = null;
  private applying = false;
  private timer = 0;
  private asking: AbortController | null = null;

  constructor(name: string, admin: Admin) {
    this.name = name;
    this.admin = admin;
    const id = `queue-${name}`;
    const moved = () => this.moved();
    this.rows = new Slider(`${id}-rows`, 'Rows a batch, at most', scale.rows, number, moved);
    this.delay = new Slider(`${id}-delay`, 'Wait for more, at most', scale.delay, (value) => (value === 0 ? 'none' : milliseconds(value)), moved);
    this.idle = h('input', { type: 'checkbox', id: `${id}-idle`, 'data-testid': `${id}-idle` });
    this.idle.addEventListener('change', moved);
    this.forecast = h('p', { class: 'forecast', id: `${id}-forecast`, 'data-testid': `${id}-forecast`, 'aria-live': 'polite' });
    this.trouble = h('p', { class: 'trouble', id: `${id}-error`, 'data-testid': `${id}-error`, role: 'alert', hidden: true });
    this.apply = h('button', { type: 'button', class: 'primary', id: `${id}-apply`, 'data-testid': `${id}-apply` }, 'Apply');
    this.reset = h('button', { type: 'button', id: `${id}-reset`, 'data-testid': `${id}-reset` }, 'Reset');
    this.apply.addEventListener('click', () => void this.change());
    this.reset.addEventListener('click', () => this.back());
    this.noPoints = h('p', { class: 'muted empty' }, 'No frontier yet: it takes a worker, and some batches to learn from.');
    this.figures = {
      workers: new Figure('workers'),
      requests: new Figure('requests/s'),
      queued: new Figure('queued'),
      predicted: new Figure('wait predicted', 'What is queued, in the time that workers take for it'),
      forecast: new Figure('busy'),
      latency: new Figure('latency'),
      refused: new Figure('refused'),
      late: new Figure('expired'),
    };
    const points = h('details', {}, h('summary', {}, 'The frontier as a table'), h('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': `Frontier of ${name}` }, this.pointsTable()));
    this.root = h(
      'section',
      { class: 'queue', id, 'data-testid': id, 'aria-label': `Queue ${name}` },
      h('h3', {}, name),
      h('dl', { class: 'figures' }, ...Object.values(this.figures).map((figure) => figure.root)),
      h(
        'div',
        { class: 'queue-columns' },
        h('div', {}, this.chartBox, this.noPoints, points),
        h(
          'div',
          { class: 'tuning' },
          this.rows.root,
          this.delay.root,
          h('label', { class: 'check' }, this.idle, h('span', {}, 'A free worker takes what waits, where more would not pay (idle)')),
          this.forecast,
          this.trouble,
          h('div', { class: 'buttons' }, this.apply, this.reset),
          admin.note(),
        ),
      ),
    );
    admin.onChange(() => this.buttons());
  }

  update(queue: Queue): void {
    this.queue = queue;
    const { load, outcomes, forecast } = queue;
    const set = (name: string, words: string) => this.figures[name]!.set(words);
    set('workers', number(load.workers));
    set('requests', short(load.requests_per_second));
    set('queued', `${plural(load.queued_requests, 'request')}, ${plural(load.queued_rows, 'row')}`);
    set('predicted', duration(load.predicted_seconds));
    set('forecast', percent(forecast?.utilization));
    set('latency', milliseconds(forecast?.latency_seconds));
    set('refused', short(outcomes['refused']));
    set('late', short(outcomes['expired']));
    if (!this.touched) this.follow();
    this.buttons();
  }

  /** Asks for the frontier, and draws it. */
  async refresh(): Promise<void> {
    try {
      this.frontier = await get<Frontier>(`queues/${encodeURIComponent(this.name)}/frontier`);
    } catch {
      return; // The page as a whole says when the server is gone.
    }
    this.draw();
  }

  private draw(): void {
    const frontier = this.frontier;
    if (!frontier) return;
    const some = frontier.points.length > 0;
    show(this.chartBox, some);
    show(this.noPoints, !some);
    if (!some) return;
    this.chart ??= new FrontierChart(this.chartBox);
    this.chart.update(frontier, this.dry ? { rows: this.dry.batching.max_batch_rows, forecast: this.dry.forecast } : null);
    const rows = frontier.points.map(({ max_batch_rows, forecast }) =>
      [number(max_batch_rows), short(forecast.capacity_rows_per_second), milliseconds(forecast.latency_seconds), percent(forecast.utilization)],
    );
    while (this.pointsBody.children.length > rows.length) this.pointsBody.lastElementChild!.remove();
    rows.forEach((cells, index) => {
      let row = this.pointsBody.children[index];
      if (!row) {
        row = h('tr', {}, h('th', { scope: 'row' }), h('td'), h('td'), h('td'));
        this.pointsBody.append(row);
      }
      cells.forEach((cell, column) => text(row.children[column]!, cell));
    });
  }

  private pointsTable(): HTMLElement {
    const heads = ['rows a batch', 'capacity, rows/s', 'latency', 'busy'].map((head) => h('th', { scope: 'col' }, head));
    return h('table', {}, h('thead', {}, h('tr', {}, ...heads)), this.pointsBody);
  }

  /** The controls show what the queue has. */
  private follow(): void {
    const { batching, forecast } = this.queue!;
    this.rows.set(batching.max_batch_rows);
    this.delay.set(parseDuration(batching.max_queue_delay) ?? 0);
    this.idle.checked = batching.idle;
    text(this.forecast, forecast ? `Now: ${describe(forecast)}.` : 'Move a slider: the forecast comes before anything changes.');
  }

  private wanted() {
    return difference(this.queue!.batching, { rows: this.rows.value, delay: this.delay.value, idle: this.idle.checked });
  }

  private moved(): void {
    if (!this.queue) return;
    this.touched = true;
    this.buttons();
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.ask(), DEBOUNCE_MS);
  }

  private async ask(): Promise<void> {
    const change = this.wanted();
    if (isEmpty(change)) return this.back();
    const tuned = await this.send(change, true);
    if (!tuned) return;
    this.dry = tuned;
    text(this.forecast, compare(tuned, parseDuration(tuned.batching.slo ?? '')));
    this.draw();
  }

  private async change(): Promise<void> {
    const change = this.wanted();
    if (isEmpty(change) || this.apply.disabled) return;
    clearTimeout(this.timer);
    this.applying = true;
    this.buttons();
    const tuned = await this.send(change, false);
    this.applying = false;
    if (tuned) {
      this.queue!.batching = tuned.batching;
      this.back();
      text(this.forecast, `Applied. ${compare(tuned, parseDuration(tuned.batching.slo ?? ''))}`);
      void this.refresh();
    }
    this.buttons();
  }

  /** The answer, or null where it was refused (which is shown) or is not wanted any more. */
  private async send(change: ReturnType<typeof difference>, dryRun: boolean): Promise<Tuned | null> {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    try {
      const tuned = await tune(this.name, change, { dryRun, token: this.admin.token, signal: asking.signal });
      show(this.trouble, false);
      return asking.signal.aborted ? null : tuned;
    } catch (error) {
      if (asking.signal.aborted) return null;
      text(this.trouble, `${dryRun ? 'No forecast' : 'Not applied'}: ${reason(error)}.`);
      show(this.trouble, true);
      return null;
    }
  }

  private back(): void {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.touched = false;
    this.dry = null;
    show(this.trouble, false);
    if (this.queue) this.follow();
    this.buttons();
    this.draw();
  }

  private buttons(): void {
    const changed = this.touched && this.queue !== null && !isEmpty(this.wanted());
    this.apply.disabled = !changed || !this.admin.allowed || this.applying;
    this.reset.disabled = !this.touched || this.applying;
  }
}
