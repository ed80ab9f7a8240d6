// Play /recording, the WebGPU calls of a recorded run (see player.mjs), and report what it read.
import { Player } from '/player';

const { features, limits, calls } = await (await fetch('/recording')).json();
const adapter = await navigator.gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: features, requiredLimits: limits });
const { read, error } = await new Player(device).play(calls);
report(error ? { error } : { read });
