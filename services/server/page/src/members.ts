// Members: the servers of the cluster, as this server sees them, and addresses at which no member answers.

import type { MemberInfo, MemberList, OtherAddress } from './schema.ts';
import { attribute, byId, h, keyed, show, text } from './dom.ts';
import { duration, number, UNKNOWN } from './format.ts';
import { icon } from './icons.ts';

/** Maximum number of rows: first those that need attention. */
const SHOWN = 100;

/** A row of the table: a member, or an address at which none answers. */
export interface Entry {
  name: string;
  state: string;
  severity: 'ok' | 'busy' | 'error';
  trouble: string;
  values: readonly string[];
}

function memberEntry(member: MemberInfo): Entry {
  const state = `${member.state}${member.this_server ? ', this server' : ''}${member.listed ? '' : ', not listed'}`;
  const severity = member.state === 'silent' ? 'error' : member.state === 'draining' || !member.listed ? 'busy' : 'ok';
  const heard = member.heard_seconds_ago === null ? UNKNOWN : `${duration(member.heard_seconds_ago)} ago`;
  const addresses = member.addresses.join(', ') || UNKNOWN;
  return { name: member.name, state, severity, trouble: '', values: [member.zone ?? UNKNOWN, member.version, addresses, heard] };
}

function otherEntry(other: OtherAddress): Entry {
  const state = other.refused ? 'refused' : other.reason === null ? 'not greeted yet' : 'no answer';
  const severity = other.refused || other.reason !== null ? 'error' : 'busy';
  return { name: other.address, state, severity, trouble: other.reason ?? '', values: [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN] };
}

/** The rows of the table: those that need attention first, then by name. */
export function entries({ members, others }: MemberList): Entry[] {
  const rank = { error: 0, busy: 1, ok: 2 };
  const all = [...members.map(memberEntry), ...others.map(otherEntry)];
  all.sort((one, other) => rank[one.severity] - rank[other.severity] || (one.name < other.name ? -1 : 1));
  return all.slice(0, SHOWN);
}

/** Number of members by state, such as `3 servers: 2 ready, 1 silent`. */
export function summary({ members }: MemberList): string {
  const states = ['ready', 'draining', 'silent'] as const;
  const counts = states.map((state) => [state, members.filter((member) => member.state === state).length] as const);
  const parts = counts.filter(([, count]) => count > 0).map(([state, count]) => `${number(count)} ${state}`);
  return `${number(members.length)} ${members.length === 1 ? 'server' : 'servers'}: ${parts.join(', ')}`;
}

/** Trouble with the list of members; empty without trouble. */
export function trouble({ held, list_error }: MemberList): string {
  const parts: string[] = [];
  if (list_error !== null) parts.push(`The list of members can't be read, and the last one holds: ${list_error}`);
  if (held !== null) {
    const left = duration(held.adopted_in_seconds);
    parts.push(`The list lacks ${number(held.lost)} of ${number(held.of)} addresses. They are kept for another ${left}.`);
  }
  return parts.join(' ');
}

class Row {
  readonly root: HTMLElement;
  private readonly name = h('strong');
  private readonly state = h('span', { class: 'phase' });
  private readonly trouble = h('p', { class: 'trouble' });
  private readonly cells: HTMLElement[];
  private shown = '';

  constructor(labels: readonly string[]) {
    this.cells = labels.map((label) => h('td', { 'data-label': label, role: 'cell' }));
    this.root = h(
      'tr',
      { role: 'row' },
      h('th', { scope: 'row', role: 'rowheader' }, this.name, this.trouble),
      h('td', { 'data-label': 'state', role: 'cell' }, this.state),
      ...this.cells,
    );
  }

  set(entry: Entry): void {
    attribute(this.root, 'data-testid', `member-${entry.name}`);
    text(this.name, entry.name);
    text(this.trouble, entry.trouble);
    show(this.trouble, entry.trouble !== '');
    if (this.shown !== `${entry.severity} ${entry.state}`) {
      this.shown = `${entry.severity} ${entry.state}`;
      this.state.replaceChildren(icon(entry.severity), ` ${entry.state}`);
    }
    entry.values.forEach((value, index) => text(this.cells[index]!, value));
  }
}

export class MembersView {
  private readonly section = byId('members');
  private readonly note = byId('members-note');
  private readonly trouble = byId('members-trouble');
  private readonly body = byId('members-body');
  private readonly rows = new Map<string, Row>();
  private readonly labels = ['zone', 'version', 'answered at', 'last answer'];

  /** `list` is null for readers who may not see members, and on a server without members. */
  update(list: MemberList | null): void {
    show(this.section, list !== null);
    if (list === null) return;
    const problem = trouble(list);
    text(this.note, `${summary(list)}, from ${list.sources}`);
    text(this.trouble, problem);
    show(this.trouble, problem !== '');
    keyed(this.body, this.rows, entries(list), (entry) => entry.name, () => new Row(this.labels), (row, entry) => row.set(entry));
  }
}
