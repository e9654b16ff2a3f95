// An agent with a long history, as opencode and others are built: streamText of the
// ai package against the addresses given.
// usage: node client.mjs FOLDER-WITH-node_modules SCENARIO=BASE-URL...
// For each scenario it prints a line of JSON that says what the client got.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, ...runs] = process.argv.slice(2);
const from = createRequire(join(folder, 'package.json'));
const load = (name) => import(pathToFileURL(from.resolve(name)));
const { streamText, jsonSchema, stepCountIs, tool } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');

const messages = [{ role: 'user', content: 'Read the files.' }];
for (let i = 0; i < 12; i++) {
  messages.push({ role: 'assistant', content: [{ type: 'tool-call', toolCallId: `c${i}`, toolName: 'read', input: { path: `/${i}.go` } }] });
  messages.push({ role: 'tool', content: [{ type: 'tool-result', toolCallId: `c${i}`, toolName: 'read', output: { type: 'text', value: `line of file ${i} and so on\n`.repeat(100) } }] });
}
messages.push({ role: 'user', content: 'What is 2 + 3?' });

const add = { description: 'adds two numbers', inputSchema: jsonSchema({ type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] }) };
const read = tool({ description: 'reads a file', inputSchema: jsonSchema({ type: 'object', properties: { path: { type: 'string' } } }) });

async function streamed(model, tools) {
  const got = { content: '', calls: [], finish: '', prompt: 0, errors: [], parts: {} };
  const result = streamText({ model, system: 'You are an agent.', messages, tools, maxRetries: 0, stopWhen: stepCountIs(3), onError() {} });
  for await (const part of result.fullStream) {
    got.parts[part.type] = (got.parts[part.type] ?? 0) + 1;
    if (part.type === 'text-delta') got.content += part.text;
    if (part.type === 'tool-call') got.calls.push(part.toolName + JSON.stringify(part.input));
    if (part.type === 'finish') {
      got.finish = part.finishReason;
      got.prompt = part.totalUsage.inputTokens ?? 0;
    }
    if (part.type === 'error') got.errors.push(String(part.error?.message ?? JSON.stringify(part.error)));
  }
  if (got.errors.length) return { error: 'error', message: got.errors.join('; '), finish: got.finish };
  return got;
}

const scenarios = {
  text: (model) => streamed(model, { read }),
  call: (model) => streamed(model, { add: tool(add), read }),
  loop: (model) => streamed(model, { add: tool({ ...add, execute: ({ a, b }) => String(a + b) }) }),
};

for (const run of runs) {
  const at = run.indexOf('=');
  const provider = createOpenAICompatible({ name: 'local', apiKey: 'sk-local', baseURL: run.slice(at + 1), includeUsage: true });
  let result;
  try {
    result = await scenarios[run.slice(0, at)](provider('m'));
  } catch (err) {
    result = { error: err.constructor.name, message: String(err.message) };
  }
  console.log(JSON.stringify(result));
}
