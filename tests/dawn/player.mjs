// Run recorded WebGPU calls on a device, in Node or in a browser.
//
// A call is a JSON object {call, ...}. Objects that it creates are numbered by the caller:
//
//   {call: 'buffer', id, size, usage}
//   {call: 'write', buffer, offset, data}                 data in base64
//   {call: 'module', id, label, source}
//   {call: 'layout', id, bindings}                        buffer binding types, in binding order
//   {call: 'pipeline', id, label, module, layout, entry, constants}
//   {call: 'group', id, layout, buffers}                  buffers: [[buffer, offset, size]]
//   {call: 'submit', commands}                            see `commands` below
//   {call: 'read', buffer, offset, size}                  of a buffer that can be mapped
//   {call: 'free', id}

const commands = {
  dispatch: (pass, made, [pipeline, group, x, y, z]) => {
    pass.setPipeline(made.get(pipeline));
    pass.setBindGroup(0, made.get(group));
    pass.dispatchWorkgroups(x, y, z);
  },
  copy: (encoder, made, [from, start, to, at, size]) =>
    encoder.copyBufferToBuffer(made.get(from), start, made.get(to), at, size),
  clear: (encoder, made, [buffer, offset, size]) =>
    encoder.clearBuffer(made.get(buffer), offset, size),
};

export function decode(text) {
  if (globalThis.Buffer) return Buffer.from(text, 'base64');
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function encode(bytes) {
  if (globalThis.Buffer) return Buffer.from(bytes).toString('base64');
  let text = '';
  for (let at = 0; at < bytes.length; at += 8192) {
    text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return btoa(text);
}

export class Player {
  constructor(device) {
    this.device = device;
    this.made = new Map();
    this.lost = null;
    device.lost.then(({ message }) => (this.lost = message));
  }

  // Run calls in order. Returns {read: the bytes of each `read`, error: a message or null}.
  async play(calls) {
    const { device } = this;
    const read = [];
    const kinds = ['validation', 'out-of-memory', 'internal'];
    kinds.forEach((kind) => device.pushErrorScope(kind));
    for (const one of calls) {
      const result = await this[one.call](one);
      if (one.call === 'read') read.push(result);
    }
    const errors = [];
    for (let left = kinds.length; left; left -= 1) errors.push(await device.popErrorScope());
    const [first] = errors.filter((error) => error);
    return { read, error: this.lost ?? first?.message ?? null };
  }

  buffer({ id, size, usage }) {
    this.made.set(id, this.device.createBuffer({ size, usage }));
  }

  write({ buffer, offset, data }) {
    this.device.queue.writeBuffer(this.made.get(buffer), offset, decode(data));
  }

  module({ id, label, source }) {
    this.made.set(id, this.device.createShaderModule({ label, code: source }));
  }

  layout({ id, bindings }) {
    const visibility = 4; // GPUShaderStage.COMPUTE
    const entries = bindings.map((type, binding) => ({ binding, visibility, buffer: { type } }));
    this.made.set(id, this.device.createBindGroupLayout({ entries }));
  }

  pipeline({ id, label, module, layout, entry, constants }) {
    const made = this.device.createComputePipeline({
      label,
      layout: this.device.createPipelineLayout({ bindGroupLayouts: [this.made.get(layout)] }),
      compute: { module: this.made.get(module), entryPoint: entry, constants },
    });
    this.made.set(id, made);
  }

  group({ id, layout, buffers }) {
    const entries = buffers.map(([buffer, offset, size], binding) => ({
      binding,
      resource: { buffer: this.made.get(buffer), offset, size },
    }));
    const descriptor = { layout: this.made.get(layout), entries };
    this.made.set(id, this.device.createBindGroup(descriptor));
  }

  // `commands` is a list of [name, arguments]; dispatches that follow each other share a pass.
  submit({ commands: list }) {
    const encoder = this.device.createCommandEncoder();
    let pass = null;
    for (const [name, words] of list) {
      if (name === 'dispatch') {
        pass ??= encoder.beginComputePass();
      } else if (pass) {
        pass.end();
        pass = null;
      }
      commands[name](pass ?? encoder, this.made, words);
    }
    pass?.end();
    this.device.queue.submit([encoder.finish()]);
  }

  async read({ buffer, offset, size }) {
    const source = this.made.get(buffer);
    await source.mapAsync(1, offset, size); // GPUMapMode.READ
    const text = encode(new Uint8Array(source.getMappedRange(offset, size)));
    source.unmap();
    return text;
  }

  free({ id }) {
    this.made.get(id).destroy?.();
    this.made.delete(id);
  }
}

// Return what an adapter supports: {name, features, limits}.
export function describe(adapter) {
  const limits = {};
  for (const name in adapter.limits) {
    if (Number.isSafeInteger(adapter.limits[name])) limits[name] = adapter.limits[name];
  }
  const { vendor, architecture, description } = adapter.info;
  const name = description || [vendor, architecture].filter((word) => word).join(' ');
  return { name, features: Array.from(adapter.features), limits };
}
