// A client told what to do by lines of JSON on stdin: one line asks, one line on stdout answers.
const bytes = (text) => (text === null ? null : Buffer.from(text, "base64"));
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString("base64"));
const say = (row) => process.stdout.write(JSON.stringify(row) + "\n");

// Kafka's code, wherever this client has put it: in the error, its causes or its parts.
function code(error, depth = 0) {
  if (!error || depth > 5) return undefined;
  for (const found of [error.apiCode, error.code])
    if (typeof found === "number") return found;
  for (const inner of [error.cause, error.originalError, ...(error.errors ?? [])]) {
    const found = code(inner, depth + 1);
    if (found !== undefined) return found;
  }
}

function explain(error) {
  const inner = (error.errors ?? []).map(explain).join("; ");
  return inner ? `${error.message}: ${inner}` : String(error.message ?? error);
}

function serve(commands) {
  let last = Promise.resolve(); // one after the other, as they were asked
  const lines = require("node:readline").createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const asked = JSON.parse(line);
    last = last
      .then(() => commands[asked.do](asked))
      .then((answer) => say({ answer: answer ?? null }))
      .catch((error) => say({ error: explain(error), code: code(error) ?? -1 }));
  });
  lines.on("close", () => last.then(() => process.exit(0)));
}

module.exports = { bytes, code, text, serve };
