// One batch queue: its load, its throughput-latency curve, and controls that preview a change before it is applied.

import { changeQueue, get, reason } from './api.ts';
import type { Settings } from './api.ts';
import type { Admin } from './admin.ts';
import { attribute, Figure, h, place, show, text } from './dom.ts';
import { duration, milliseconds, number, parseDuration, percent, plural, short } from './format.ts';
import { CurveChart } from './throughput-latency.ts';
import * as scale from './scale.ts';
import type { Queue, QueueCurve, SettingsChange } from './schema.ts';
import { compare, describe, difference, isEmpty } from './tuning.ts';
import { workerNotes, workersText } from './workers.ts';

const DEBOUNCE_MS = 150;

class Slider {
  readonly root: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly output: HTMLOutputElement;
  private readonly scale: scale.Scale;
  private readonly format: (value: number) => string;
  /** Exact value; the position of the slider is rounded. */
  value = 0;

  constructor(id: string, label: string, of: scale.Scale, format: (value: number) => string, moved: () => void) {
    this.scale = of;
    this.format = format;
    this.input = h('input', { type: 'range', id, 'data-testid': id, min: 0, max: of.positions, step: 1 });
    this.output = h('output', { for: id });
    this.root = h('div', { class: 'slider' }, h('label', { for: id }, label), this.output, this.input);
    this.input.addEventListener('input', () => {
      this.value = of.value(Number(this.input.value));
      this.showValue();
      moved();
    });
  }

  set(value: number): void {
    this.value = value;
    const position = String(this.scale.position(value));
    if (this.input.value !== position) this.input.value = position;
    this.showValue();
  }

  private showValue(): void {
    const shown = this.format(this.value);
    text(this.output, shown);
    attribute(this.input, 'aria-valuetext', shown);
  }
}

export class QueueView {
  readonly root: HTMLElement;
  private readonly name: string;
  private readonly admin: Admin;
  private readonly figures: Record<string, Figure>;
  private readonly rows: Slider;
  private readonly delay: Slider;
  private readonly eager: HTMLInputElement;
  private readonly forecast: HTMLElement;
  private readonly trouble: HTMLElement;
  private readonly apply: HTMLButtonElement;
  private readonly reset: HTMLButtonElement;
  private readonly noPoints: HTMLElement;
  private readonly workerNotes: HTMLElement;
  private readonly chartBox = h('div', { class: 'chart' });
  private readonly pointsBody = h('tbody');
  private chart: CurveChart | null = null;
  private queue: Queue | null = null;
  private curve: QueueCurve | null = null;
  /** True if the controls were changed and not applied. */
  private touched = false;
  private preview: SettingsChange | null = null;
  private applying = false;
  private timer = 0;
  private asking: AbortController | null = null;

