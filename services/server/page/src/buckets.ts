// Buckets of a session's time, in the fixed order of the stacked chart from bottom to top.

export const BUCKETS = ['compute', 'compute_or_network', 'network', 'gather', 'decode', 'storage', 'queued'] as const;
export type Bucket = (typeof BUCKETS)[number];

interface About {
  label: string;
  description: string;
  /** Okabe and Ito's palette, which is distinguishable with all kinds of colour blindness. */
  colour: string;
  /** Lines of an 8 x 8 tile, in addition to the colour. */
  pattern: string;
}

export const ABOUT: Record<Bucket, About> = {
  compute: { label: 'compute', description: 'The trainer computes and does not wait for a batch', colour: '#009e73', pattern: '' },
  compute_or_network: {
    label: 'compute or network',
    description: 'The trainer computes or a batch is in transit; the client does not report which',
    colour: '#8fd0c0',
    pattern: 'M0 4H8',
  },
  network: { label: 'network', description: 'The trainer waits for a batch in transit', colour: '#0072b2', pattern: 'M4 0V8' },
  gather: { label: 'gather', description: 'The trainer waits while rows are gathered into a batch', colour: '#f0e442', pattern: 'M2 2h1M6 6h1' },
  decode: { label: 'decode', description: 'The trainer waits while Parquet is decoded', colour: '#56b4e9', pattern: 'M0 8L8 0' },
  storage: { label: 'storage', description: 'The trainer waits for reads from the store or the disk cache', colour: '#d55e00', pattern: 'M0 0L8 8' },
  queued: { label: 'queued', description: 'The trainer waits while its work is queued for a thread or for memory', colour: '#cc79a7', pattern: 'M0 4H8M4 0V8' },
};

export function labelOf(bucket: string): string {
  return bucket in ABOUT ? ABOUT[bucket as Bucket].label : bucket;
}
