// Reconstruction of a past batch: its rows, their statistics, and the batch as a file. Sends requests only on demand.

import { explain, get, reason } from './api.ts';
import type { BatchId } from './api.ts';
import type { BatchColumn, BatchRowRange, Explanation, Job, JobList, Session } from './schema.ts';
import { attribute, byId, Figure, h, show, text } from './dom.ts';
import { formatValue, jobOf, labelText, queryOf, rowsOf, titles } from './explanation.ts';
import { number, plural } from './format.ts';

/** Row numbers listed per row group. */
const MAX_LISTED_ROWS = 12;
const MAX_ROWS = 200;
const MAX_OTHERS = 8;
const FORMATS = [['parquet', 'Parquet'], ['json', 'JSON'], ['arrow', 'Arrow']] as const;
const COLUMNS = ['column', 'type', 'nulls', 'NaNs', 'min', 'max', 'mean'];
const ROW_RANGES = ['file', 'dataset', 'row group', 'rows', 'row numbers in the row group'];

export class ExplainView {
  private readonly form = byId<HTMLFormElement>('explain-form');
  private readonly job = byId<HTMLSelectElement>('explain-job');
  private readonly epoch = byId<HTMLInputElement>('explain-epoch');
  private readonly step = byId<HTMLInputElement>('explain-step');
  private readonly rank = byId<HTMLInputElement>('explain-rank');
  private readonly empty = byId('explain-empty');
  private readonly status = byId('explain-status');
  private readonly trouble = byId('explain-error');
  private readonly answer = byId('explain-answer');
  private jobs: Job[] = [];
  private loading: Promise<void> | null = null;
  private asking: AbortController | null = null;

  constructor() {
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      void this.ask();
    });
    this.job.addEventListener('change', () => this.bound());
    byId('explain-reload').addEventListener('click', () => void this.load());
    // There may be thousands of jobs: load them when this section becomes visible.
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      void this.load();
    });
    seen.observe(this.form);
  }

  /** Explains the newest batch of a session. */
  async session(session: Session): Promise<void> {
    // The job may have been recorded after the last load.
    await this.load();
    const job = jobOf(session, this.jobs);
    if (job) this.pick({ job_name: job.id, epoch: session.epoch ?? 0, step: session.step ?? 0, rank: session.rank });
    else if (this.trouble.hidden) this.complain(`job '${session.job_name}' is not recorded`);
  }

  private pick({ job_name, epoch, step, rank }: BatchId): void {
    this.job.value = job_name;
    this.bound();
    this.epoch.value = `${epoch}`;
    this.step.value = `${step}`;
    this.rank.value = `${rank}`;
    this.step.focus();
    this.form.requestSubmit();
  }

  private bound(): void {
    const chosen = this.jobs.find(({ id }) => id === this.job.value);
    attribute(this.rank, 'max', chosen ? chosen.world_size - 1 : null);
  }

  private load(): Promise<void> {
    this.loading ??= this.list().finally(() => (this.loading = null));
    return this.loading;
  }

  private async list(): Promise<void> {
    try {
      this.jobs = (await get<JobList>('jobs')).jobs;
    } catch (error) {
      return this.complain(`Jobs cannot be loaded: ${reason(error)}`);
    }
    show(this.trouble, false);
    show(this.empty, this.jobs.length === 0);
    show(this.form, this.jobs.length > 0);
    const chosen = this.job.value;
    const names = titles(this.jobs);
    this.job.replaceChildren(...this.jobs.map(({ id }, index) => h('option', { value: id }, names[index]!)));
    if (this.jobs.some(({ id }) => id === chosen)) this.job.value = chosen;
    this.bound();
  }

  private async ask(): Promise<void> {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const batch = {
      job_name: this.job.value,
      epoch: this.epoch.valueAsNumber,
      step: this.step.valueAsNumber,
      rank: this.rank.valueAsNumber,
    };
    show(this.trouble, false);
    text(this.status, 'Reconstructing the batch …');
    attribute(this.answer, 'aria-busy', 'true');
    try {
      const answer = await explain(queryOf(batch, { max_listed_rows: `${MAX_LISTED_ROWS}` }), asking.signal);
      if (!asking.signal.aborted) this.draw(answer);
    } catch (error) {
      if (asking.signal.aborted) return;
      this.complain(reason(error));
      text(this.status, '');
      show(this.answer, false);
    }
  }

  private complain(message: string): void {
    text(this.trouble, `${message}.`);
    show(this.trouble, true);
  }

  private draw(answer: Explanation): void {
    const batch = { ...answer, job_name: answer.id };
    const pathOf = (more?: Record<string, string>) => `/api/v1/${queryOf(batch, more)}`;
    const files = FORMATS.map(([format, name]) => h('a', { href: pathOf({ format }), download: true }, name));
    text(this.status, `${plural(answer.rows, 'row')} from ${plural(answer.row_range_count, 'row group')}.`);
    this.answer.replaceChildren(
      h('dl', { class: 'figures' }, ...figures(answer)),
      h('p', { class: 'choices' }, 'Download the batch: ', ...files),
      ...this.others(batch, answer.job_name),
      ...table('Columns', COLUMNS, answer.columns.map(columnCells), answer.columns.length, pathOf()),
      ...table('Row groups', ROW_RANGES, answer.row_ranges.map(rowRangeCells), answer.row_range_count, pathOf()),
    );
    attribute(this.answer, 'aria-busy', false);
    show(this.answer, true);
  }

  /** Other jobs of the same name, with links to the same batch. */
  private others(batch: BatchId, name: string): HTMLElement[] {
    const others = this.jobs.filter(({ id, job_name }) => job_name === name && name !== '' && id !== batch.job_name);
    if (others.length === 0) return [];
    const buttons = others.slice(0, MAX_OTHERS).map(({ id }) => {
      const button = h('button', { type: 'button', class: 'link mono' }, id);
      button.addEventListener('click', () => this.pick({ ...batch, job_name: id }));
      return button;
    });
    const left = others.length - buttons.length;
    return [h('p', { class: 'choices' }, 'Other jobs with this name: ', ...buttons, left > 0 ? `and ${number(left)} more` : null)];
  }
}

