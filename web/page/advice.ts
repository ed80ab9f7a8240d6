// What to do where a browser runs no WebGPU.

const CHROME = 'Update to version 113 or newer, and switch graphics acceleration on in chrome://settings/system. On Linux, start it with '
  + '--enable-unsafe-webgpu --enable-features=Vulkan if chrome://gpu says that WebGPU is disabled.';

const BROWSERS: readonly (readonly [RegExp, string, string])[] = [
  [/Firefox\//, 'Firefox', 'Version 141 or newer has WebGPU on Windows, 145 on macOS. Elsewhere set dom.webgpu.enabled in about:config, or use Chrome or Edge.'],
  [/(iPhone|iPad).*AppleWebKit/, 'this device', 'iOS and iPadOS have WebGPU from version 26 on, in all browsers.'],
  [/Edg\//, 'Edge', CHROME.replaceAll('chrome:', 'edge:')],
  [/Android.*Chrome\//, 'Chrome for Android', 'Update to version 121 or newer, on Android 12 or newer.'],
  [/Chrome\//, 'Chrome', CHROME],
  [/Version\/.*Safari\//, 'Safari', 'Version 26 or newer has WebGPU, on macOS 26 or newer.'],
];

/** What to do about a reason of the runtime's `support`, in the words of this browser. */
export function advice(reason: string, agent: string): string {
  if (reason === 'insecure') return 'Browsers run models only on pages that are loaded by https, or from localhost. Open the page that way.';
  const [, name, what] = BROWSERS.find(([pattern]) => pattern.test(agent)) ?? [null, 'This browser', 'Use a current version of Chrome, Edge, Firefox or Safari.'];
  const fault = reason === 'no-adapter' ? `${capital(name)} offers no graphics card to pages.` : `WebGPU is missing in ${name}.`;
  return `${fault} ${what}`;
}

const capital = (text: string): string => text[0]!.toUpperCase() + text.slice(1);
