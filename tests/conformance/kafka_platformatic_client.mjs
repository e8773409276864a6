// @platformatic/kafka behind the lines of kafka_js_lines.js. Arguments: folder of the packages, port.
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, port] = process.argv.slice(2);
const here = createRequire(import.meta.url);
const { bytes, code, text, serve } = here("./kafka_js_lines.js");
const inside = path.resolve(folder, "node_modules/@platformatic/kafka/dist/index.js");
const { Admin, Consumer, Producer, ConfigResourceTypes } = await import(pathToFileURL(inside));

const base = () => ({
  clientId: "conformance", bootstrapBrokers: [`127.0.0.1:${port}`], retries: 20, retryDelay: 100,
});
const MOVED = new Set([6, 16, 74]); // NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR, FENCED_LEADER_EPOCH
const members = {};
const admin = new Admin(base());
let groups = 0;

async function producing(options, work) {
  const producer = new Producer({ ...base(), ...options });
  try {
    return await work(producer);
  } finally {
    await producer.close();
  }
}

// A second producer of the same name would be fenced: it asks for the identity 0 of epoch 0.
const transactional = {};
async function transacting(name, commit, work) {
  transactional[name] ??= new Producer({ ...base(), transactionalId: name, idempotent: true });
  const transaction = await transactional[name].beginTransaction();
  await work(transaction);
  await (commit ? transaction.commit() : transaction.abort());
}

// Keys of the map are different buffers, so a name may come twice.
const headers = (pairs) => new Map(pairs.map(([name, value]) => [Buffer.from(name), bytes(value)]));
const pairs = (map) => [...map].map(([name, value]) => [name.toString(), text(value)]);
const row = (message) => ({
  value: text(message.value), key: text(message.key), headers: pairs(message.headers),
  timestamp: String(message.timestamp), offset: String(message.offset), partition: message.partition,
});

const consumer = (group) => new Consumer({
  ...base(), groupId: group, sessionTimeout: 6000, heartbeatInterval: 300, rebalanceTimeout: 10000,
  maxWaitTime: 100,
});

// A consumer never looks for another coordinator, nor for a new epoch, so that a read begins anew with another
// consumer when a coordinator or a leader has moved.
async function again(work, asked) {
  for (let left = 3; ; left--)
    try {
      return await work(asked);
    } catch (error) {
      if (!left || !MOVED.has(code(error))) throw error;
    }
}

// A member whose stream ended with an error says so when it is asked.
function healthy(member) {
  if (members[member].failed) throw members[member].failed;
  return members[member];
}

const consume = (reader, topics, committed, more = {}) => reader.consume({
  topics, mode: "committed", fallbackMode: "earliest", isolationLevel: committed ? 1 : 0, maxWaitTime: 100,
  ...more,
});

serve({
  produce: ({ topic, records, codec }) =>
    producing({ idempotent: true }, async (producer) => {
      const answer = await producer.send({
        acks: -1, compression: codec,
        messages: records.map((record) => ({
          topic, value: bytes(record.value) ?? undefined, key: bytes(record.key) ?? undefined,
          headers: headers(record.headers), partition: record.partition,
          ...(record.timestamp === null ? {} : { timestamp: BigInt(record.timestamp) }),
        })),
      });
      const first = answer.offsets[0].offset;
      return records.map((_, index) => String(first + BigInt(index)));
    }),

  read: (asked) => again(async ({ counts, committed }) => {
    const found = Object.fromEntries(Object.keys(counts).map((topic) => [topic, []]));
    const reader = consumer(`platformatic-read-${process.pid}-${groups++}`);
    const stream = await consume(reader, Object.keys(counts), committed, { mode: "earliest", autocommit: false });
    for await (const message of stream) {
      found[message.topic].push(row(message));
      if (Object.entries(counts).every(([topic, count]) => found[topic].length >= count)) break;
    }
    await reader.close(true);
    return found;
  }, asked),

  transact: ({ name, topic, values, commit }) =>
    transacting(name, commit, (transaction) => transaction.send({
      messages: values.map((value) => ({ topic, value: bytes(value), partition: 0 })),
    })),

  transform: async ({ name, group, source, target, count, commit }) => {
    const taken = [];
    const reader = consumer(group);
    const stream = await consume(reader, [source], true, { autocommit: false });
    await transacting(name, commit, async (transaction) => {
      await transaction.addConsumer(reader);
      for await (const message of stream) {
        taken.push(message);
        if (taken.length >= count) break;
      }
      await transaction.send({
        messages: taken.map((message) => (
          { topic: target, value: Buffer.concat([Buffer.from("> "), message.value]), partition: 0 })),
      });
      const last = new Map(taken.map((message) => [message.partition, message]));
      for (const message of last.values()) await transaction.addOffset(message);
    });
    await reader.close(true);
  },

  join: async ({ member, group, topic }) => {
    const reader = consumer(group);
    const state = (members[member] = { reader, took: [] });
    const stream = await consume(reader, [topic], false, { autocommit: 100 });
    state.stream = stream;
    stream.on("data", (message) => state.took.push([message.partition, String(message.offset)]));
    stream.on("error", (error) => { state.failed = error; });
  },
  assigned: ({ member }) => (healthy(member).reader.assignments ?? []).flatMap((found) => found.partitions),
  took: ({ member }) => healthy(member).took,
  leave: async ({ member }) => {
    const { reader, stream } = members[member];
    await stream.close();
    await reader.close(true);
    delete members[member];
  },

  create: ({ topic, partitions, configs }) => admin.createTopics({
    topics: [topic], partitions,
    configs: Object.entries(configs).map(([name, value]) => ({ name, value })),
  }).then(() => null),
  partitions: async ({ topic }) =>
    (await admin.metadata({ topics: [topic], forceUpdate: true })).topics.get(topic).partitionsCount,
  configs: async ({ topic }) => {
    const [found] = await admin.describeConfigs({
      resources: [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: topic, configurationKeys: null }],
    });
    return Object.fromEntries(found.configs.map((entry) => [entry.name, entry.value]));
  },
  configure: ({ topic, name, value }) => admin.incrementalAlterConfigs({
    resources: [{
      resourceType: ConfigResourceTypes.TOPIC, resourceName: topic,
      configs: [{ name, value, configOperation: 0 }],
    }],
  }),
  grow: ({ topic, partitions }) => admin.createPartitions({
    topics: [{ name: topic, count: partitions, assignments: null }],
  }),
  delete: ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  topics: () => admin.listTopics(),
});
