// The table of sessions, one page of rows at a time.

import type { Session } from './schema.ts';
import { Bar } from './bar.ts';
import { attribute, byId, h, keyed, property, show, text } from './dom.ts';
import { bytesPerSecond, duration, number, percent, rowsPerSecond, UNKNOWN } from './format.ts';
import { icon } from './icons.ts';
import { loadingText } from './loading.ts';
import { arrange, pageOf } from './order.ts';
import type { Key, View } from './order.ts';
import { labelOf } from './buckets.ts';
import { levelOf } from './verdict.ts';

const ROWS = 50;
const ROWS_NARROW = 10;
const narrow = matchMedia('(max-width: 760px)');

const HEADS: [Key, string][] = [
  ['job', 'job'],
  ['dataset', 'dataset'],
  ['rank', 'rank'],
  ['progress', 'progress'],
  ['eta', 'time left'],
  ['rate', 'rate'],
  ['wait', 'waiting'],
  ['bottleneck', 'bottleneck'],
  ['label', 'label'],
];

/** Actions of a row. */
export interface Actions {
  stalls(session: Session): void;
  explain(session: Session): void;
}

export class SessionsView {
  private readonly body = byId('sessions-body');
  private readonly head = byId('sessions-head');
  private readonly filter = byId<HTMLInputElement>('sessions-filter');
  private readonly count = byId('sessions-count');
  private readonly where = byId('sessions-page');
  private readonly previous = byId<HTMLButtonElement>('sessions-previous');
  private readonly next = byId<HTMLButtonElement>('sessions-next');
  private readonly table = byId('sessions-table');
  private readonly empty = byId('sessions-empty');
  private readonly tools = byId('sessions-tools');
  private readonly rows = new Map<string, Row>();
  private readonly view: View = { key: 'started', ascending: true, filter: '', page: 0 };
  private readonly actions: Actions;
  private all: Session[] = [];
  private total = 0;

  constructor(actions: Actions) {
    this.actions = actions;
    for (const [key, label] of HEADS) {
      const button = h('button', { type: 'button', 'data-sort': key }, label);
      button.addEventListener('click', () => this.sort(key));
      this.head.append(h('th', { scope: 'col', role: 'columnheader', 'data-key': key, 'aria-sort': 'none' }, button));
    }
    this.filter.addEventListener('input', () => {
      this.view.filter = this.filter.value;
      this.view.page = 0;
      this.draw();
    });
    this.previous.addEventListener('click', () => this.turn(-1));
    this.next.addEventListener('click', () => this.turn(1));
    narrow.addEventListener('change', () => this.draw());
  }

  update(all: Session[], total: number): void {
    this.all = all;
    this.total = total;
    this.draw();
  }

  /** Sorts by a column; the second click reverses the order, the third restores the default, oldest first. */
  private sort(key: Key): void {
    if (this.view.key !== key) Object.assign(this.view, { key, ascending: key !== 'wait' && key !== 'label' });
    else if (this.view.ascending === (key !== 'wait' && key !== 'label')) this.view.ascending = !this.view.ascending;
    else Object.assign(this.view, { key: 'started', ascending: true });
    this.view.page = 0;
    this.draw();
  }

  private turn(by: number): void {
    this.view.page += by;
    this.draw();
  }

  private draw(): void {
    const arranged = arrange(this.all, this.view);
    const shown = pageOf(arranged, this.view.page, narrow.matches ? ROWS_NARROW : ROWS);
    this.view.page = shown.page;
    const some = this.total > 0;
    show(this.empty, !some);
    show(this.table, some);
    show(this.tools, some);
    const known = this.view.filter ? `${number(arranged.length)} of ${number(this.total)}` : number(this.total);
    text(this.count, `${known} running`);
    const last = shown.from + shown.items.length;
    text(this.where, arranged.length ? `${number(shown.from + 1)} to ${number(last)} of ${number(arranged.length)}` : 'no matches');
    this.previous.disabled = shown.page === 0;
    this.next.disabled = shown.page >= shown.pages - 1;
    for (const head of this.head.children) {
      const mine = (head as HTMLElement).dataset['key'] === this.view.key;
      attribute(head, 'aria-sort', !mine ? 'none' : this.view.ascending ? 'ascending' : 'descending');
    }
    keyed(this.body, this.rows, shown.items, (session) => session.id, () => new Row(this.actions), (row, session) => row.set(session));
  }
}

