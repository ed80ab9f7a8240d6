// The script of a Web Worker that runs a model: new Worker('worker.js', { type: 'module' }).
import { serve, type Port } from '../index.js';

serve(self as unknown as Port);
