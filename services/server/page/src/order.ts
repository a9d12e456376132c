// Sorting, filtering and paging of the table of sessions. Pure functions.

import type { Session } from './schema.ts';

export type Key = 'started' | 'job' | 'dataset' | 'rank' | 'progress' | 'eta' | 'rate' | 'wait' | 'bottleneck' | 'label';

export interface View {
  key: Key;
  ascending: boolean;
  filter: string;
  page: number;
}

/** Sort keys. Unknown values come last in both directions. */
const VALUES: Record<Key, (session: Session) => number | string | null> = {
  started: (session) => session.started_at,
  job: (session) => session.job_name || session.id,
  dataset: (session) => session.dataset,
  rank: (session) => session.rank,
  progress: (session) => session.progress,
  eta: (session) => session.eta_seconds,
  rate: (session) => session.rows_per_second,
  wait: (session) => session.verdict.wait_fraction,
  bottleneck: (session) => session.verdict.bottleneck,
  label: (session) => (session.label ? Number(session.label.skewed) : null),
};

function matches(session: Session, words: readonly string[]): boolean {
  if (words.length === 0) return true;
  const skewed = session.label?.skewed ? 'skewed' : '';
  const all = `${session.id} ${session.job_name} ${session.dataset} ${session.snapshot} rank ${session.rank} ${session.verdict.bottleneck} ${skewed}`.toLowerCase();
  return words.every((word) => all.includes(word));
}

export function arrange(sessions: readonly Session[], view: View): Session[] {
  const words = view.filter.toLowerCase().split(/\s+/).filter((word) => word !== '');
  const value = VALUES[view.key];
  const sign = view.ascending ? 1 : -1;
  const kept = sessions.filter((session) => matches(session, words)).map((session, index) => ({ session, index, value: value(session) }));
  kept.sort((one, other) => {
    if (one.value === null || other.value === null) {
      if (one.value !== other.value) return one.value === null ? 1 : -1;
    } else if (one.value !== other.value) {
      return (one.value < other.value ? -1 : 1) * sign;
    }
    // Equal rows keep the order of the server, so that they do not swap places.
    return one.index - other.index;
  });
  return kept.map(({ session }) => session);
}

export function pageOf<T>(all: readonly T[], page: number, size: number): { items: T[]; page: number; pages: number; from: number } {
  const pages = Math.max(1, Math.ceil(all.length / size));
  const at = Math.min(Math.max(0, page), pages - 1);
  return { items: all.slice(at * size, (at + 1) * size), page: at, pages, from: at * size };
}
