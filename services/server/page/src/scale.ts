// Logarithmic sliders: positions are integers, values are rounded to two digits.

const STEPS = 8;
const MAX_ROWS = 65_536;
const MIN_DELAY = 0.0001;
const MAX_DELAY = 1;

export interface Scale {
  positions: number;
  value(position: number): number;
  position(value: number): number;
}

function digits(value: number, count: number): number {
  const unit = 10 ** (Math.floor(Math.log10(value)) - count + 1);
  return Number((Math.round(value / unit) * unit).toPrecision(count));
}

/** 1 to 65,536 rows, eight steps per power of two. */
export const rows: Scale = {
  positions: Math.log2(MAX_ROWS) * STEPS,
  value(position) {
    const exact = 2 ** (position / STEPS);
    return position % STEPS === 0 || exact < 64 ? Math.round(exact) : digits(exact, 2);
  },
  position(value) {
    return Math.round(Math.log2(Math.min(MAX_ROWS, Math.max(1, value))) * STEPS);
  },
};

const DECADES = Math.log10(MAX_DELAY / MIN_DELAY);

/** Seconds: 0, then 0.1 ms to 1 s, twenty steps per power of ten. */
export const delay: Scale = {
  positions: DECADES * 20 + 1,
  value(position) {
    return position <= 0 ? 0 : digits(MIN_DELAY * 10 ** ((position - 1) / 20), 2);
  },
  position(value) {
    if (value < MIN_DELAY / 2) return 0;
    return Math.round(Math.log10(Math.min(MAX_DELAY, Math.max(MIN_DELAY, value)) / MIN_DELAY) * 20) + 1;
  },
};
