// Datasets: their state, current snapshot and errors.

import type { Dataset } from './schema.ts';
import { attribute, byId, h, keyed, show, text } from './dom.ts';
import { bytes, duration, number, percent, short, UNKNOWN } from './format.ts';
import { icon } from './icons.ts';

class Row {
  readonly root: HTMLElement;
  private readonly name = h('strong');
  private readonly url = h('span', { class: 'muted url' });
  private readonly phase = h('span', { class: 'phase' });
  private readonly error = h('p', { class: 'trouble' });
  private readonly cells: HTMLElement[];
  private shown = '';

  constructor(labels: readonly string[]) {
    this.cells = labels.map((label) => h('td', { 'data-label': label, role: 'cell' }));
    this.root = h(
      'tr',
      { role: 'row' },
      h('th', { scope: 'row', role: 'rowheader' }, this.name, ' ', this.url, this.error),
      h('td', { 'data-label': 'state', role: 'cell' }, this.phase),
      ...this.cells,
    );
  }

  set(dataset: Dataset): void {
    attribute(this.root, 'data-testid', `dataset-${dataset.name}`);
    text(this.name, dataset.name);
    text(this.url, dataset.url);
    const error = dataset.error ?? lookupError(dataset);
    const severity = error !== null || dataset.silent_seconds !== null ? 'error' : dataset.phase === 'opening' ? 'busy' : 'ok';
    const state = phaseText(dataset);
    if (this.shown !== `${severity} ${state}`) {
      this.shown = `${severity} ${state}`;
      this.phase.replaceChildren(icon(severity), ` ${state}`);
    }
    text(this.error, error ?? '');
    show(this.error, error !== null);
    const values = [
      dataset.snapshot ?? UNKNOWN,
      duration(dataset.snapshot_age_seconds),
      number(dataset.files),
      number(dataset.blocks),
      short(dataset.rows),
      bytes(dataset.decoded_bytes),
    ];
    values.forEach((value, index) => text(this.cells[index]!, value));
    attribute(this.cells[0]!, 'title', dataset.snapshot);
  }
}

/** True if lookups answer from an old snapshot because the current one cannot be loaded for them. */
function isOutdated({ online, snapshot }: Pick<Dataset, 'online' | 'snapshot'>): boolean {
  return online !== null && online.error !== null && online.snapshot !== null && online.snapshot !== snapshot && !online.pinned;
}

/** Reason why lookups are not ready, or do not follow the dataset; null if they do. */
export function lookupError(dataset: Pick<Dataset, 'online' | 'snapshot'>): string | null {
  const error = dataset.online?.error ?? null;
  return error !== null && isOutdated(dataset) ? `lookups answer from the old snapshot, because ${error}` : error;
}

export function phaseText(dataset: Pick<Dataset, 'phase' | 'files' | 'files_done' | 'online' | 'silent_seconds' | 'snapshot'>): string {
  const silent = dataset.silent_seconds === null ? '' : `, no answer from the store for ${duration(dataset.silent_seconds)}`;
  return `${lifecycleText(dataset)}${silent}`;
}

function lifecycleText(dataset: Pick<Dataset, 'phase' | 'files' | 'files_done' | 'online' | 'snapshot'>): string {
  if (dataset.phase === 'failed') return 'failed';
  if (dataset.phase === 'open') return `open${lookupText(dataset)}`;
  return `opening ${number(dataset.files_done)} of ${number(dataset.files)} files`;
}

function lookupText(dataset: Pick<Dataset, 'online' | 'snapshot'>): string {
  const { online } = dataset;
  if (online === null) return '';
  const pinned = online.pinned ? ` from pinned snapshot ${online.snapshot?.slice(0, 8)}` : '';
  const old = isOutdated(dataset) ? `, lookups outdated, from snapshot ${online.snapshot?.slice(0, 8)}` : null;
  const state = old ?? (online.snapshot === null ? ', lookups not ready' : `, lookups ready${pinned}`);
  if (online.rows_indexed === null) return state;
  return `${state}, indexing the next snapshot: ${percent(online.rows_indexed / Math.max(1, online.rows_to_index ?? 0))}`;
}

export class DatasetsView {
  private readonly body = byId('datasets-body');
  private readonly empty = byId('datasets-empty');
  private readonly table = byId('datasets-table');
  private readonly rows = new Map<string, Row>();
  private readonly labels = ['snapshot', 'last checked', 'files', 'blocks', 'rows', 'decoded'];

  update(datasets: Dataset[]): void {
    show(this.empty, datasets.length === 0);
    show(this.table, datasets.length > 0);
    keyed(this.body, this.rows, datasets, (dataset) => dataset.name, () => new Row(this.labels), (row, dataset) => row.set(dataset));
  }
}
