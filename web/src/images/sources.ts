// The images of messages, as pixels: whatever the browser decodes.
import { RdrrError } from '../errors.js';
import type { Pixels } from './resample.js';

/** An image: a URL (`data:`, `blob:` or one that the page may fetch), a file, or pixels. */
export type ImageSource = string | Blob | ImageBitmap | ImageData | CanvasImageSource;

const MOST_BYTES = 64 << 20; // of a file
const MOST_PIXELS = 50_000_000;

/** Return the pixels of an image. What is transparent becomes white, and profiles of colours are not applied. */
export async function pixelsOf(source: ImageSource, where: string): Promise<Pixels> {
  if (isPixels(source)) return pixelsOfData(source);
  if (typeof createImageBitmap !== 'function') {
    throw new RdrrError('usage', `${where}: only browsers decode images; give their pixels as { width, height, data }`);
  }
  const content = typeof source === 'string' ? await fetched(source, where) : source;
  if (content instanceof Blob && content.size > MOST_BYTES) throw new RdrrError('usage', `${where}: the file is too large: expected at most ${MOST_BYTES} bytes, found ${content.size}`);
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(content as ImageBitmapSource, { colorSpaceConversion: 'none' });
  } catch (error) {
    throw new RdrrError('usage', `${where}: the browser cannot read the image: ${String(error)}`, { cause: error });
  }
  try {
    return pixelsOfBitmap(bitmap, where);
  } finally {
    bitmap.close();
  }
}

async function fetched(url: string, where: string): Promise<Blob> {
  try {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`status ${response.status}`);
    return await response.blob();
  } catch (error) {
    throw new RdrrError('usage', `${where}: the image cannot be fetched: ${String(error)}`, { cause: error });
  }
}

function pixelsOfBitmap(bitmap: ImageBitmap, where: string): Pixels {
  const { width, height } = bitmap;
  if (width * height > MOST_PIXELS) throw new RdrrError('usage', `${where}: the image is too large: expected at most ${MOST_PIXELS} pixels, found ${width} x ${height}`);
  const context = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true })!;
  context.drawImage(bitmap, 0, 0);
  return pixelsOfData(context.getImageData(0, 0, width, height));
}

function isPixels(source: ImageSource): source is ImageData {
  return typeof source === 'object' && 'data' in source && 'width' in source;
}

/** Return red, green and blue of pixels on white. */
function pixelsOfData({ width, height, data: given }: Pick<ImageData, 'width' | 'height' | 'data'>): Pixels {
  const data = new Uint8Array(3 * width * height);
  for (let pixel = 0, to = 0; pixel < width * height; pixel += 1) {
    const alpha = given[4 * pixel + 3]! / 255;
    for (let channel = 0; channel < 3; channel += 1) data[to++] = Math.round(255 + (given[4 * pixel + channel]! - 255) * alpha);
  }
  return { width, height, data };
}
