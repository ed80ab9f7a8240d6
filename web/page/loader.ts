// The part of the page that asks before a model is downloaded, and shows how far it is.
import { byId } from './dom.js';
import { EngineError, type ModelInfo, type PageEngine, type Survey } from './engine.js';
import { bytes } from './meter.js';

const STAGES: Readonly<Record<string, string>> = { download: 'Reading', compile: 'Preparing the graphics card', ready: 'Ready' };

export class Loader {
  #loading: AbortController | null = null;
  #retry: () => void;

  constructor(retry: () => void) {
    this.#retry = retry;
  }

  /** Opens an engine; where that costs a download, once people have asked for it. */
  async open(engine: PageEngine): Promise<ModelInfo> {
    this.#loading?.abort();
    const loading = new AbortController();
    this.#loading = loading;
    try {
      byId('load').hidden = true;
      const survey = await engine.survey();
      if (survey) await this.#agreed(survey, loading.signal);
      const info = await engine.open((progress) => show(progress), loading.signal);
      byId('load').hidden = true;
      return info;
    } catch (error) {
      if (loading.signal.aborted && this.#loading === loading) this.#offer();
      throw error;
    }
  }

  // After a load that people have stopped.
  #offer(): void {
    byId('load').hidden = false;
    byId('load-progress').hidden = true;
    const start = byId<HTMLButtonElement>('load-start');
    start.hidden = false;
    start.onclick = this.#retry;
  }

  async #agreed(survey: Survey, signal: AbortSignal): Promise<void> {
    if (survey.reason !== null) throw new EngineError(survey.reason);
    const start = byId<HTMLButtonElement>('load-start');
    byId('load').hidden = false;
    byId('load-progress').hidden = true;
    byId('load-facts').textContent = facts(survey);
    start.hidden = survey.cached;
    byId('load-stop').onclick = () => this.#loading?.abort(new EngineError('Loading was stopped.'));
    if (!survey.cached) await clicked(start, signal);
    start.hidden = true;
    show({ stage: 'Starting', loaded: 0, total: 0 });
    byId('load-progress').hidden = false;
  }
}

function facts({ model, size, memory, cached }: Survey): string {
  const download = cached ? 'It has been downloaded already' : `Its download is ${bytes(size)}, once; it is kept in this browser`;
  const takes = memory === null ? '' : ` It takes ${bytes(memory)} of graphics memory.`;
  return `${model}. ${download}.${takes} What you write stays on this device.`;
}

function show({ stage, loaded, total }: { stage: string; loaded: number; total: number }): void {
  const bar = byId<HTMLProgressElement>('load-bar');
  if (total > 0) bar.value = loaded / total;
  else bar.removeAttribute('value');
  const amounts = stage === 'download' && total > 0 ? `: ${bytes(loaded)} of ${bytes(total)}` : '';
  byId('load-stage').textContent = (STAGES[stage] ?? stage) + amounts;
}

function clicked(button: HTMLButtonElement, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    button.onclick = () => resolve();
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
  });
}
