// Logarithmic sliders: a position is a whole number, a value one that a person would type.

const STEPS = 8;
const MOST_ROWS = 65_536;
const LEAST_DELAY = 0.0001;
const MOST_DELAY = 1;

export interface Scale {
  positions: number;
  value(position: number): number;
  position(value: number): number;
}

function digits(value: number, count: number): number {
  const unit = 10 ** (Math.floor(Math.log10(value)) - count + 1);
  return Number((Math.round(value / unit) * unit).toPrecision(count));
}

/** 1 to 65,536 rows, eight steps from one power of two to the next. */
export const rows: Scale = {
  positions: Math.log2(MOST_ROWS) * STEPS,
  value(position) {
    const exact = 2 ** (position / STEPS);
    return position % STEPS === 0 || exact < 64 ? Math.round(exact) : digits(exact, 2);
  },
  position(value) {
    return Math.round(Math.log2(Math.min(MOST_ROWS, Math.max(1, value))) * STEPS);
  },
};

const DECADES = Math.log10(MOST_DELAY / LEAST_DELAY);

/** Seconds: 0, then 0.1 ms to 1 s, twenty steps from one power of ten to the next. */
export const delay: Scale = {
  positions: DECADES * 20 + 1,
  value(position) {
    return position <= 0 ? 0 : digits(LEAST_DELAY * 10 ** ((position - 1) / 20), 2);
  },
  position(value) {
    if (value < LEAST_DELAY / 2) return 0;
    return Math.round(Math.log10(Math.min(MOST_DELAY, Math.max(LEAST_DELAY, value)) / LEAST_DELAY) * 20) + 1;
  },
};
