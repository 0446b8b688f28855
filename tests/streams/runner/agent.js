// An agent as a Node program: rewards and traces over the attempt's URL, the outcome on its last line.
const { gzipSync } = require("node:zlib");
const url = process.env.HEADRACE_ATTEMPT_URL;

async function post(what, body, headers = {}) {
  const answer = await fetch(`${url}/${what}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body,
  });
  if (!answer.ok) throw new Error(`${what}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function main() {
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const task = JSON.parse(Buffer.concat(chunks).toString());
  const text = (key, value) => ({ key, value: { stringValue: value } });
  const now = `${Date.now()}000000`;
  const spans = [
    {
      traceId: "0af7651916cd43dd8448eb211c80319c",
      spanId: "b7ad6b7169203331",
      name: "chat",
      kind: 3,
      startTimeUnixNano: now,
      endTimeUnixNano: now,
      attributes: [text("gen_ai.operation.name", "chat"), text("gen_ai.request.model", task.model)],
    },
  ];
  const request = JSON.stringify({ resourceSpans: [{ scopeSpans: [{ spans }] }] });
  await post("v1/traces", gzipSync(request), { "content-encoding": "gzip" });
  const { sequence_id } = await post("rewards", JSON.stringify({ value: 0.25, name: "style", about: 1 }));
  console.log(JSON.stringify({ seen: sequence_id }));
  console.log(JSON.stringify({ reward: 0.75 }));
}

main();
