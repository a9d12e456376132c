// Any batch again: which rows it had, what they hold, and the batch as a file. Asks only when it is asked.

import { explain, get, reason } from './api.ts';
import type { Asked, BatchColumn, BatchPiece, Explanation, Job, Jobs, Session } from './api.ts';
import { attribute, byId, Figure, h, show, text } from './dom.ts';
import { jobOf, labelWords, queryOf, rowsOf, spelled, titles } from './explanation.ts';
import { number, plural } from './format.ts';

/** Row numbers of a row group. */
const LISTED_ROWS = 12;
const MOST_ROWS = 200;
const MOST_OTHERS = 8;
const FORMATS = [['parquet', 'Parquet'], ['json', 'JSON'], ['arrow', 'Arrow']] as const;
const COLUMNS = ['column', 'type', 'nulls', 'NaNs', 'min', 'max', 'mean'];
const PIECES = ['file', 'dataset', 'row group', 'rows', 'of the row group'];

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
    // Thousands of jobs may be remembered: they are asked for when somebody looks here.
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      void this.load();
    });
    seen.observe(this.form);
  }

  /** Explains the newest batch of a session. */
  async session(session: Session): Promise<void> {
    // Its job may be remembered only since the last look.
    await this.load();
    const job = jobOf(session, this.jobs);
    if (job) this.pick({ job: job.id, epoch: session.epoch ?? 0, step: session.step ?? 0, rank: session.rank });
    else if (this.trouble.hidden) this.complain(`${session.job} is not among the jobs that are remembered`);
  }

  private pick({ job, epoch, step, rank }: Asked): void {
    this.job.value = job;
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
      this.jobs = (await get<Jobs>('jobs')).jobs;
    } catch (error) {
      return this.complain(`The jobs are not known: ${reason(error)}`);
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
    const asked = {
      job: this.job.value,
      epoch: this.epoch.valueAsNumber,
      step: this.step.valueAsNumber,
      rank: this.rank.valueAsNumber,
    };
    show(this.trouble, false);
    text(this.status, 'Working: the batch is made again.');
    attribute(this.answer, 'aria-busy', 'true');
    try {
      const answer = await explain(queryOf(asked, { listed_rows: `${LISTED_ROWS}` }), asking.signal);
      if (!asking.signal.aborted) this.draw(answer);
    } catch (error) {
      if (asking.signal.aborted) return;
      this.complain(reason(error));
      text(this.status, '');
      show(this.answer, false);
    }
  }

  private complain(words: string): void {
    text(this.trouble, `${words}.`);
    show(this.trouble, true);
  }

  private draw(answer: Explanation): void {
    const asked = { ...answer, job: answer.id };
    const pathOf = (more?: Record<string, string>) => `/api/v1/${queryOf(asked, more)}`;
    const files = FORMATS.map(([format, name]) => h('a', { href: pathOf({ format }), download: true }, name));
    text(this.status, `${plural(answer.rows, 'row')} out of ${plural(answer.piece_count, 'row group')}.`);
    this.answer.replaceChildren(
      h('dl', { class: 'figures' }, ...figures(answer)),
      h('p', { class: 'choices' }, 'The batch again: ', ...files),
      ...this.others(asked, answer.job),
      ...table('Columns', COLUMNS, answer.columns.map(columnCells), answer.columns.length, pathOf()),
      ...table('Row groups', PIECES, answer.pieces.map(pieceCells), answer.piece_count, pathOf()),
    );
    attribute(this.answer, 'aria-busy', false);
    show(this.answer, true);
  }

  /** Jobs that have its name too, to be asked for the same batch. */
  private others(asked: Asked, name: string): HTMLElement[] {
    const others = this.jobs.filter(({ id, job }) => job === name && name !== '' && id !== asked.job);
    if (others.length === 0) return [];
    const buttons = others.slice(0, MOST_OTHERS).map(({ id }) => {
      const button = h('button', { type: 'button', class: 'link mono' }, id);
      button.addEventListener('click', () => this.pick({ ...asked, job: id }));
      return button;
    });
    const left = others.length - buttons.length;
    return [h('p', { class: 'choices' }, 'Other jobs of this name: ', ...buttons, left > 0 ? `and ${number(left)} more` : null)];
  }
}

function figures(answer: Explanation): HTMLElement[] {
  const { label, groups, hash } = answer;
  const all: [string, string | null][] = [
    ['job', answer.job || 'without a name'],
    ['dataset', answer.dataset],
    ['epoch', number(answer.epoch)],
    ['step', `${number(answer.step)} of ${number(answer.steps)}`],
    ['rank', `${number(answer.rank)} of ${number(answer.world_size)}`],
    ['rows', number(answer.rows)],
    ['padding', answer.padding > 0 ? plural(answer.padding, 'row') : null],
    ['groups', groups === null ? null : number(groups)],
    [answer.batch_rows > 0 ? 'pack' : groups === null ? 'position' : 'group', number(answer.position)],
    ['body', plural(answer.body_bytes, 'byte')],
    [`label ${label?.column}`, label && labelWords(label)],
    ['job id', answer.id],
    ['snapshot', answer.snapshot],
    ['XXH3-64', hash],
  ];
  return all.flatMap(([name, words]) => {
    if (words === null) return [];
    const figure = new Figure(name);
    figure.set(words);
    return [figure.root];
  });
}

const columnCells = ({ name, type, nulls, nans, min, max, mean }: BatchColumn): string[] => [
  name, type, number(nulls), number(nans), spelled(min), spelled(max), spelled(mean),
];

const pieceCells = (piece: BatchPiece): string[] => [
  piece.file, piece.dataset, number(piece.row_group), number(piece.row_count), rowsOf(piece),
];

/** The first of `count` rows below their heads; the others are at `whole`. */
function table(title: string, heads: readonly string[], rows: readonly string[][], count: number, whole: string): HTMLElement[] {
  const shown = rows.slice(0, MOST_ROWS);
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
    ...(left > 0 ? [h('p', { class: 'muted' }, `and ${number(left)} more: `, h('a', { href: whole }, 'the whole answer'))] : []),
  ];
}
