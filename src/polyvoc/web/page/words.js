// How are numbers and names said? Thousands separated, three digits, bytes, durations, the end of a long path.

const WHOLE = new Intl.NumberFormat("en");
const THREE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/** 12345 -> "12,345" */
export const whole = (number) => WHOLE.format(number);

/** 0.123456 -> "0.123"; very large and very small numbers with an exponent. */
export function three(number) {
  if (number === null || number === undefined) return "none";
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return number.toExponential(2);
  return size >= 1000 ? whole(Math.round(number)) : THREE.format(number);
}

/** 0.876 -> "88 %" */
export function percent(share) {
  return share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`;
}

/** A probability: 0.97 -> "97 %"; nothing is certain, and nothing impossible. */
export function probable(share) {
  const whole = Math.floor(100 * share + 0.5);
  return whole < 1 ? "< 1 %" : whole > 99 ? "> 99 %" : `${whole} %`;
}

/** 93966903 -> "94 MB" */
export function bytes(number) {
  const power = number < 1000 ? 0 : Math.min(Math.floor(Math.log10(number) / 3), UNITS.length - 1);
  return `${THREE.format(number / 1000 ** power)} ${UNITS[power]}`;
}

/** 0.0421 -> "42 ms" */
export function duration(seconds) {
  return seconds < 1 ? `${Math.max(1, Math.round(1000 * seconds))} ms` : `${THREE.format(seconds)} s`;
}

/** 1, "image" -> "1 image"; 3, "match", "matches" -> "3 matches" */
export function count(number, one, many = `${one}s`) {
  return `${whole(number)} ${number === 1 ? one : many}`;
}

/** The last part of a path. */
export function baseName(path) {
  const inner = /^[a-z][a-z0-9+.-]*:\/\//i.test(path) ? String(path).split("::")[0] : String(path); // of an archive in a store
  const parts = inner.split(/[\\/]/);
  return parts[parts.length - 1] || String(path);
}

/** Count the bits that are set. */
export function bitCount(mask) {
  let bits = 0;
  for (let rest = mask; rest > 0; rest = Math.floor(rest / 2)) bits += rest % 2;
  return bits;
}
