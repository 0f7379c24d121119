// Formatting of numbers, bytes, durations and file names.

const INTEGER = new Intl.NumberFormat("en");
const THREE_DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/** 12345 -> "12,345" */
export const formatInteger = (number) => INTEGER.format(number);

/** 0.123456 -> "0.123"; very large and very small numbers with an exponent. */
export function formatNumber(number) {
  if (number === null || number === undefined) return "none";
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return number.toExponential(2);
  return size >= 1000 ? formatInteger(Math.round(number)) : THREE_DIGITS.format(number);
}

/** 0.876 -> "88 %" */
export function formatPercent(share) {
  return share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`;
}

/** 0.97 -> "97 %"; never "0 %" or "100 %". */
export function formatProbability(probability) {
  const rounded = Math.floor(100 * probability + 0.5);
  return rounded < 1 ? "< 1 %" : rounded > 99 ? "> 99 %" : `${rounded} %`;
}

/** What each index contributes to a hit of several: "photos.polyvoc (sift) 97 %". @param {any[]} [parts] */
export function partsText(parts = []) {
  const chance = (probability) => (probability === null ? "no candidate" : formatProbability(probability));
  return parts.map(({ index, kind, probability }) => `${baseName(index)} (${kind}) ${chance(probability)}`).join(", ");
}

/** {MP4: 12, XCF: 3} -> "12 MP4, 3 XCF" @param {Record<string, number>} skipped numbers of files by kind */
export function kindsText(skipped) {
  const kinds = Object.entries(skipped).sort(([a, many], [b, few]) => few - many || (a < b ? -1 : 1));
  return kinds.map(([kind, number]) => `${formatInteger(number)} ${kind}`).join(", ");
}

/** Why a file could not be used, without its path. @param {{path: string, reason: string}} problem */
export function reasonText({ path, reason }) {
  return reason.startsWith(`${path}: `) ? reason.slice(path.length + 2) : reason;
}

/** A file name as it is typed in a command. */
export function shellWord(name) {
  return /^[\w./:@%+=-]+$/.test(name) ? name : `'${name.replaceAll("'", `'"'"'`)}'`;
}

/** 93966903 -> "94 MB" */
export function formatBytes(number) {
  const power = number < 1000 ? 0 : Math.min(Math.floor(Math.log10(number) / 3), UNITS.length - 1);
  return `${THREE_DIGITS.format(number / 1000 ** power)} ${UNITS[power]}`;
}

/** 0.0421 -> "42 ms" */
export function formatDuration(seconds) {
  return seconds < 1 ? `${Math.max(1, Math.round(1000 * seconds))} ms` : `${THREE_DIGITS.format(seconds)} s`;
}

/** 1, "image" -> "1 image"; 3, "match", "matches" -> "3 matches" */
export function count(number, one, many = `${one}s`) {
  return `${formatInteger(number)} ${number === 1 ? one : many}`;
}

/** The last part of a path. */
export function baseName(path) {
  const inner = /^[a-z][a-z0-9+.-]*:\/\//i.test(path) ? String(path).split("::")[0] : String(path); // a file in an archive in a store
  const parts = inner.split(/[\\/]/);
  return parts[parts.length - 1] || String(path);
}

/** The folder of a path: all but its last part. */
export function folderOf(path) {
  const name = baseName(path);
  return String(path).endsWith(name) ? String(path).slice(0, -name.length).replace(/[\\/]$/, "") : "";
}

/** "2026-05-30T12:00:00Z" -> "2026-05-30": the day in UTC, as filters have it; "" if it is not known. */
export const dayOf = (changed) => (changed ? changed.slice(0, 10) : "");

/** The number of bits that are set. */
export function bitCount(mask) {
  let bits = 0;
  for (let rest = mask; rest > 0; rest = Math.floor(rest / 2)) bits += rest % 2;
  return bits;
}
