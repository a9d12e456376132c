// Callers: who holds how much of the resources that callers share.

import type { CallerInfo, CallerUsage } from './schema.ts';
import { attribute, byId, h, keyed, show, text } from './dom.ts';
import { bytes, number, percent } from './format.ts';

/** Maximum number of callers in the table: those that hold the most. */
const SHOWN = 50;

class Row {
  readonly root: HTMLElement;
  private readonly name = h('strong');
  private readonly cells: HTMLElement[];

  constructor(labels: readonly string[]) {
    this.cells = labels.map((label) => h('td', { 'data-label': label, role: 'cell' }));
    this.root = h('tr', { role: 'row' }, h('th', { scope: 'row', role: 'rowheader' }, this.name), ...this.cells);
  }

  set(caller: CallerInfo): void {
    const name = nameOf(caller);
    attribute(this.root, 'data-testid', `caller-${name}`);
    text(this.name, name);
    const values = [
      number(caller.streams),
      number(caller.exchanges),
      number(caller.workers),
      number(caller.calls),
      bytes(caller.unsent_bytes),
    ];
    values.forEach((value, index) => text(this.cells[index]!, value));
  }
}

export function nameOf(caller: CallerInfo): string {
  return caller.token ?? caller.address ?? 'Unix socket';
}

/** The callers that hold the greatest part of any resource, greatest first. */
export function greatest({ callers, resources }: CallerUsage): CallerInfo[] {
  const limits = new Map(resources.map(({ resource, limit }) => [resource, Math.max(1, limit)]));
  const part = (caller: CallerInfo) =>
    Math.max(
      ...(['streams', 'exchanges', 'workers', 'calls', 'subscribers', 'incoming_bytes', 'unsent_bytes'] as const).map(
        (resource) => caller[resource] / (limits.get(resource) ?? Number.POSITIVE_INFINITY),
      ),
    );
  return [...callers].sort((one, other) => part(other) - part(one)).slice(0, SHOWN);
}

/** The most used resource, such as `streams: 14 of 16 (88%)`. */
export function mostUsed({ resources }: CallerUsage): string {
  const [most] = [...resources].sort((one, other) => other.used / other.limit - one.used / one.limit);
  if (!most || most.used === 0) return '';
  const isBytes = most.resource.endsWith('_bytes');
  const amount = (value: number) => (isBytes ? bytes(value) : number(value));
  const name = most.resource.replace('_bytes', '');
  return `most used: ${name}, ${amount(most.used)} of ${amount(most.limit)} (${percent(most.used / most.limit)})`;
}

export class CallersView {
  private readonly section = byId('callers');
  private readonly note = byId('callers-note');
  private readonly body = byId('callers-body');
  private readonly empty = byId('callers-empty');
  private readonly table = byId('callers-table');
  private readonly rows = new Map<string, Row>();
  private readonly labels = ['streams', 'exchanges', 'workers', 'calls', 'unsent'];

  /** `usage` is null for readers who may not see callers. */
  update(usage: CallerUsage | null): void {
    show(this.section, usage !== null);
    if (usage === null) return;
    const callers = greatest(usage);
    show(this.empty, callers.length === 0);
    show(this.table, callers.length > 0);
    text(this.note, mostUsed(usage));
    keyed(this.body, this.rows, callers, nameOf, () => new Row(this.labels), (row, caller) => row.set(caller));
  }
}
