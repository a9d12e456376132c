// Formatting of numbers. Null is shown as a dash, never as 0.

export const UNKNOWN = '–';

type Maybe = number | null | undefined;

const known = (value: Maybe): value is number => value !== null && value !== undefined && Number.isFinite(value);

/** Three significant digits, no exponent: 0.123, 1.23, 12.3, 123, 1,234. */
export function number(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 99.95 || Number.isInteger(value)) return Math.round(value).toLocaleString('en-US');
  return value.toFixed(size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3);
}

/** Rates and counts with a metric prefix: 950, 12.3 k, 4.56 M. */
export function short(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  for (const [unit, letter] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']] as const) {
    if (Math.abs(value) >= unit * 0.9995) return `${number(value / unit)} ${letter}`;
  }
  return number(value);
}

export function bytes(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let left = value;
  let unit = 0;
  while (Math.abs(left) >= 999.5 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${number(left)} ${units[unit]}`;
}

export function bytesPerSecond(value: Maybe): string {
  return known(value) ? `${bytes(value)}/s` : UNKNOWN;
}

/** A rate, where the label names the unit. */
export function perSecond(value: Maybe): string {
  return known(value) ? `${short(value)}/s` : UNKNOWN;
}

/** 4.1×, 12×. */
export function times(value: Maybe): string {
  return known(value) ? `${value.toFixed(value < 9.95 ? 1 : 0)}×` : UNKNOWN;
}

export function rowsPerSecond(value: Maybe): string {
  return known(value) ? `${short(value)} rows/s` : UNKNOWN;
}

export function percent(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  const hundredths = value * 100;
  const rare = hundredths !== 0 && Math.abs(hundredths) < 0.95;
  return `${rare ? hundredths.toFixed(1) : Math.round(hundredths)}%`;
}

export function milliseconds(seconds: Maybe): string {
  return known(seconds) ? `${number(seconds * 1000)} ms` : UNKNOWN;
}

/** The two largest units: 4 s, 2 min 5 s, 3 h 12 min, 5 d 1 h. */
export function duration(seconds: Maybe): string {
  if (!known(seconds)) return UNKNOWN;
  if (Math.abs(seconds) < 1) return seconds === 0 ? '0 s' : milliseconds(seconds);
  const whole = Math.round(seconds);
  const units = [['d', 86_400], ['h', 3600], ['min', 60], ['s', 1]] as const;
  const first = units.findIndex(([, size]) => whole >= size);
  const [name, size] = units[first]!;
  const below = units[first + 1];
  const rest = below ? Math.floor((whole % size) / below[1]) : 0;
  return `${Math.floor(whole / size)} ${name}${below && rest ? ` ${rest} ${below[0]}` : ''}`;
}

/** HH:MM:SS in the time zone of the browser. */
export function clock(unixSeconds: Maybe): string {
  if (!known(unixSeconds)) return UNKNOWN;
  const at = new Date(unixSeconds * 1000);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
}

export function money(value: Maybe): string {
  return known(value) ? value.toFixed(2) : UNKNOWN;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString('en-US')} ${count === 1 ? one : many}`;
}

/** Units in nanoseconds: integers, whose sums are exact. */
const UNITS: Record<string, number> = {
  ns: 1, nsec: 1, us: 1e3, 'µs': 1e3, usec: 1e3, ms: 1e6, msec: 1e6, s: 1e9, sec: 1e9, second: 1e9, seconds: 1e9,
  m: 60e9, min: 60e9, minute: 60e9, minutes: 60e9, h: 3600e9, hour: 3600e9, hours: 3600e9,
};

/** Seconds of a setting such as `5ms` or `1s 500ms`; null for an invalid one. */
export function parseDuration(text: string): number | null {
  const parts = text.trim().match(/^(\d+(\.\d+)?\s*[a-zµ]+\s*)+$/i) ? text.matchAll(/(\d+(?:\.\d+)?)\s*([a-zµ]+)/gi) : [];
  let total: number | null = text.trim() === '0' ? 0 : null;
  for (const [, digits, unit] of parts) {
    const size = UNITS[unit!.toLowerCase()];
    if (size === undefined) return null;
    total = (total ?? 0) + Number(digits) * size;
  }
  return total === null ? null : total / 1e9;
}

/** A setting such as `2500us`: an integer in the largest unit that represents it exactly. */
export function durationSetting(seconds: number): string {
  const micros = Math.round(seconds * 1e6);
  if (micros % 1_000_000 === 0) return `${micros / 1_000_000}s`;
  return micros % 1000 === 0 ? `${micros / 1000}ms` : `${micros}us`;
}