  constructor(name: string, admin: Admin) {
    this.name = name;
    this.admin = admin;
    const id = `queue-${name}`;
    const moved = () => this.moved();
    this.rows = new Slider(`${id}-rows`, 'Maximum rows per batch (max_batch_rows)', scale.rows, number, moved);
    this.delay = new Slider(`${id}-delay`, 'Maximum delay of a batch (max_batch_delay)', scale.delay, (value) => (value === 0 ? 'none' : milliseconds(value)), moved);
    this.eager = h('input', { type: 'checkbox', id: `${id}-eager`, 'data-testid': `${id}-eager` });
    this.eager.addEventListener('change', moved);
    this.forecast = h('p', { class: 'forecast', id: `${id}-forecast`, 'data-testid': `${id}-forecast`, 'aria-live': 'polite' });
    this.trouble = h('p', { class: 'trouble', id: `${id}-error`, 'data-testid': `${id}-error`, role: 'alert', hidden: true });
    this.apply = h('button', { type: 'button', class: 'primary', id: `${id}-apply`, 'data-testid': `${id}-apply` }, 'Apply');
    this.reset = h('button', { type: 'button', id: `${id}-reset`, 'data-testid': `${id}-reset` }, 'Reset');
    this.apply.addEventListener('click', () => void this.change());
    this.reset.addEventListener('click', () => this.back());
    this.noPoints = h('p', { class: 'muted empty' }, 'No throughput-latency curve yet: it requires a worker and some completed batches.');
    this.workerNotes = h('ul', { class: 'trouble', 'data-testid': `${id}-workers`, hidden: true });
    this.figures = {
      workers: new Figure('workers', 'Workers that get batches. Overdue ones do not answer; suspended ones failed batches that other workers computed'),
      requests: new Figure('requests/s'),
      queued: new Figure('queued'),
      predicted: new Figure('predicted wait', 'Predicted time to the answer of a request that arrives now'),
      forecast: new Figure('utilization', 'Arrival rate divided by the capacity of the workers'),
      latency: new Figure('latency', 'Forecast of the mean time from a request to its answer'),
      refused: new Figure('rejected', 'Requests rejected on arrival'),
      late: new Figure('expired', 'Requests whose deadline passed before an answer'),
    };
    const points = h('details', {}, h('summary', {}, 'Show as table'), h('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': `Throughput-latency curve of ${name}` }, this.pointsTable()));
    this.root = h(
      'section',
      { class: 'queue', id, 'data-testid': id, 'aria-label': `Queue ${name}` },
      h('h3', {}, name),
      h('dl', { class: 'figures' }, ...Object.values(this.figures).map((figure) => figure.root)),
      this.workerNotes,
      h(
        'div',
        { class: 'queue-columns' },
        h('div', {}, this.chartBox, this.noPoints, points),
        h(
          'div',
          { class: 'tuning' },
          this.rows.root,
          this.delay.root,
          h('label', { class: 'check' }, this.eager, h('span', {}, 'Dispatch early to a free worker when waiting would not pay off (eager_dispatch)')),
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
    const set = (name: string, value: string) => this.figures[name]!.set(value);
    set('workers', workersText(load));
    const notes = workerNotes(queue);
    place(this.workerNotes, notes.map((note, at) => this.workerNotes.children[at] ?? h('li', {}, note)));
    notes.forEach((note, at) => text(this.workerNotes.children[at]!, note));
    show(this.workerNotes, notes.length > 0);
    set('requests', short(load.requests_per_second));
    set('queued', `${plural(load.queued_requests, 'request')}, ${plural(load.queued_rows, 'row')}`);
    set('predicted', duration(load.predicted_wait_seconds));
    set('forecast', percent(forecast?.utilization));
    set('latency', milliseconds(forecast?.latency_seconds));
    set('refused', short(outcomes.refused));
    set('late', short(outcomes.expired));
    if (!this.touched) this.follow();
    this.buttons();
  }

  /** Loads and draws the throughput-latency curve. */
  async refresh(): Promise<void> {
    try {
      this.curve = await get<QueueCurve>(`queues/${encodeURIComponent(this.name)}/throughput-latency`);
    } catch {
      return; // The header shows that the server is unreachable.
    }
    this.draw();
  }

  private draw(): void {
    const curve = this.curve;
    if (!curve) return;
    const some = curve.points.length > 0;
    show(this.chartBox, some);
    show(this.noPoints, !some);
    if (!some) return;
    this.chart ??= new CurveChart(this.chartBox);
    this.chart.update(curve, this.preview ? { rows: (this.preview.batching as Settings).max_batch_rows, forecast: this.preview.forecast } : null);
    const rows = curve.points.map(({ max_batch_rows, forecast }) =>
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
    const heads = ['rows per batch', 'capacity, rows/s', 'latency', 'utilization'].map((head) => h('th', { scope: 'col' }, head));
    return h('table', {}, h('thead', {}, h('tr', {}, ...heads)), this.pointsBody);
  }

  /** Sets the controls to the current settings. */
  private follow(): void {
    const { forecast } = this.queue!;
    const batching = this.queue!.batching as Settings;
    this.rows.set(batching.max_batch_rows);
    this.delay.set(parseDuration(batching.max_batch_delay) ?? 0);
    this.eager.checked = batching.eager_dispatch;
    text(this.forecast, forecast ? `Current forecast: ${describe(forecast)}.` : 'Move a slider to see a forecast; nothing changes until it is applied.');
  }

  private edited() {
    return difference(this.queue!.batching as Settings, { rows: this.rows.value, delay: this.delay.value, eager: this.eager.checked });
  }

  private moved(): void {
    if (!this.queue) return;
    this.touched = true;
    this.buttons();
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.ask(), DEBOUNCE_MS);
  }

  private async ask(): Promise<void> {
    const change = this.edited();
    if (isEmpty(change)) return this.back();
    const changed = await this.send(change, true);
    if (!changed) return;
    this.preview = changed;
    text(this.forecast, compare(changed, parseDuration(changed.batching.default_timeout ?? '')));
    this.draw();
  }

  private async change(): Promise<void> {
    const change = this.edited();
    if (isEmpty(change) || this.apply.disabled) return;
    clearTimeout(this.timer);
    this.applying = true;
    this.buttons();
    const changed = await this.send(change, false);
    this.applying = false;
    if (changed) {
      this.queue!.batching = changed.batching;
      this.back();
      text(this.forecast, `Applied. ${compare(changed, parseDuration(changed.batching.default_timeout ?? ''))}`);
      void this.refresh();
    }
    this.buttons();
  }

  /** Returns the response, or null if the request failed, which is shown, or was superseded. */
  private async send(change: ReturnType<typeof difference>, dryRun: boolean): Promise<SettingsChange | null> {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    try {
      const changed = await changeQueue(this.name, change, { dryRun, token: this.admin.token, signal: asking.signal });
      show(this.trouble, false);
      return asking.signal.aborted ? null : changed;
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
    this.preview = null;
    show(this.trouble, false);
    if (this.queue) this.follow();
    this.buttons();
    this.draw();
  }

  private buttons(): void {
    const changed = this.touched && this.queue !== null && !isEmpty(this.edited());
    this.apply.disabled = !changed || !this.admin.allowed || this.applying;
    this.reset.disabled = !this.touched || this.applying;
  }
}
