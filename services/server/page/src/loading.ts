// The windows that a session waits for.

import { number } from './format.ts';

/** Windows that the streams of a session wait for. */
export interface WindowLoad {
  blocks: number;
  blocks_done: number;
  waits_for_memory: boolean;
}

/** Such as `loading the first window: 40 of 95 blocks`; empty if the session waits for no window. */
export function loadingText({ loading, batches }: { loading?: WindowLoad | null; batches: number }): string {
  if (!loading) return '';
  const which = batches === 0 ? 'the first window' : 'the next window';
  if (loading.waits_for_memory) return `${which} waits for memory`;
  return `loading ${which}: ${number(loading.blocks_done)} of ${number(loading.blocks)} blocks`;
}
