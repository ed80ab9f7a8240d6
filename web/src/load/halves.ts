// Numbers of 16 bits, and how they are rounded.

/** Return the value of a half-precision number. */
export function f16(word: number): number {
  const sign = word & 0x8000 ? -1 : 1;
  const exponent = (word >> 10) & 31;
  const fraction = word & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** Return the half-precision number that is nearest, ties to even. */
export function toF16(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(Math.floor(Math.log2(size || 2 ** -24)), -14);
  const scaled = size * 2 ** (10 - exponent); // below 2,048: the fraction and its leading bit
  return sign | (((exponent + 14) << 10) + roundEven(scaled));
}

/** Return the nearest integer to a number that is not negative, ties to even. */
export function roundEven(value: number): number {
  const below = Math.floor(value);
  return value - below === 0.5 ? below + (below % 2) : Math.round(value);
}

/** Return the upper half of the bits of an f32, rounded to nearest, ties to even. */
export function toBf16(bits: number): number {
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40;
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}
