// Server-sent events of a response's body.

/** The data of each event; comments and other fields are left out. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (text + value).split(/\r?\n\r?\n/);
      text = parts.pop()!;
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join('\n');
      }
    }
  } finally {
    // Ends the request too when nobody reads on.
    await reader.cancel().catch(() => undefined);
  }
}
