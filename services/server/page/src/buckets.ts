// Where a session's time goes. The order is that of the stack, from the bottom, and never changes.

export const BUCKETS = ['consumer', 'downstream', 'network', 'gather', 'decode', 'storage', 'admission'] as const;
export type Bucket = (typeof BUCKETS)[number];

interface About {
  label: string;
  words: string;
  /** Okabe and Ito's colours, which differ for every kind of colour blindness. */
  colour: string;
  /** Beside the colour: the lines of a tile of 8 x 8. */
  pattern: string;
}

export const ABOUT: Record<Bucket, About> = {
  consumer: { label: 'trainer', words: 'the trainer computes and asks for nothing', colour: '#009e73', pattern: '' },
  downstream: {
    label: 'trainer or network',
    words: 'trainer and network together: this client does not report',
    colour: '#8fd0c0',
    pattern: 'M0 4H8',
  },
  network: { label: 'network', words: 'a finished batch is on its way', colour: '#0072b2', pattern: 'M4 0V8' },
  gather: { label: 'gather', words: 'rows are put together to batches', colour: '#f0e442', pattern: 'M2 2h1M6 6h1' },
  decode: { label: 'decode', words: 'Parquet is decoded', colour: '#56b4e9', pattern: 'M0 8L8 0' },
  storage: { label: 'storage', words: 'bytes come from the store', colour: '#d55e00', pattern: 'M0 0L8 8' },
  admission: { label: 'admission', words: 'work waits in a queue, or for memory', colour: '#cc79a7', pattern: 'M0 4H8M4 0V8' },
};

export function labelOf(bucket: string): string {
  return bucket in ABOUT ? ABOUT[bucket as Bucket].label : bucket;
}
