// The connection to the server as a state machine without a clock: `step` decides, live.ts acts.

/** Time without a state after which the data is stale. */
export const STALE_MS = 3000;
/** Time without a state after which the stream is closed: the server may have disappeared. */
const SILENT_MS = 10_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

export interface Link {
  /** True if a stream is open or being opened. */
  open: boolean;
  /** Time at which the stream was requested. */
  openedAt: number;
  /** Time of the last state; null before the first. */
  heardAt: number | null;
  /** Number of failed attempts since the last state. */
  failures: number;
  /** Time of the next attempt while no stream is open. */
  retryAt: number;
  /** True if the stream ended or was silent for too long. */
  stale: boolean;
  /** True if the page is hidden and the stream is closed until it becomes visible. */
  asleep: boolean;
}

export type News = 'state' | 'failed' | 'tick' | 'sleep' | 'wake';
export type Act = 'open' | 'close' | null;

export function begin(now: number): Link {
  return { open: false, openedAt: now, heardAt: null, failures: 0, retryAt: now, stale: false, asleep: false };
}

/** Exponential backoff. */
export function pause(failures: number): number {
  return Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.max(0, failures - 1));
}

export function step(link: Link, news: News, now: number): [Link, Act] {
  switch (news) {
    case 'state':
      return [{ ...link, heardAt: now, failures: 0, stale: false }, null];
    case 'failed':
      return link.open ? [closed(link, now), 'close'] : [link, null];
    case 'sleep':
      return [{ ...link, asleep: true, open: false }, link.open ? 'close' : null];
    case 'wake':
      return link.asleep ? opened({ ...link, asleep: false, failures: 0 }, now) : [link, null];
    case 'tick':
      return tick(link, now);
  }
}

function tick(link: Link, now: number): [Link, Act] {
  if (link.asleep) return [link, null];
  if (!link.open) return now >= link.retryAt ? opened(link, now) : [link, null];
  const silent = now - Math.max(link.heardAt ?? link.openedAt, link.openedAt);
  if (silent >= SILENT_MS) return [closed(link, now), 'close'];
  const sinceHeard = now - (link.heardAt ?? link.openedAt);
  return [{ ...link, stale: link.stale || sinceHeard >= STALE_MS }, null];
}

function opened(link: Link, now: number): [Link, Act] {
  return [{ ...link, open: true, openedAt: now }, 'open'];
}

function closed(link: Link, now: number): Link {
  const failures = link.failures + 1;
  return { ...link, open: false, failures, retryAt: now + pause(failures), stale: true };
}