function figures(answer: Explanation): HTMLElement[] {
  const { label, groups, content_hash } = answer;
  const all: [string, string | null][] = [
    ['job', answer.job_name || 'unnamed'],
    ['dataset', answer.dataset],
    ['filter', answer.filter || null],
    ['epoch', number(answer.epoch)],
    ['step', `${number(answer.step)} of ${number(answer.steps)}`],
    ['rank', `${number(answer.rank)} of ${number(answer.world_size)}`],
    ['partitions', answer.partitions === null ? null : number(answer.partitions)],
    ['blocks per rank', answer.rank_blocks === null ? null : formatValue(answer.rank_blocks)],
    ['rows', number(answer.rows)],
    ['padding', answer.padding > 0 ? plural(answer.padding, 'row') : null],
    ['groups', groups === null ? null : number(groups)],
    [(answer.max_pack_rows ?? 0) > 0 ? 'first pack' : groups === null ? 'position' : 'first group', number(answer.position)],
    ['body', plural(answer.body_bytes, 'byte')],
    [`label ${label?.column}`, label && labelText(label)],
    ['job id', answer.id],
    ['snapshot', answer.snapshot],
    ['XXH3-64', content_hash],
  ];
  return all.flatMap(([name, value]) => {
    if (value === null) return [];
    const figure = new Figure(name);
    figure.set(value);
    return [figure.root];
  });
}

const columnCells = ({ name, type, nulls, nans, min, max, mean }: BatchColumn): string[] => [
  name, type, number(nulls), number(nans), formatValue(min), formatValue(max), formatValue(mean),
];

const rowRangeCells = (range: BatchRowRange): string[] => [
  range.file, range.dataset, number(range.row_group), number(range.row_count), rowsOf(range),
];

/** A table of the first of `count` rows, with a link to the complete response at `whole`. */
function table(title: string, heads: readonly string[], rows: readonly string[][], count: number, whole: string): HTMLElement[] {
  const shown = rows.slice(0, MAX_ROWS);
  const head = heads.map((name) => h('th', { scope: 'col', role: 'columnheader' }, name));
  const body = shown.map(([name = '', ...rest]) => {
    const cells = rest.map((cell, index) => h('td', { role: 'cell', 'data-label': heads[index + 1]! }, cell));
    return h('tr', { role: 'row' }, h('th', { scope: 'row', role: 'rowheader' }, name), ...cells);
  });
  const left = count - shown.length;
  return [
    h('h3', {}, title),
    h(
      'div',
      { class: 'scroll tall', role: 'region', tabindex: 0, 'aria-label': `${title} of the batch` },
      h('table', { class: 'cards', role: 'table' }, h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, ...head)), h('tbody', { role: 'rowgroup' }, ...body)),
    ),
    ...(left > 0 ? [h('p', { class: 'muted' }, `and ${number(left)} more: `, h('a', { href: whole }, 'complete response'))] : []),
  ];
}
