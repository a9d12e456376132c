// Increases of counters over the last seconds. Pure functions.

/** Time over which recent values are computed, in seconds. */
export const RECENT_SECONDS = 10;

/** Values of counters at one time. */
export interface Sample<K extends string> {
  /** Unix seconds, by the clock of the server. */
  time: number;
  counters: Record<K, number>;
}

/** Adds a sample and drops those that are too old. A counter that fell belongs to a restarted server: the samples before it are dropped. */
export function sampled<K extends string>(old: readonly Sample<K>[], fresh: Sample<K>): Sample<K>[] {
  const last = old[old.length - 1];
  const fell = last && (Object.keys(fresh.counters) as K[]).some((name) => fresh.counters[name] < last.counters[name]);
  const kept = fell ? [] : old.filter((sample) => sample.time < fresh.time && sample.time >= fresh.time - RECENT_SECONDS);
  return [...kept, fresh];
}

/** Increase of a counter over the samples; null with fewer than two. */
export function increase<K extends string>(samples: readonly Sample<K>[], name: K): number | null {
  const [first, last] = [samples[0], samples[samples.length - 1]];
  return first && last && samples.length > 1 ? last.counters[name] - first.counters[name] : null;
}