class Row {
  readonly root: HTMLElement;
  private session: Session | null = null;
  private readonly job = h('button', { type: 'button', class: 'link', title: 'Show the time of this session' });
  private readonly id = h('span', { class: 'muted mono' });
  private readonly dataset = h('td');
  private readonly rank = h('span');
  private readonly lanes = h('span', { class: 'muted second' });
  private readonly fill = h('span', { class: 'meter-fill' });
  private readonly done = h('span', { class: 'meter', role: 'img' }, this.fill);
  private readonly progress = h('span', { class: 'muted' });
  private readonly explain = h('button', { type: 'button', class: 'link' }, 'Explain');
  private readonly eta = h('td');
  private readonly rate = h('span');
  private readonly bytes = h('span', { class: 'muted second' });
  private readonly wait = h('span', { class: 'number' });
  private readonly bar = new Bar();
  private readonly gpu = h('span', { class: 'muted second' });
  private readonly bottleneck = h('span');
  private readonly level = h('span', { class: 'muted second' });
  private readonly bottleneckCell = h('td', {}, this.bottleneck, ' ', this.level);
  private readonly label = h('td');
  private labelShown = '';

  constructor(actions: Actions) {
    this.job.addEventListener('click', () => this.session && actions.stalls(this.session));
    this.explain.addEventListener('click', () => this.session && actions.explain(this.session));
    const cells: [string, HTMLElement][] = [
      ['dataset', this.dataset],
      ['rank', h('td', {}, this.rank, ' ', this.lanes)],
      ['progress', h('td', { class: 'wide' }, this.done, h('span', { class: 'second asks' }, this.progress, this.explain))],
      ['time left', this.eta],
      ['rate', h('td', {}, this.rate, ' ', this.bytes)],
      ['waiting', h('td', { class: 'wide' }, h('span', { class: 'waits' }, this.wait, this.bar.root), this.gpu)],
      ['bottleneck', this.bottleneckCell],
      ['label', this.label],
    ];
    for (const [name, cell] of cells) {
      cell.dataset['label'] = name;
      attribute(cell, 'role', 'cell');
    }
    this.root = h('tr', { role: 'row' }, h('th', { scope: 'row', role: 'rowheader' }, this.job, ' ', this.id), ...cells.map(([, cell]) => cell));
  }

  set(session: Session): void {
    this.session = session;
    attribute(this.root, 'data-testid', `session-${session.id}`);
    attribute(this.root, 'id', `session-${session.id}`);
    text(this.job, session.job_name || session.id);
    text(this.id, session.job_name ? session.id : '');
    text(this.dataset, session.dataset);
    attribute(this.dataset, 'title', `snapshot ${session.snapshot}`);
    text(this.rank, `${session.rank} of ${session.world_size}`);
    text(this.lanes, session.lanes > 1 ? `${session.lanes} lanes` : '');
    property(this.fill, 'width', `${(Math.min(1, session.progress) * 100).toFixed(1)}%`);
    attribute(this.done, 'aria-label', percent(session.progress));
    text(this.progress, loadingText(session) || progressText(session));
    show(this.explain, session.job_name !== '');
    attribute(this.explain, 'aria-label', `Explain the newest batch of ${session.job_name}, rank ${session.rank}`);
    text(this.eta, duration(session.eta_seconds));
    text(this.rate, rowsPerSecond(session.rows_per_second));
    text(this.bytes, bytesPerSecond(session.bytes_per_second));
    text(this.wait, percent(session.verdict.wait_fraction));
    this.bar.set(session.seconds);
    const busy = session.client?.gpu_utilization;
    text(this.gpu, typeof busy === 'number' ? `GPU ${percent(busy)} busy` : '');
    const level = levelOf(session.verdict);
    text(this.bottleneck, labelOf(session.verdict.bottleneck));
    text(this.level, level.word);
    attribute(this.bottleneckCell, 'data-level', level.key);
    attribute(this.bottleneckCell, 'title', session.verdict.summary);
    this.showLabel(session);
  }

  private showLabel({ label }: Session): void {
    const known = label && label.mean !== null ? number(label.mean) : UNKNOWN;
    const shown = !label ? UNKNOWN : label.skewed ? `skewed, mean ${known}` : `mean ${known}`;
    if (shown === this.labelShown) return;
    this.labelShown = shown;
    const mark = label?.skewed ? icon('warning') : null;
    this.label.replaceChildren(...(mark ? [mark, ` ${shown}`] : [shown]));
    const ratio = `batch means have ${number(label?.std_ratio)} times the standard deviation of shuffled rows`;
    attribute(this.label, 'title', label ? `${label.column}: mean of the dataset ${number(label.dataset_mean)}; ${ratio}` : null);
    attribute(this.label, 'data-skewed', label?.skewed ?? false);
  }
}

function progressText({ progress, epoch, step }: Session): string {
  return `${percent(progress)}, epoch ${number(epoch)}, step ${number(step)}`;
}
