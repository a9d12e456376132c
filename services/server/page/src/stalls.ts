// Time per bucket: of all sessions, of a job, or of one session.

import { get, reason } from './api.ts';
import type { Session, Stalls } from './schema.ts';
import { Bar } from './bar.ts';
import { ABOUT, BUCKETS } from './buckets.ts';
import { attribute, byId, h, keyed, show, text } from './dom.ts';
import { clock, duration, percent, plural } from './format.ts';
import { fractions, hasGap, intervals, merge, recent, SPAN_SECONDS } from './series.ts';
import type { Interval } from './series.ts';
import { StallChart } from './stall-chart.ts';

/** Number of intervals in the table; the chart has more. */
const TABLE_ROWS = 60;
const RECENT_SECONDS = 10;
/** Largest number of bars of jobs or ranks. */
const MAX_BARS = 16;
/** Largest number of sessions in the selection. */
const MAX_CHOICES = 300;

type Scope = { kind: 'all' } | { kind: 'job' | 'session'; name: string };

const valueOf = (scope: Scope): string => (scope.kind === 'all' ? 'all' : `${scope.kind}:${scope.name}`);

function queryOf(scope: Scope): string {
  return scope.kind === 'all' ? '' : `&${scope.kind === 'job' ? 'job_name' : 'session'}=${encodeURIComponent(scope.name)}`;
}

export function rankName(session: Session): string {
  return `${session.job_name || session.id} · rank ${session.rank} of ${session.world_size}`;
}

export class StallsView {
  private readonly select = byId<HTMLSelectElement>('stall-scope');
  private readonly toggle = byId<HTMLButtonElement>('stall-table-toggle');
  private readonly tableBox = byId('stall-table-box');
  private readonly body = byId('stall-table-body');
  private readonly trouble = byId('stall-error');
  private readonly summary = byId('stall-summary');
  private readonly chart: StallChart;
  private readonly values = new Map<string, HTMLElement>();
  private readonly rows = new Map<string, { root: HTMLElement }>();
  private readonly bars = new Map<string, GroupBar>();
  private scope: Scope = { kind: 'all' };
  private known: Interval[] = [];
  private pointed: number | null = null;
  private choices = '';
  private asking: AbortController | null = null;
  private sessions: Session[] = [];

  constructor() {
    this.legend();
    this.chart = new StallChart(byId('stall-chart'), (index) => {
      this.pointed = index;
      this.showValues();
    });
    this.select.addEventListener('change', () => this.chose(this.select.value));
    this.toggle.addEventListener('click', () => {
      const open = this.tableBox.hidden !== false;
      show(this.tableBox, open);
      attribute(this.toggle, 'aria-expanded', String(open));
      text(this.toggle, open ? 'Hide table' : 'Show as table');
      if (open) this.table();
    });
  }

  /** Takes the latest intervals of all sessions, once per second. */
  update(stalls: Stalls): void {
    const fresh = intervals(stalls);
    if (this.scope.kind === 'all') {
      if (this.known.length === 0 || hasGap(this.known, fresh, stalls.interval_seconds)) void this.load(SPAN_SECONDS);
      else this.take(fresh);
      return;
    }
    void this.load(this.known.length < 2 * RECENT_SECONDS ? SPAN_SECONDS : RECENT_SECONDS);
  }

  /** Takes all sessions. */
  updateSessions(sessions: Session[]): void {
    this.sessions = sessions;
    this.choose(sessions);
    this.groups();
  }

  showSession(session: Session): void {
    this.chose(`session:${session.id}`);
    this.choose(this.sessions);
  }

  private chose(value: string): void {
    const [kind, ...rest] = value.split(':');
    const name = rest.join(':');
    this.scope = kind === 'job' || kind === 'session' ? { kind, name } : { kind: 'all' };
    this.known = [];
    this.select.value = value;
    this.asking?.abort();
    this.asking = null;
    this.draw();
    this.groups();
    void this.load(SPAN_SECONDS);
  }

  private async load(seconds: number): Promise<void> {
    if (this.asking) return;
    const asking = (this.asking = new AbortController());
    try {
      const stalls = await get<Stalls>(`stalls?seconds=${seconds}${queryOf(this.scope)}`, asking.signal);
      if (asking.signal.aborted) return;
      show(this.trouble, false);
      const fresh = intervals(stalls);
      // After a gap, the next request is for the whole span.
      if (hasGap(this.known, fresh, stalls.interval_seconds)) this.known = [];
      this.take(fresh);
    } catch (error) {
      if (asking.signal.aborted) return;
      text(this.trouble, `Cannot load the time of ${this.scope.kind === 'all' ? 'all sessions' : this.scope.name}: ${reason(error)}.`);
      show(this.trouble, true);
    } finally {
      if (this.asking === asking) this.asking = null;
    }
  }

  private take(fresh: Interval[]): void {
    this.known = merge(this.known, fresh);
    this.draw();
  }

  private draw(): void {
    this.chart.update(this.known);
    this.showValues();
    if (!this.tableBox.hidden) this.table();
  }

