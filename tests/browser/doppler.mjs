// Load the package /package with DOPPLER in a browser, and report the ids that it generates greedily:
// {ids, prompt}. /request is JSON: {prompt, tokens}.
const { load } = await import('/doppler/src/index.js');
const { prompt, tokens } = await (await fetch('/request')).json();
const model = await load({ url: `${location.origin}/package` });
const greedy = { temperature: 0, topK: 1, repetitionPenalty: 1, useChatTemplate: false };
const ids = Array.from(model.advanced.tokenizeText(prompt));
const { tokenIds } = await model.generateWithEvidence(prompt, { ...greedy, maxTokens: tokens });
report({ prompt: ids, ids: Array.from(tokenIds) });
