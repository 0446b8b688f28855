// Node, without any library: opens doors, one a turn, until it finds the prize or its turns are over.
import { readFileSync } from "node:fs";

const { OPENAI_BASE_URL, OPENAI_API_KEY, MODEL = "policy" } = process.env;
const task = JSON.parse(readFileSync(0)); // {"prize": "green", "max_turns": 3}
const door = { type: "string", enum: ["red", "green", "blue"] };
const parameters = { type: "object", properties: { door }, required: ["door"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "open_door", parameters, strict: true } }];
const messages = [{ role: "user", content: "find the prize behind the doors" }];

let isFound = false;
for (let turn = 0; turn < task.max_turns && !isFound; turn++) {
  const answer = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: MODEL, messages, tools, tool_choice: "required", max_tokens: 400 }),
  });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  const { message } = (await answer.json()).choices[0];
  messages.push(message);
  for (const call of message.tool_calls) {
    const opened = JSON.parse(call.function.arguments).door;
    isFound ||= opened === task.prize;
    messages.push({ role: "tool", tool_call_id: call.id, content: opened === task.prize ? "the prize" : "nothing" });
  }
}
console.log(JSON.stringify({ reward: isFound ? 1 : 0 }));
