// The pictures of the next message: chosen, dropped or pasted, and shown above the field.
import { button, byId, element } from './dom.js';

const LONGEST = 1024; // pixels of a side; the conversation is kept in the browser, which has room for some megabytes
const MOST_BYTES = 200 << 10; // of a file that is kept as it is

export class Pictures {
  #urls: string[] = [];
  #refuse: (reason: string) => void;

  constructor(refuse: (reason: string) => void) {
    this.#refuse = refuse;
    const chosen = byId<HTMLInputElement>('pictures');
    byId('add-picture').onclick = () => chosen.click();
    chosen.onchange = () => {
      void this.#add(chosen.files);
      chosen.value = '';
    };
    const main = document.querySelector('main')!;
    main.addEventListener('dragover', (event) => this.#isOn && event.preventDefault());
    main.addEventListener('drop', (event) => {
      if (!this.#isOn || !event.dataTransfer?.files.length) return;
      event.preventDefault();
      void this.#add(event.dataTransfer.files);
    });
    byId('text').addEventListener('paste', (event) => {
      const files = (event as ClipboardEvent).clipboardData?.files;
      if (this.#isOn && files?.length) void this.#add(files);
    });
  }

  /** Whether the model sees pictures. */
  set on(sees: boolean) {
    byId('add-picture').hidden = !sees;
    if (!sees) this.put([]);
  }

  get #isOn(): boolean {
    return !byId('add-picture').hidden;
  }

  put(urls: readonly string[]): void {
    this.#urls = [...urls];
    this.#show();
  }

  /** Returns the pictures, which are no longer those of the next message. */
  take(): string[] {
    const urls = this.#urls;
    this.put([]);
    return urls;
  }

  async #add(list: FileList | null): Promise<void> {
    const files = [...(list ?? [])]; // the list is empty once its event is over
    for (const file of files) {
      try {
        this.#urls.push(await dataUrl(file));
      } catch {
        this.#refuse(`${file.name} is no picture that this browser reads.`);
      }
    }
    this.#show();
  }

  #show(): void {
    const items = this.#urls.map((url, at) =>
      element('span', { className: 'picture' }, picture(url), button('×', () => this.put(this.#urls.toSpliced(at, 1)), { ariaLabel: `Remove picture ${at + 1}` })));
    byId('chosen').replaceChildren(...items);
    byId('chosen').hidden = !items.length;
  }
}

export function picture(url: string): HTMLImageElement {
  return element('img', { src: url, alt: 'Picture of the message' });
}

/** Returns a picture as a URL that holds it: a small file as it is, another one made smaller. */
async function dataUrl(file: File): Promise<string> {
  const bitmap = await createImageBitmap(file);
  try {
    const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
    if (scale === 1 && file.size <= MOST_BYTES) return await read(file);
    const canvas = element('canvas', { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
    canvas.getContext('2d')!.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL('image/webp', 0.92);
  } finally {
    bitmap.close();
  }
}

function read(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