  private legend(): void {
    const items = BUCKETS.map((bucket) => {
      const value = h('span', { class: 'legend-value' });
      this.values.set(bucket, value);
      const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
      swatch.style.backgroundImage = `var(--tile-${bucket})`;
      return h('li', { title: ABOUT[bucket].description }, swatch, h('span', {}, ABOUT[bucket].label), value);
    });
    // Listed from the top of the stack to the bottom.
    byId('stall-legend').append(...items.reverse());
  }

  private showValues(): void {
    const interval = (this.pointed === null ? null : this.known[this.pointed]) ?? recent(this.known, RECENT_SECONDS);
    const shown = interval ? fractions(interval) : null;
    for (const bucket of BUCKETS) text(this.values.get(bucket)!, percent(shown ? shown[bucket] : null));
    const when = this.pointed !== null && interval ? `at ${clock(interval.time)}` : `last ${RECENT_SECONDS} s`;
    text(this.summary, interval && interval.wall > 0 ? when : `${when}: no session was running`);
  }

  private table(): void {
    const newest = this.known.slice(-TABLE_ROWS).reverse();
    const key = (interval: Interval) => String(Math.round(interval.time * 1000));
    keyed(this.body, this.rows, newest, key, () => ({ root: h('tr') }), ({ root }, interval) => {
      const cells = [interval.wall, ...BUCKETS.map((bucket) => interval.seconds[bucket])];
      const shown = [clock(interval.time), ...cells.map((value) => value.toFixed(3)), percent(interval.computeFraction)];
      attribute(root, 'data-time', interval.time);
      if (root.children.length === 0) root.append(h('th', { scope: 'row' }), ...shown.slice(1).map(() => h('td')));
      shown.forEach((cell, index) => text(root.children[index]!, cell));
    });
  }

  private choose(sessions: Session[]): void {
    const jobs = [...new Set(sessions.map((session) => session.job_name))].filter((job) => job !== '').sort();
    const ranks = sessions.slice(0, MAX_CHOICES);
    if (this.scope.kind === 'session' && !ranks.some((session) => session.id === valueOf(this.scope).slice(8))) {
      const name = this.scope.name;
      const chosen = sessions.find((session) => session.id === name);
      if (chosen) ranks.push(chosen);
    }
    const now = JSON.stringify([jobs, ranks.map((session) => session.id), valueOf(this.scope)]);
    if (now === this.choices) return;
    this.choices = now;
    const option = (value: string, label: string) => h('option', { value }, label);
    const children: HTMLElement[] = [option('all', 'All sessions')];
    if (jobs.length) children.push(h('optgroup', { label: 'Jobs' }, ...jobs.map((job) => option(`job:${job}`, job))));
    if (ranks.length) {
      children.push(h('optgroup', { label: 'Sessions' }, ...ranks.map((session) => option(`session:${session.id}`, rankName(session)))));
    }
    const value = valueOf(this.scope);
    if (value !== 'all' && !children.some((child) => child.querySelector(`option[value="${CSS.escape(value)}"]`))) {
      children.push(option(value, `${value.slice(value.indexOf(':') + 1)} (ended)`));
    }
    this.select.replaceChildren(...children);
    this.select.value = value;
  }

  /** One bar per job; for a single job, one bar per rank. */
  private groups(): void {
    const scope = this.scope;
    const byRank = scope.kind === 'job';
    const of = byRank ? this.sessions.filter((session) => session.job_name === scope.name) : this.sessions;
    const groups = new Map<string, Group>();
    for (const session of of) {
      const name = byRank ? `rank ${session.rank}` : session.job_name || 'unnamed';
      const group = groups.get(name) ?? { name, order: byRank ? session.rank : 0, count: 0, seconds: null };
      group.count += 1;
      group.seconds = add(group.seconds, session.seconds);
      groups.set(name, group);
    }
    const sorted = [...groups.values()].sort((one, other) => one.order - other.order || one.name.localeCompare(other.name));
    const shown = scope.kind === 'session' ? [] : sorted.slice(0, MAX_BARS);
    show(byId('stall-groups-box'), shown.length > 0);
    text(byId('stall-groups-title'), byRank ? `Ranks of ${scope.name}, since their start` : 'Jobs, since their start');
    text(byId('stall-groups-more'), sorted.length > shown.length ? `and ${sorted.length - shown.length} more` : '');
    keyed(byId('stall-groups'), this.bars, shown, (group) => group.name, (group) => new GroupBar(group.name), (bar, group) => bar.set(group));
  }
}

type Seconds = Session['seconds'];

interface Group {
  name: string;
  order: number;
  count: number;
  seconds: Seconds | null;
}

function add(one: Seconds | null, other: Seconds): Seconds {
  const sum = (bucket: string) => (one?.[bucket] ?? 0) + (other[bucket] ?? 0);
  return Object.fromEntries(BUCKETS.map((bucket) => [bucket, sum(bucket)]));
}

class GroupBar {
  private readonly bar = new Bar();
  private readonly count = h('span', { class: 'muted' });
  readonly root: HTMLElement;

  constructor(name: string) {
    this.root = h('li', {}, h('span', { class: 'group-name', title: name }, name), this.bar.root, this.count);
  }

  set(group: Group): void {
    this.bar.set(group.seconds);
    const wall = BUCKETS.reduce((sum, bucket) => sum + (group.seconds?.[bucket] ?? 0), 0);
    text(this.count, `${plural(group.count, 'session')}, ${duration(wall / group.count)}`);
  }
}
