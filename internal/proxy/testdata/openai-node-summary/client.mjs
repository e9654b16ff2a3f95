// An agent with a long history: the openai package against the addresses given. Its
// package.json is the one of ../openai-node.
// usage: node client.mjs FOLDER-WITH-node_modules SCENARIO=BASE-URL...
// For each scenario it prints a line of JSON that says what the client got.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, ...runs] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(join(folder, 'node_modules/openai/index.mjs')));
let client;

const messages = [{ role: 'system', content: 'You are an agent.' }, { role: 'user', content: 'Read the files.' }];
for (let i = 0; i < 12; i++) {
  messages.push({ role: 'assistant', content: null, tool_calls: [{ id: `c${i}`, type: 'function', function: { name: 'read', arguments: `{"path":"/${i}.go"}` } }] });
  messages.push({ role: 'tool', tool_call_id: `c${i}`, content: `line of file ${i} and so on\n`.repeat(100) });
}
messages.push({ role: 'user', content: 'What is 2 + 3?' });

const schema = { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] };
const add = { name: 'add', description: 'adds two numbers', parameters: schema };
const read = { type: 'function', function: { name: 'read', description: 'reads a file', parameters: { type: 'object', properties: { path: { type: 'string' } } } } };

// accumulated is what the package's own accumulator makes of a stream.
async function accumulated(tools) {
  const stream = client.chat.completions.stream({ model: 'm', messages, tools, stream_options: { include_usage: true } });
  const seen = { ids: new Set(), created: new Set(), roles: 0, empty: 0 };
  stream.on('chunk', (chunk) => {
    seen.ids.add(chunk.id);
    seen.created.add(chunk.created);
    if (chunk.choices[0]?.delta?.role) seen.roles++;
    if (chunk.choices[0]?.delta?.content === '') seen.empty++;
  });
  const completion = await stream.finalChatCompletion();
  const choice = completion.choices[0];
  return {
    ids: seen.ids.size, created: seen.created.size, roles: seen.roles, empty: seen.empty,
    role: choice.message.role, content: choice.message.content ?? '', finish: choice.finish_reason,
    calls: (choice.message.tool_calls ?? []).map((c) => c.function.name + c.function.arguments),
    prompt: completion.usage?.prompt_tokens ?? 0,
  };
}

const scenarios = {
  text: () => accumulated([read]),
  call: () => accumulated([{ type: 'function', function: add }, read]),
  async loop() {
    const runner = client.chat.completions.runTools({
      model: 'm', messages, stream: true,
      tools: [{ type: 'function', function: { ...add, parse: JSON.parse, function: ({ a, b }) => String(a + b) } }],
    });
    const content = await runner.finalContent();
    return { content, role: runner.messages.at(-1).role, finish: (await runner.finalChatCompletion()).choices[0].finish_reason };
  },
};

for (const run of runs) {
  const at = run.indexOf('=');
  client = new OpenAI({ apiKey: 'sk-local', baseURL: run.slice(at + 1), maxRetries: 0, timeout: 60_000 });
  let result;
  try {
    result = await scenarios[run.slice(0, at)]();
  } catch (err) {
    result = { error: err.constructor.name, message: String(err.message) };
  }
  console.log(JSON.stringify(result));
}
