// A client as agents are built: the openai package against the addresses given.
// usage: node client.mjs FOLDER-WITH-node_modules SCENARIO=BASE-URL...
// For each scenario it prints a line of JSON that says what the client got.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, ...runs] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(join(folder, 'node_modules/openai/index.mjs')));
let client;

const question = [
  { role: 'system', content: 'You are terse.' },
  { role: 'user', content: 'What is 2 + 3?' },
];
const add = {
  name: 'add',
  description: 'adds two numbers',
  parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
};
const tools = [{ type: 'function', function: add }];

// accumulated is what the package's own accumulator makes of a stream.
async function accumulated(params) {
  const stream = client.chat.completions.stream({ model: 'm', messages: question, ...params });
  const seen = { ids: new Set(), created: new Set(), roles: 0, chunks: 0 };
  stream.on('chunk', (chunk) => {
    seen.chunks++;
    seen.ids.add(chunk.id);
    seen.created.add(chunk.created);
    if (chunk.choices[0]?.delta?.role) seen.roles++;
  });
  const completion = await stream.finalChatCompletion();
  const choice = completion.choices[0];
  return {
    ids: seen.ids.size, created: seen.created.size, roles: seen.roles, chunks: seen.chunks,
    sameID: seen.ids.has(completion.id),
    role: choice.message.role, content: choice.message.content, finish: choice.finish_reason,
    calls: (choice.message.tool_calls ?? []).map((c) => ({ name: c.function.name, arguments: c.function.arguments })),
    prompt: completion.usage?.prompt_tokens ?? 0,
  };
}

const scenarios = {
  async chat() {
    const completion = await client.chat.completions.create({ model: 'm', messages: question });
    return { content: completion.choices[0].message.content, prompt: completion.usage.prompt_tokens };
  },
  async toolCall() {
    const completion = await client.chat.completions.create({ model: 'm', messages: question, tools });
    const choice = completion.choices[0];
    return { finish: choice.finish_reason, calls: choice.message.tool_calls.map((c) => ({ name: c.function.name, arguments: c.function.arguments })) };
  },
  stream: () => accumulated({ stream_options: { include_usage: true } }),
  streamedToolCall: () => accumulated({ tools }),
  async iterate() {
    const stream = await client.chat.completions.create({ model: 'm', messages: question, stream: true });
    let content = '';
    for await (const chunk of stream) content += chunk.choices[0]?.delta?.content ?? '';
    return { content };
  },
  async runTools() {
    const runner = client.chat.completions.runTools({
      model: 'm', messages: question, stream: true,
      tools: [{ type: 'function', function: { ...add, parse: JSON.parse, function: ({ a, b }) => String(a + b) } }],
    });
    return { content: await runner.finalContent(), messages: runner.messages.map((m) => m.role) };
  },
  // overflow is a session that is too long for the server.
  async overflow() {
    const messages = [...question];
    for (let i = 0; i < 12; i++) {
      messages.push({ role: 'assistant', content: null, tool_calls: [{ id: `c${i}`, type: 'function', function: { name: 'read', arguments: `{"path":"/${i}.go"}` } }] });
      messages.push({ role: 'tool', tool_call_id: `c${i}`, content: `line of file ${i} and so on\n`.repeat(80) });
    }
    return accumulated({ messages, tools });
  },
};

for (const run of runs) {
  const at = run.indexOf('=');
  client = new OpenAI({ apiKey: 'sk-local', baseURL: run.slice(at + 1), maxRetries: 0, timeout: 20_000 });
  let result;
  try {
    result = await scenarios[run.slice(0, at)]();
  } catch (err) {
    result = { error: err.constructor.name, status: err.status ?? 0, code: err.code ?? '', type: err.type ?? '', message: err.message };
  }
  console.log(JSON.stringify(result));
}
