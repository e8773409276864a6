// MQTT.js told what to do by lines of JSON on stdin; answers and messages are lines on stdout.
const mqtt = require(process.argv[2]);
const say = (row) => process.stdout.write(JSON.stringify(row) + "\n");
const answer = (error) => say(error ? { error: String(error) } : { ok: true });
let client;

function connect({ url, options }) {
  client = mqtt.connect(url, options);
  client.once("connect", (packet) => say({ session_present: packet.sessionPresent }));
  client.once("error", (error) => say({ error: String(error) }));
  client.on("message", (topic, payload, packet) =>
    say({ message: [topic, payload.toString("hex"), packet.qos, packet.retain] }));
}

const commands = {
  connect,
  subscribe: ({ filter, qos }) => client.subscribe(filter, { qos }, answer),
  publish: ({ topic, payload, qos, retain }) =>
    client.publish(topic, Buffer.from(payload, "hex"), { qos, retain }, answer),
  end: () => client.end(false, {}, () => { say({ ok: true }); process.exit(0); }),
};

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => { const what = JSON.parse(line); commands[what.do](what); });
